//! What outlives a line to MySQL, and what sessions and watchers are told.

use std::cell::Cell;
use std::rc::Rc;

use palisade_core::{Acquire, LockName, RequestNo, SessionId};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::line::Line;
use super::said::{self, Told};
use super::sql::{number, text};
use super::wait::Pace;
use crate::engine::Watched;
use crate::engine::lasting::{self, Keeps};

pub(super) use crate::engine::lasting::{Stray, WaitKey};

pub(super) type Lasting = lasting::Lasting<AtMySql>;

pub(super) struct AtMySql;

impl Keeps for AtMySql {
    type Ask = Asked;
    type Held = LockName;
    /// How often the server says that it was kept alive.
    type OfSession = u64;
    type OfAll = Looking;
    const TAKEN_UNSEEN: &'static str = "unknown, as the line to MySQL was broken at that time";

    fn held(asked: &Asked, _: RequestNo, _: &u64) -> LockName {
        asked.ask.wants[0].lock.clone()
    }
}

/// A request that waits.
pub(super) struct Asked {
    ask: Acquire,
    /// Once it is in the queue.
    pace: Option<Pace>,
}

impl From<Acquire> for Asked {
    fn from(ask: Acquire) -> Asked {
        Asked { ask, pace: None }
    }
}

/// What is looked at again and again.
#[derive(Default)]
pub(super) struct Looking {
    /// The last event that watchers were told of; `None` if nobody watches.
    pub(super) last_event: Cell<Option<u64>>,
    /// Something began to wait, or to watch.
    pub(super) look: Notify,
}

impl Lasting {
    /// Those that hold something or wait for something: others learn with their next keep-alive what became of them.
    pub(super) fn busy_sessions(&self) -> Vec<SessionId> {
        let waits = self.waits(|_| ());
        let is_busy = |session: &SessionId| {
            !self.held(*session, |_, _| ()).is_empty() || waits.iter().any(|((of, _), ())| of == session)
        };
        self.sessions().into_iter().filter(is_busy).collect()
    }

    /// The server has kept it alive so often. False if it had done so more often before: it has gone back.
    pub(super) fn note_kept(&self, session: SessionId, times: u64) -> bool {
        let note = |kept: &mut u64| {
            let goes_on = times >= *kept;
            *kept = times.max(*kept);
            goes_on
        };
        self.of_session(session, note).unwrap_or(true)
    }

    /// It is in the queue, behind so many.
    pub(super) fn queued(&self, key: WaitKey, ahead: u64) {
        if self.of_wait(key, |wait| wait.pace = Some(Pace::new(Instant::now(), ahead))).is_some() {
            self.of_all.look.notify_one();
        }
    }

    /// All that waits in queues, as it was seen last.
    pub(super) fn paces(&self) -> Vec<(WaitKey, Pace)> {
        let paces = self.waits(|wait| wait.pace.clone());
        paces.into_iter().filter_map(|(key, pace)| Some((key, pace?))).collect()
    }

    /// A wait was seen, in its queue or not: then it has to be asked for again.
    pub(super) fn note_pace(&self, key: WaitKey, pace: Option<Pace>) {
        self.of_wait(key, |wait| wait.pace = pace);
    }

    pub(super) fn ask_of(&self, key: WaitKey) -> Option<Acquire> {
        self.of_wait(key, |wait| wait.ask.clone())
    }

    /// The first lock that a wait is for: if it is for one alone, and granted, it is in that one's row.
    pub(super) fn lock_of(&self, key: WaitKey) -> Option<LockName> {
        self.of_wait(key, |wait| wait.ask.wants.first().map(|want| want.lock.clone())).flatten()
    }

    /// Everything that is asked again.
    pub(super) fn asks(&self) -> Vec<(WaitKey, Acquire)> {
        self.waits(|wait| wait.ask.clone())
    }

    /// Settles the waits of this client that were granted by a call, of which these are the events.
    pub(super) fn settle_granted(&self, events: &str) {
        for (session, number, token) in said::granted(events) {
            self.settle((session, number), Ok(token));
        }
    }

    /// Everything that happens after this event.
    pub(super) async fn watch_from(&self, line: &Rc<Line>, prefix: &str, last: u64) -> mpsc::Receiver<Watched> {
        // What others here have yet to be told is not for this one.
        while let Some(read) = self.of_all.last_event.get().filter(|read| *read < last)
            && self.read_events(line, read).await
        {}
        let from = self.of_all.last_event.get().map_or(last, |read| read.max(last));
        self.of_all.last_event.set(Some(from));
        self.of_all.look.notify_one();
        self.watch(prefix)
    }

    /// Tells what happened after this event to those who watch; whether there was anything.
    pub(super) async fn read_events(&self, line: &Rc<Line>, last: u64) -> bool {
        let sql = format!("SELECT id, said FROM palisade_event WHERE id > {last} ORDER BY id LIMIT 1000");
        let Ok(rows) = line.rows(sql).await else { return false };
        let mut watchers = self.watchers.borrow_mut();
        for row in &rows {
            // Somebody else may have read at the same time.
            let (Some(id), Some(last)) = (number(row, 0), self.of_all.last_event.get()) else { continue };
            if id <= last {
                continue;
            }
            if id > last + 1 {
                watchers.tell_missed();
            }
            for line in text(row, 1).unwrap_or_default().lines() {
                match said::event(line) {
                    Some(event) => watchers.tell(std::slice::from_ref(&event)),
                    None => tracing::debug!(line, "MySQL said something that this build does not understand"),
                }
            }
            self.of_all.last_event.set(Some(id));
        }
        !rows.is_empty()
    }

    /// Asks what a session has to be told.
    pub(super) async fn hear(&self, line: &Rc<Line>, session: SessionId) {
        let sql = format!("SELECT id, said FROM palisade_notice WHERE session = {} ORDER BY id", session.get());
        let Ok(notices) = line.rows(sql).await else { return };
        for notice in &notices {
            self.heed(&text(notice, 1).unwrap_or_default());
        }
        if let Some(last) = notices.last().and_then(|notice| number(notice, 0)) {
            self.heard(line, session, last).await;
        }
    }

    /// What a session was told need not be said again.
    pub(super) async fn heard(&self, line: &Rc<Line>, session: SessionId, last: u64) {
        drop(line.rows(format!("CALL palisade_heard({}, {last})", session.get())).await);
    }

    /// Takes in what a session is told.
    pub(super) fn heed(&self, text: &str) {
        match said::told(text) {
            Some(Told::Granted { session, number, token }) => self.settle((session, number), Ok(token)),
            Some(Told::Lost { session, token, how }) => self.grant_ended(session, token, how),
            Some(Told::Refused { session, number, refusal }) => self.settle((session, number), Err(refusal.into())),
            None => tracing::debug!(text, "MySQL said something that this build does not understand"),
        }
    }
}
