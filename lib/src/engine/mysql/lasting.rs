//! What outlives a line: sessions, waits and watches. Whatever line comes next takes them up again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Acquire, Ending, LockName, RequestNo, SessionEnd, SessionId, Token, Ttl};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::line::{Line, number, text};
use super::said::{self, Told, taken_unseen};
use super::wait::Pace;
use crate::engine::host::Listeners;
use crate::engine::{Failure, Notice, Opened, Watched};

/// Names a request that waits.
pub(super) type WaitKey = (SessionId, RequestNo);

#[derive(Default)]
pub(super) struct Lasting {
    sessions: RefCell<HashMap<SessionId, Kept>>,
    waits: RefCell<HashMap<WaitKey, Wait>>,
    pub(super) watchers: RefCell<Listeners>,
    /// The last event that watchers were told of; `None` if nobody watches.
    pub(super) last_event: Cell<Option<u64>>,
    /// Something began to wait, or to watch.
    pub(super) look: Notify,
}

/// A session that was opened here.
struct Kept {
    ttl: Ttl,
    notices: mpsc::UnboundedSender<Notice>,
    /// What it holds, as far as was answered here, and was not asked to be released.
    held: HashMap<Token, LockName>,
    /// How often the server says that it was kept alive.
    kept: u64,
}

struct Wait {
    ask: Acquire,
    told: oneshot::Sender<Result<Token, Failure>>,
    /// Once it is in the queue.
    pace: Option<Pace>,
}

/// What a session holds that nobody here knows of.
pub(super) struct Stray {
    pub(super) session: SessionId,
    pub(super) lock: LockName,
    pub(super) token: Token,
}

impl Lasting {
    pub(super) fn opened(&self, session: SessionId, ttl: Ttl) -> Opened {
        let (sender, notices) = mpsc::unbounded_channel();
        let kept = Kept { ttl, notices: sender, held: HashMap::new(), kept: 0 };
        self.sessions.borrow_mut().insert(session, kept);
        Opened { session, notices, lifeline: None }
    }

    /// A session is somebody else's business from now on, or nobody's.
    pub(super) fn forget(&self, session: SessionId) {
        self.sessions.borrow_mut().remove(&session);
    }

    /// The sessions that somebody here still wants.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|_, kept| !kept.notices.is_closed());
        sessions.keys().copied().collect()
    }

    /// Those that hold something or wait for something: others learn with their next keep-alive what became of them.
    pub(super) fn busy_sessions(&self) -> Vec<SessionId> {
        let waits = self.waits.borrow();
        let is_busy = |session: &SessionId| {
            let holds = self.sessions.borrow().get(session).is_some_and(|kept| !kept.held.is_empty());
            holds || waits.keys().any(|(of, _)| of == session)
        };
        self.sessions().into_iter().filter(is_busy).collect()
    }

    pub(super) fn ttl(&self, session: SessionId) -> Option<Duration> {
        self.sessions.borrow().get(&session).map(|kept| Duration::from_millis(kept.ttl.as_ms()))
    }

    pub(super) fn shortest_ttl(&self) -> Option<Duration> {
        self.sessions.borrow().values().map(|kept| Duration::from_millis(kept.ttl.as_ms())).min()
    }

    /// The server has kept it alive so often. False if it had done so more often before: it has gone back.
    pub(super) fn note_kept(&self, session: SessionId, times: u64) -> bool {
        let mut sessions = self.sessions.borrow_mut();
        let Some(kept) = sessions.get_mut(&session) else { return true };
        let goes_on = times >= kept.kept;
        kept.kept = kept.kept.max(times);
        goes_on
    }

    pub(super) fn note_held(&self, session: SessionId, token: Token, lock: &LockName) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            kept.held.insert(token, lock.clone());
        }
    }

    /// Whether it was known to be held.
    pub(super) fn note_given_back(&self, session: SessionId, token: Token) -> bool {
        self.sessions.borrow_mut().get_mut(&session).is_some_and(|kept| kept.held.remove(&token).is_some())
    }

    /// What a session holds, and under which number, as the store says. What is missing was taken away meanwhile; what
    /// was waited for is granted; the rest is nobody's, and is returned.
    pub(super) fn compare_held(
        &self,
        session: SessionId,
        found: &BTreeMap<Token, (LockName, Option<RequestNo>)>,
    ) -> Vec<Stray> {
        let mut unknown = Vec::new();
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            for (token, _) in kept.held.extract_if(|token, _| !found.contains_key(token)) {
                // Nobody listens for a session that was given up.
                drop(kept.notices.send(Notice::GrantEnded { token, how: taken_unseen(token) }));
            }
            unknown.extend(found.iter().filter(|(token, _)| !kept.held.contains_key(token)));
        }
        let mut strays = Vec::new();
        for (token, (lock, number)) in unknown {
            let is_waited_for = number.is_some_and(|number| self.waits.borrow().contains_key(&(session, number)));
            match number {
                Some(number) if is_waited_for => self.settle((session, *number), Ok(*token)),
                _ => strays.push(Stray { session, lock: lock.clone(), token: *token }),
            }
        }
        strays
    }

    pub(super) fn session_ended(&self, session: SessionId, how: SessionEnd) {
        if let Some(kept) = self.sessions.borrow_mut().remove(&session) {
            drop(kept.notices.send(Notice::SessionEnded(how)));
        }
        let over: Vec<_> = self.waits.borrow_mut().extract_if(|(of, _), _| *of == session).collect();
        for (_, wait) in over {
            drop(wait.told.send(Err(Failure::SessionEnded)));
        }
    }

    fn grant_ended(&self, session: SessionId, token: Token, how: Ending) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            kept.held.remove(&token);
            drop(kept.notices.send(Notice::GrantEnded { token, how }));
        }
    }

    /// Begins a wait, which lasts until it is settled or dropped.
    pub(super) fn wait(self: &Rc<Self>, key: WaitKey, ask: Acquire) -> Waiting {
        let (told, outcome) = oneshot::channel();
        self.waits.borrow_mut().insert(key, Wait { ask, told, pace: None });
        Waiting { key, outcome, lasting: self.clone() }
    }

    /// It is in the queue.
    pub(super) fn queued(&self, key: WaitKey) {
        if let Some(wait) = self.waits.borrow_mut().get_mut(&key) {
            wait.pace = Some(Pace::new(Instant::now()));
            self.look.notify_one();
        }
    }

    /// All that waits in queues, as it was seen last.
    pub(super) fn paces(&self) -> Vec<(WaitKey, Pace)> {
        self.waits.borrow().iter().filter_map(|(key, wait)| Some((*key, wait.pace.clone()?))).collect()
    }

    /// A wait was seen, in its queue or not: then it has to be asked for again.
    pub(super) fn note_pace(&self, key: WaitKey, pace: Option<Pace>) {
        if let Some(wait) = self.waits.borrow_mut().get_mut(&key) {
            wait.pace = pace;
        }
    }

    pub(super) fn ask_of(&self, key: WaitKey) -> Option<Acquire> {
        self.waits.borrow().get(&key).map(|wait| wait.ask.clone())
    }

    /// Everything that waits, in the order in which it began.
    pub(super) fn waits(&self) -> Vec<(WaitKey, Acquire)> {
        let mut waits: Vec<_> = self.waits.borrow().iter().map(|(key, wait)| (*key, wait.ask.clone())).collect();
        waits.sort_unstable_by_key(|(key, _)| *key);
        waits
    }

    /// A wait is over. One that nobody waits for any more is cancelled by the keeper, who learns of the grant then.
    pub(super) fn settle(&self, key: WaitKey, outcome: Result<Token, Failure>) {
        let Some(wait) = self.waits.borrow_mut().remove(&key) else { return };
        if let Ok(token) = outcome {
            self.note_held(key.0, token, &wait.ask.wants[0].lock);
        }
        drop(wait.told.send(outcome));
    }

    /// Those who were granted something by what was done here, as far as they wait here.
    pub(super) fn settle_granted(&self, granted: &str) {
        for (session, number, token) in said::granted(granted) {
            self.settle((session, number), Ok(token));
        }
    }

    /// Everything that happens after this event.
    pub(super) async fn watch(&self, line: &Rc<Line>, prefix: &str, last: u64) -> mpsc::Receiver<Watched> {
        // What others here have yet to be told is not for this one.
        while let Some(read) = self.last_event.get().filter(|read| *read < last)
            && self.read_events(line, read).await
        {}
        let from = self.last_event.get().map_or(last, |read| read.max(last));
        self.last_event.set(Some(from));
        self.look.notify_one();
        self.watchers.borrow_mut().watch(prefix.to_owned())
    }

    /// Tells what happened after this event to those who watch; whether there was anything.
    pub(super) async fn read_events(&self, line: &Rc<Line>, last: u64) -> bool {
        let sql = format!("SELECT id, said FROM palisade_event WHERE id > {last} ORDER BY id LIMIT 1000");
        let Ok(rows) = line.rows(sql).await else { return false };
        let mut watchers = self.watchers.borrow_mut();
        for row in &rows {
            // Somebody else may have read at the same time.
            let (Some(id), Some(last)) = (number(row, 0), self.last_event.get()) else { continue };
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
            self.last_event.set(Some(id));
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

/// A request that waits. Dropping it ends the wait here; the store learns of that by a cancel.
pub(super) struct Waiting {
    key: WaitKey,
    outcome: oneshot::Receiver<Result<Token, Failure>>,
    lasting: Rc<Lasting>,
}

impl Waiting {
    pub(super) async fn outcome(mut self) -> Result<Token, Failure> {
        (&mut self.outcome).await.unwrap_or(Err(Failure::SessionEnded))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.outcome.close();
        let mut waits = self.lasting.waits.borrow_mut();
        // Another wait may have been begun under the same key.
        if waits.get(&self.key).is_some_and(|wait| wait.told.is_closed()) {
            waits.remove(&self.key);
        }
    }
}
