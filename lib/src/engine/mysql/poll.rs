//! What has to be asked again and again, since nothing is pushed: what became of waits, what sessions are to be told,
//! what happened. One question is about everything that is due.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{LockName, RequestNo, SessionEnd, SessionId, Token};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use super::lasting::{Lasting, Stray, WaitKey};
use super::line::{Line, Said};
use super::sql::{name, number, text};
use super::wait::Pace;
use crate::engine::Failure;
use crate::engine::lines::jittered;

/// What is due so soon is asked for as well.
const TOGETHER: Duration = Duration::from_millis(1);
/// How often a session that holds or wants something is asked for, and what hinders those who wait is looked for.
const LOOK: Duration = Duration::from_millis(400);
/// Those so far behind look for that less often.
const NEAR: u64 = 8;
const FAR: u32 = 10;
/// How often events are read, and for how long they are asked for.
const EVENTS: Duration = Duration::from_millis(40);
const WATCH: Duration = Duration::from_secs(2);
const WATCH_MS: u64 = 10_000;
/// How often sessions that nobody asks for are ended.
const SWEEP: Duration = Duration::from_secs(5);
const SWEEP_WATCHED: Duration = Duration::from_millis(500);
/// How long either goes on at most before something else is done.
const AT_ONCE: Duration = Duration::from_secs(1);
/// So many rows of locks stay, used or not.
const KEEP_ROWS: u32 = 1000;

/// What is done on a line though nobody asks for it.
pub(super) struct Poll {
    line: Rc<Line>,
    lasting: Rc<Lasting>,
    look_at: Instant,
    looks: u32,
    sweep_at: Instant,
    watch_at: Instant,
}

impl Poll {
    pub(super) fn new(line: Rc<Line>, lasting: Rc<Lasting>) -> Poll {
        let now = Instant::now();
        Poll { line, lasting, look_at: now, looks: 0, sweep_at: now + jittered(SWEEP), watch_at: now }
    }

    pub(super) async fn run(mut self, strays: Vec<Stray>) {
        for Stray { session, lock, token } in strays {
            // A crash may have undone its release, or its answer was lost.
            if let Ok(Ok(granted)) = self.line.give_back(session, &lock, token).await {
                self.lasting.settle_granted(&granted);
            }
        }
        loop {
            let due = self.due();
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.lasting.of_all.look.notified() => {}
            }
            if self.look_at <= Instant::now() {
                self.look().await;
                self.look_at = Instant::now() + jittered(LOOK);
            } else {
                self.ask(false).await;
            }
            self.watch().await;
            if self.sweep_at <= Instant::now() {
                sweep(&self.line).await;
                let is_watched = self.lasting.of_all.last_event.get().is_some();
                self.sweep_at = Instant::now() + jittered(if is_watched { SWEEP_WATCHED } else { SWEEP });
            }
        }
    }

    fn due(&self) -> Instant {
        let mut due = self.sweep_at;
        if !self.lasting.busy_sessions().is_empty() {
            due = due.min(self.look_at);
        }
        if self.lasting.of_all.last_event.get().is_some() {
            due = due.min(Instant::now() + EVENTS);
        }
        self.lasting.paces().iter().map(|(_, pace)| pace.due()).fold(due, Instant::min)
    }

    /// Ends what is overdue where somebody here waits, then asks for everything.
    async fn look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        let until = Instant::now() + AT_ONCE;
        for (key, pace) in self.lasting.paces() {
            if pace.ahead() > NEAR && !self.looks.is_multiple_of(FAR) {
                continue;
            }
            let sql = format!("CALL palisade_nudge({}, {})", key.0.get(), key.1.get());
            loop {
                match self.line.row(sql.clone()).await {
                    Ok(row) => {
                        self.lasting.settle_granted(&text(&row, 1).unwrap_or_default());
                        // A call ends a bounded number of dead sessions; with more of them it is called again.
                        if number(&row, 0) != Some(1) || Instant::now() >= until {
                            break;
                        }
                    }
                    Err(failure) => {
                        tracing::debug!(%failure, "what waits could not be looked after");
                        break;
                    }
                }
            }
        }
        self.ask(true).await;
    }

    /// Asks for the waits that are due, and if all are meant for what sessions have to be told.
    async fn ask(&self, is_all: bool) {
        let now = Instant::now();
        let mut due: BTreeMap<WaitKey, Pace> = self.lasting.paces().into_iter().collect();
        due.retain(|_, pace| is_all || pace.due() <= now + TOGETHER);
        let sessions = if is_all { self.lasting.busy_sessions() } else { Vec::new() };
        let waits = due.keys().filter_map(|key| Some((*key, self.lasting.lock_of(*key)?)));
        let parts = question(waits, &sessions);
        if parts.is_empty() {
            return;
        }
        match self.line.rows(parts.join(" UNION ALL ")).await {
            Ok(rows) => self.take_in(&rows, due, &sessions),
            Err(failure) => {
                tracing::debug!(%failure, "what waits could not be asked for");
                for (key, mut pace) in due {
                    pace.put_off(Instant::now());
                    self.lasting.note_pace(key, Some(pace));
                }
            }
        }
    }

    /// What is: SESSION, NUMBER and AHEAD of a wait, SESSION, NUMBER and TOKEN of a grant, SESSION that lives, and NOTICE.
    fn take_in(&self, rows: &[mysql_async::Row], mut asked: BTreeMap<WaitKey, Pace>, sessions: &[SessionId]) {
        let now = Instant::now();
        let (mut lives, mut heard) = (HashSet::new(), BTreeMap::new());
        for row in rows {
            let Some(session) = number(row, 1).and_then(|id| SessionId::new(id).ok()) else { continue };
            let request = || RequestNo::new(number(row, 2)?).ok();
            match text(row, 0).as_deref() {
                Some("waits") => {
                    let Some((key, mut pace)) = request().and_then(|no| asked.remove_entry(&(session, no))) else {
                        continue;
                    };
                    pace.saw(now, number(row, 3).unwrap_or(0));
                    self.lasting.note_pace(key, Some(pace));
                }
                Some("held") => {
                    let Some(request) = request() else { continue };
                    asked.remove(&(session, request));
                    if let Some(token) = number(row, 3).and_then(|token| Token::new(token).ok()) {
                        self.lasting.settle((session, request), Ok(token));
                    }
                }
                Some("lives") => drop(lives.insert(session)),
                Some("notice") => {
                    self.lasting.heed(&text(row, 4).unwrap_or_default());
                    heard.insert(session, number(row, 2).unwrap_or(0));
                }
                _ => {}
            }
        }
        for session in sessions.iter().filter(|session| !lives.contains(session)) {
            self.lasting.session_ended(*session, SessionEnd::Expired);
        }
        for (session, id) in heard {
            let (line, lasting) = (self.line.clone(), self.lasting.clone());
            // What is not forgotten now is said again, and heard by nobody.
            spawn_local(async move { lasting.heard(&line, session, id).await });
        }
        for key in asked.into_keys() {
            self.ask_again(key);
        }
    }

    /// A wait that is not in its queue: it was refused after all, its session has ended, or it never arrived. It is asked
    /// for again.
    fn ask_again(&self, key: WaitKey) {
        self.lasting.note_pace(key, None);
        let Some(ask) = self.lasting.ask_of(key) else { return };
        let (line, lasting) = (self.line.clone(), self.lasting.clone());
        spawn_local(async move {
            // It may have been refused after all.
            lasting.hear(&line, key.0).await;
            if lasting.ask_of(key).is_none() {
                return;
            }
            match line.acquire(&ask).await {
                Ok(Said::Granted(token)) => lasting.settle(key, Ok(token)),
                Ok(Said::Queued(_) | Said::Busy) => lasting.queued(key, 0),
                // The next line asks again.
                Err(Failure::Unavailable(why)) if why.is_retryable => lasting.queued(key, 0),
                Err(failure) => lasting.settle(key, Err(failure)),
            }
        });
    }

    /// Reads what happened, if anybody wants to know, and keeps on wanting to.
    async fn watch(&mut self) {
        let Some(last) = self.lasting.of_all.last_event.get() else { return };
        {
            let mut watchers = self.lasting.watchers.borrow_mut();
            watchers.forget_closed();
            if watchers.prefixes().is_empty() {
                self.lasting.of_all.last_event.set(None);
                return;
            }
        }
        if self.watch_at <= Instant::now() {
            self.watch_at = Instant::now() + WATCH;
            drop(begin_watch(&self.line).await);
        }
        self.lasting.read_events(&self.line, last).await;
    }
}

/// Ends sessions that are overdue, and removes rows of unused locks, while there is anything to do.
pub(super) async fn sweep(line: &Rc<Line>) {
    let until = Instant::now() + AT_ONCE;
    let sql = format!("CALL palisade_sweep({KEEP_ROWS})");
    while Instant::now() < until {
        match line.row(sql.clone()).await {
            Ok(row) if number(&row, 0) == Some(1) => {}
            _ => return,
        }
    }
}

/// Wants to know what happens from now on; says which event was the last.
pub(super) async fn begin_watch(line: &Rc<Line>) -> Result<u64, Failure> {
    let row = line.row(format!("CALL palisade_watch({WATCH_MS})")).await?;
    number(&row, 0).ok_or_else(|| line.unexpected("no number of an event"))
}

/// The parts of the question: for waits, each by the key of its row, and for sessions.
fn question(waits: impl Iterator<Item = (WaitKey, LockName)>, sessions: &[SessionId]) -> Vec<String> {
    let (mut by_session, mut by_lock) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
    for ((session, number), lock) in waits {
        by_session.entry(session).or_default().push(number.get().to_string());
        by_lock.entry((session, lock)).or_default().push(number.get().to_string());
    }
    let mut parts = Vec::new();
    for (session, numbers) in by_session {
        parts.push(format!(
            "SELECT IF(c.waits, 'waits', 'held'), c.session, c.number, IF(c.waits, c.arrival - l.passed - 1, c.token), NULL \
             FROM palisade_claim c JOIN palisade_lock l ON l.name = c.name \
             WHERE c.session = {} AND c.number IN ({}) AND c.part = 1",
            session.get(),
            numbers.join(","),
        ));
    }
    for ((session, lock), numbers) in by_lock {
        parts.push(format!(
            "SELECT 'held', l.session, l.number, l.token, NULL FROM palisade_lock l \
             WHERE l.name = {} AND l.session = {} AND l.number IN ({})",
            name(&lock),
            session.get(),
            numbers.join(","),
        ));
    }
    for session in sessions {
        let session = session.get();
        parts.push(format!(
            "SELECT 'lives', s.id, NULL, NULL, NULL FROM palisade_session s WHERE s.id = {session} AND s.ended IS NULL"
        ));
        parts.push(format!(
            "(SELECT 'notice', n.session, n.id, NULL, n.said FROM palisade_notice n WHERE n.session = {session} ORDER BY n.id)"
        ));
    }
    parts
}
