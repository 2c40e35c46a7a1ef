//! The poll. MySQL pushes nothing, so one query fetches the states of all waits that are due, and the notices of sessions.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use mysql_async::Row;
use palisade_core::{LockName, SessionEnd, SessionId};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use super::MysqlBackend;
use super::backend::note_queued;
use super::connection::Connection;
use super::poll_backoff::PollBackoff;
use super::wire::{self, id, literal, number, settle_granted, text};
use crate::BootInstant;
use crate::engine::Failure;
use crate::engine::remote::{AcquireReply, ClientState, WaitKey, jittered};

/// Waits that are due within this time are polled in one query.
const SAME_QUERY: Duration = Duration::from_millis(1);
/// How often all waits, and the sessions with grants or waits, are polled, and expired holders ahead of waits are ended.
const POLL_ALL: Duration = Duration::from_millis(400);
/// A wait with more than this many others ahead is nudged only every `FAR_ROUNDS`th time: the waits ahead nudge as well.
const NEAR: u64 = 8;
const FAR_ROUNDS: u32 = 10;
/// How often events are read.
const READ_EVENTS: Duration = Duration::from_millis(40);
/// How often a watch is renewed.
const RENEW_WATCH: Duration = Duration::from_secs(2);
/// How long MySQL keeps events after the last renewal of a watch. Several renewals may fail.
pub(super) const WATCH_LEASE: Duration = Duration::from_secs(10);
/// How often expired sessions are ended that no wait needs to be ended.
const SWEEP: Duration = Duration::from_secs(5);
/// The same while this client watches, since watchers learn of an expiry only then.
const SWEEP_WATCHED: Duration = Duration::from_millis(500);
/// The longest time for one round of nudges, or for one sweep, so that the poll is not delayed for long.
const LONGEST_STEP: Duration = Duration::from_secs(1);
/// The number of unused rows of locks that a sweep keeps: a lock that is used again needs no new row.
const KEEP_ROWS: u32 = 1000;

/// Polls, renews watches and sweeps until the connection ends.
pub(super) struct Poll {
    connection: Rc<Connection>,
    client: Rc<ClientState<MysqlBackend>>,
    poll_all_at: Instant,
    /// How many rounds of nudges there were.
    rounds: u32,
    /// The wait at which the next nudges begin.
    nudge_from: Option<WaitKey>,
    sweep_at: Instant,
    renew_watch_at: Instant,
}

/// The waits that are queued, with the first lock of each.
type Waits = BTreeMap<WaitKey, (LockName, PollBackoff)>;

impl Poll {
    pub(super) fn new(connection: Rc<Connection>, client: Rc<ClientState<MysqlBackend>>) -> Poll {
        let now = Instant::now();
        Poll {
            connection,
            client,
            poll_all_at: now,
            rounds: 0,
            nudge_from: None,
            sweep_at: now + jittered(SWEEP),
            renew_watch_at: now,
        }
    }

    pub(super) async fn run(mut self) -> Infallible {
        loop {
            tokio::select! {
                () = sleep_until(self.due_at()) => {}
                () = self.client.extra.wake_up.notified() => {}
            }
            if self.poll_all_at <= Instant::now() {
                self.nudge().await;
                self.poll(self.waits(), self.busy_sessions()).await;
                self.poll_all_at = Instant::now() + jittered(POLL_ALL);
            } else {
                let (mut due, limit) = (self.waits(), Instant::now() + SAME_QUERY);
                due.retain(|_, (_, backoff)| backoff.due_at <= limit);
                self.poll(due, Vec::new()).await;
            }
            self.watch().await;
            if self.sweep_at <= Instant::now() {
                sweep(&self.connection).await;
                let is_watched = self.client.extra.last_event.get().is_some();
                self.sweep_at = Instant::now() + jittered(if is_watched { SWEEP_WATCHED } else { SWEEP });
            }
        }
    }

    fn due_at(&self) -> Instant {
        let mut due_at = self.sweep_at;
        if !self.busy_sessions().is_empty() {
            due_at = due_at.min(self.poll_all_at);
        }
        if self.client.extra.last_event.get().is_some() {
            due_at = due_at.min(Instant::now() + READ_EVENTS);
        }
        self.waits().values().map(|(_, backoff)| backoff.due_at).fold(due_at, Instant::min)
    }

    fn waits(&self) -> Waits {
        let waits = self.client.waits(|acquire, wait| Some((acquire.wants.first()?.lock.clone(), wait.clone()?)));
        waits.into_iter().filter_map(|(key, wait)| Some((key, wait?))).collect()
    }

    /// Returns the sessions with grants or waits. For other sessions the next keep-alive is soon enough.
    fn busy_sessions(&self) -> Vec<SessionId> {
        let waiting: HashSet<_> =
            self.client.waits(|_, _| ()).into_iter().map(|((session, _), ())| session).collect();
        let is_busy =
            |session: &SessionId| waiting.contains(session) || !self.client.grants(*session, |_, _| ()).is_empty();
        self.client.sessions().into_iter().filter(is_busy).collect()
    }

    /// Asks MySQL to end the expired sessions and lock-delays that block waits.
    async fn nudge(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        let until = Instant::now() + LONGEST_STEP;
        // A wait that this round does not reach comes first in the next one.
        let mut waits: Vec<_> = self.waits().into_iter().collect();
        waits.sort_by_key(|(key, _)| (Some(*key) < self.nudge_from, *key));
        self.nudge_from = None;
        for (key @ (session, request), (_, backoff)) in waits {
            if backoff.ahead > NEAR && !self.rounds.is_multiple_of(FAR_ROUNDS) {
                continue;
            }
            if Instant::now() >= until {
                self.nudge_from = Some(key);
                return;
            }
            // One call ends a bounded number of expired sessions.
            loop {
                match self.connection.row(format!("CALL palisade_nudge({session}, {request})")).await {
                    Ok(row) => {
                        settle_granted(&self.client, text(&row, 1));
                        if number(&row, 0) != Some(1) || Instant::now() >= until {
                            break;
                        }
                    }
                    Err(failure) => {
                        tracing::debug!(%failure, "cannot nudge a wait");
                        break;
                    }
                }
            }
        }
    }

    /// Fetches the states of waits, whether sessions live, and their notices.
    async fn poll(&self, mut waits: Waits, sessions: Vec<SessionId>) {
        let parts = query(&waits, &sessions);
        if parts.is_empty() {
            return;
        }
        match self.connection.rows(parts.join(" UNION ALL ")).await {
            Ok(rows) => self.handle(&rows, waits, &sessions),
            Err(failure) => {
                tracing::debug!(%failure, "cannot poll waits");
                for (key, (_, backoff)) in &mut waits {
                    backoff.postpone(Instant::now());
                    self.client.wait_extra(*key, |_, wait| *wait = Some(backoff.clone()));
                }
            }
        }
    }

    /// Handles rows of `waits` SESSION NUMBER AHEAD, `held` SESSION NUMBER TOKEN, `lives` SESSION, and `notice` SESSION ID.
    fn handle(&self, rows: &[Row], mut polled: Waits, sessions: &[SessionId]) {
        let (mut lives, mut last_notices) = (HashSet::new(), BTreeMap::new());
        for row in rows {
            let Some(session) = id::<SessionId>(row, 1) else { continue };
            let key = id(row, 2).map(|number| (session, number));
            match text(row, 0).as_deref() {
                Some("waits") => {
                    if let Some((key, (_, mut backoff))) = key.and_then(|key| polled.remove_entry(&key)) {
                        backoff.still_waits(Instant::now(), number(row, 3).unwrap_or(0));
                        self.client.wait_extra(key, |_, wait| *wait = Some(backoff));
                    }
                }
                Some("held") => {
                    let Some(key) = key else { continue };
                    polled.remove(&key);
                    if let Some(token) = id(row, 3) {
                        self.client.settle(key, Ok(token));
                    }
                }
                Some("lives") => drop(lives.insert(session)),
                Some("notice") => {
                    wire::handle_notice(&self.client, &text(row, 4).unwrap_or_default());
                    // A UNION does not keep the order of its parts.
                    let last = last_notices.entry(session).or_insert(0);
                    *last = number(row, 2).unwrap_or(0).max(*last);
                }
                _ => {}
            }
        }
        for session in sessions.iter().filter(|session| !lives.contains(session)) {
            self.client.session_ended(*session, SessionEnd::Expired);
        }
        for (session, last) in last_notices {
            let connection = self.connection.clone();
            // If this fails, the next poll handles the same notices again, which has no effect.
            spawn_local(async move { drop(connection.rows(wire::forget_notices(session, last)).await) });
        }
        for key in polled.into_keys() {
            self.repeat(key);
        }
    }

    /// Repeats an acquire that is not in its queue: a resize has refused it, its session has ended, or it did not arrive.
    fn repeat(&self, key: WaitKey) {
        let taken = self.client.wait_extra(key, |acquire, wait| {
            *wait = None;
            acquire.clone()
        });
        let Some(acquire) = taken else { return };
        let (connection, client) = (self.connection.clone(), self.client.clone());
        spawn_local(async move {
            // A notice says whether a resize has refused it.
            fetch_notices(&client, &connection, key.0).await;
            if !client.is_waiting(key) {
                return;
            }
            match connection.acquire(&acquire).await {
                Ok((AcquireReply::Granted(token), _)) => client.settle(key, Ok(token)),
                Ok((AcquireReply::Queued | AcquireReply::Busy, ahead)) => note_queued(&client, &acquire, ahead),
                // The next poll finds out whether it waits.
                Err(failure) if failure.is_retryable() => note_queued(&client, &acquire, 0),
                Err(Failure::SessionEnded) => client.session_ended(key.0, SessionEnd::Expired),
                Err(failure) => client.settle(key, Err(failure)),
            }
        });
    }

    /// Reads events for the watchers, and renews the lease of the watch.
    async fn watch(&mut self) {
        let position = &self.client.extra.last_event;
        if position.get().is_none() {
            return;
        }
        let is_watched = {
            let mut watchers = self.client.watchers.borrow_mut();
            watchers.forget_closed();
            !watchers.prefixes().is_empty()
        };
        if !is_watched {
            position.set(None);
            return;
        }
        if self.renew_watch_at <= Instant::now() {
            self.renew_watch_at = Instant::now() + RENEW_WATCH;
            let sent_at = BootInstant::now();
            if begin_watch(&self.connection).await.is_ok() {
                self.client.watches_renewed(sent_at, WATCH_LEASE);
            }
        }
        read_events(&self.client, &self.connection).await;
    }
}

/// Fetches the notices of a session.
pub(super) async fn fetch_notices(
    client: &ClientState<MysqlBackend>,
    connection: &Rc<Connection>,
    session: SessionId,
) {
    let Ok(notices) = connection.rows(wire::notices_query(session)).await else { return };
    if let Some(forget) = wire::handle_notices(client, session, &notices) {
        drop(connection.rows(forget).await);
    }
}

/// Sends the next events to watchers. Returns whether there were any.
pub(super) async fn read_events(client: &ClientState<MysqlBackend>, connection: &Rc<Connection>) -> bool {
    let position = &client.extra.last_event;
    let Some(last) = position.get() else { return false };
    let sql = format!("SELECT id, said FROM palisade_event WHERE id > {last} ORDER BY id LIMIT 1000");
    let Ok(rows) = connection.rows(sql).await else { return false };
    let mut watchers = client.watchers.borrow_mut();
    for row in &rows {
        // A concurrent call may have read the same events.
        let (Some(id), Some(last)) = (number(row, 0), position.get()) else { continue };
        if id <= last {
            continue;
        }
        if id > last + 1 {
            watchers.tell_missed();
        }
        for line in text(row, 1).unwrap_or_default().lines() {
            match wire::event(line) {
                Some(event) => watchers.tell(std::slice::from_ref(&event)),
                None => tracing::debug!(line, "MySQL has an event that this build does not understand"),
            }
        }
        position.set(Some(id));
    }
    !rows.is_empty()
}

/// Ends expired sessions and removes unused rows of locks, until there are none left or time is up.
pub(super) async fn sweep(connection: &Rc<Connection>) {
    let until = Instant::now() + LONGEST_STEP;
    while Instant::now() < until {
        match connection.row(format!("CALL palisade_sweep({KEEP_ROWS})")).await {
            Ok(row) if number(&row, 0) == Some(1) => {}
            _ => return,
        }
    }
}

/// Begins or renews a watch. Returns the number of the last event before it.
pub(super) async fn begin_watch(connection: &Rc<Connection>) -> Result<u64, Failure> {
    let row = connection.row(format!("CALL palisade_watch({})", WATCH_LEASE.as_millis())).await?;
    number(&row, 0).ok_or_else(|| connection.peer.unexpected("a watch without a position"))
}

/// Returns the parts of the poll's UNION: for waits, by the primary keys of their rows, and for sessions.
fn query(waits: &Waits, sessions: &[SessionId]) -> Vec<String> {
    let (mut by_session, mut by_lock) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
    for ((session, number), (lock, _)) in waits {
        by_session.entry(session).or_default().push(number.to_string());
        by_lock.entry((session, lock)).or_default().push(number.to_string());
    }
    let mut parts = Vec::new();
    for (session, numbers) in by_session {
        parts.push(format!(
            "SELECT IF(c.waits, 'waits', 'held'), c.session, c.number, IF(c.waits, c.arrival - l.passed - 1, c.token), NULL \
             FROM palisade_claim c JOIN palisade_lock l ON l.name = c.name \
             WHERE c.session = {session} AND c.number IN ({}) AND c.part = 1",
            numbers.join(","),
        ));
    }
    // The grant of a single lock is in the lock's row.
    for ((session, lock), numbers) in by_lock {
        parts.push(format!(
            "SELECT 'held', l.session, l.number, l.token, NULL FROM palisade_lock l \
             WHERE l.name = {} AND l.session = {session} AND l.number IN ({})",
            literal(lock.as_str()),
            numbers.join(","),
        ));
    }
    for session in sessions {
        parts.push(format!(
            "SELECT 'lives', s.id, NULL, NULL, NULL FROM palisade_session s WHERE s.id = {session} AND s.ended IS NULL"
        ));
        parts.push(format!(
            "(SELECT 'notice', n.session, n.id, NULL, n.said FROM palisade_notice n WHERE n.session = {session} ORDER BY n.id)"
        ));
    }
    parts
}
