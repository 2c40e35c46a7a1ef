//! What outlives a line: sessions, waits and watches. Whatever line comes next takes them up again.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Ending, Event, LockName, RequestNo, SessionEnd, SessionId, Token, Ttl};
use tokio::sync::{mpsc, oneshot};

use super::DataLost;
use super::numbers::Numbers;
use super::push::{Push, taken_unseen};
use super::question::Question;
use crate::engine::host::Listeners;
use crate::engine::{Failure, Notice, Opened, Watched};

/// Names a request that waits.
pub(super) type WaitKey = (SessionId, RequestNo);

#[derive(Default)]
pub(super) struct Lasting {
    sessions: RefCell<HashMap<SessionId, Kept>>,
    waits: RefCell<HashMap<WaitKey, Wait>>,
    watchers: RefCell<Listeners>,
}

/// A session that was opened here.
struct Kept {
    ttl: Ttl,
    notices: mpsc::UnboundedSender<Notice>,
    numbers: Numbers,
    /// What it holds, as far as was answered here, and was not asked to be released.
    held: HashMap<Token, Held>,
}

/// A grant.
struct Held {
    lock: LockName,
    /// Its request was sent once only.
    is_once: bool,
}

struct Wait {
    question: Question,
    lock: LockName,
    told: oneshot::Sender<Result<Token, Failure>>,
}

impl Lasting {
    pub(super) fn opened(&self, session: SessionId, ttl: Ttl) -> Opened {
        let (sender, notices) = mpsc::unbounded_channel();
        let kept = Kept { ttl, notices: sender, numbers: Numbers::default(), held: HashMap::new() };
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

    pub(super) fn ttl(&self, session: SessionId) -> Option<Duration> {
        self.sessions.borrow().get(&session).map(|kept| Duration::from_millis(kept.ttl.as_ms()))
    }

    pub(super) fn shortest_ttl(&self) -> Option<Duration> {
        self.sessions.borrow().values().map(|kept| Duration::from_millis(kept.ttl.as_ms())).min()
    }

    /// What is done with a session's numbers; without effect for a session that is not of this client.
    pub(super) fn number<T: Default>(&self, session: SessionId, change: impl FnOnce(&mut Numbers) -> T) -> T {
        self.sessions.borrow_mut().get_mut(&session).map(|kept| change(&mut kept.numbers)).unwrap_or_default()
    }

    pub(super) fn note_held(&self, (session, number): WaitKey, token: Token, lock: LockName) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            let is_once = kept.numbers.is_once(number);
            kept.held.insert(token, Held { lock, is_once });
        }
    }

    /// It was not given back after all.
    pub(super) fn note_still_held(&self, session: SessionId, token: Token, lock: LockName) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            kept.held.insert(token, Held { lock, is_once: false });
        }
    }

    /// A lock of each grant that a session holds, as far as is known here.
    pub(super) fn held(&self, session: SessionId) -> Vec<(LockName, Token)> {
        let sessions = self.sessions.borrow();
        let held = sessions.get(&session).into_iter().flat_map(|kept| &kept.held);
        held.map(|(token, held)| (held.lock.clone(), *token)).collect()
    }

    /// If it was known to be held, whether its request was sent once only.
    pub(super) fn note_given_back(&self, session: SessionId, token: Token) -> Option<bool> {
        self.sessions.borrow_mut().get_mut(&session)?.held.remove(&token).map(|held| held.is_once)
    }

    /// What a session holds, now that a new line has been told: whatever is missing was taken away meanwhile.
    pub(super) fn compare_held(&self, session: SessionId, held: &[Token]) {
        let held: HashSet<_> = held.iter().collect();
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            for (token, _) in kept.held.extract_if(|token, _| !held.contains(token)) {
                // Nobody listens for a session that was given up.
                drop(kept.notices.send(Notice::GrantEnded { token, how: taken_unseen(token) }));
            }
        }
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

    /// Nothing that was held is certain any more.
    pub(super) fn data_lost(&self, lost: &DataLost) {
        for (_, kept) in self.sessions.borrow_mut().drain() {
            drop(kept.notices.send(Notice::DataLost { what: lost.to_string() }));
        }
        for (_, wait) in self.waits.borrow_mut().drain() {
            drop(wait.told.send(Err(lost.failure())));
        }
        self.watchers.borrow_mut().tell_missed();
    }

    /// Begins a wait, which lasts until it is settled or dropped.
    pub(super) fn wait(self: &Rc<Self>, key: WaitKey, lock: LockName, question: Question) -> Waiting {
        let (told, outcome) = oneshot::channel();
        self.waits.borrow_mut().insert(key, Wait { question, lock, told });
        Waiting { key, outcome, lasting: self.clone() }
    }

    /// Everything that waits, in the order in which it began.
    pub(super) fn waits(&self) -> Vec<(WaitKey, Question)> {
        let mut waits: Vec<_> = self.waits.borrow().iter().map(|(key, wait)| (*key, wait.question.clone())).collect();
        waits.sort_unstable_by_key(|(key, _)| *key);
        waits
    }

    pub(super) fn waiting(&self) -> Vec<WaitKey> {
        self.waits.borrow().keys().copied().collect()
    }

    /// A wait is over. One that nobody waits for any more is cancelled by the keeper, who learns of the grant then.
    pub(super) fn settle(&self, key: WaitKey, outcome: Result<Token, Failure>) {
        let Some(wait) = self.waits.borrow_mut().remove(&key) else { return };
        if let Ok(token) = outcome {
            self.note_held(key, token, wait.lock);
        }
        drop(wait.told.send(outcome));
    }

    pub(super) fn watch(&self, prefix: &str) -> mpsc::Receiver<Watched> {
        self.watchers.borrow_mut().watch(prefix.to_owned())
    }

    /// Whether somebody here watches.
    pub(super) fn is_watching(&self) -> bool {
        self.watchers.borrow().is_watching()
    }

    /// Events may be missing from here on.
    pub(super) fn note_missed(&self) {
        self.watchers.borrow_mut().tell_missed();
    }

    pub(super) fn watched(&self, events: &[Event]) {
        self.watchers.borrow_mut().tell(events);
    }

    /// Takes in what Redis says unasked.
    pub(super) fn heed(&self, push: Push) {
        match push {
            Push::Waited { session, number, outcome } => self.settle((session, number), outcome),
            Push::SessionEnded { session, how } => self.session_ended(session, how),
            Push::Forced { session, token, force } => {
                if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
                    kept.held.remove(&token);
                    drop(kept.notices.send(Notice::GrantEnded { token, how: Ending::Forced(Arc::new(force)) }));
                }
            }
        }
    }
}

/// A request that waits. Dropping it ends the wait here; Redis learns of that by a cancel.
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
        // The same request may wait again already.
        if waits.get(&self.key).is_some_and(|wait| wait.told.is_closed()) {
            waits.remove(&self.key);
        }
    }
}
