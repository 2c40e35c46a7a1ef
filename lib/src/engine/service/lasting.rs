//! What outlives a line: sessions, waits and watches. Whatever line comes next takes them up again.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Ending, RequestNo, SessionEnd, SessionId, Token, Ttl};
use tokio::sync::{mpsc, oneshot};

use super::command::Command;
use super::push::{Push, taken_unseen};
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
    /// What it holds, as far as was answered here, and was not asked to be released.
    held: HashSet<Token>,
}

struct Wait {
    command: Command,
    told: oneshot::Sender<Result<Token, Failure>>,
}

impl Lasting {
    pub(super) fn opened(&self, session: SessionId, ttl: Ttl) -> Opened {
        let (sender, notices) = mpsc::unbounded_channel();
        self.sessions.borrow_mut().insert(session, Kept { ttl, notices: sender, held: HashSet::new() });
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

    pub(super) fn note_held(&self, session: SessionId, token: Token) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            kept.held.insert(token);
        }
    }

    /// Whether it was known to be held.
    pub(super) fn note_given_back(&self, session: SessionId, token: Token) -> bool {
        self.sessions.borrow_mut().get_mut(&session).is_some_and(|kept| kept.held.remove(&token))
    }

    /// What a session holds, now that a new line has been told: whatever is missing was taken away meanwhile.
    pub(super) fn compare_held(&self, session: SessionId, held: &HashSet<Token>) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            for token in kept.held.extract_if(|token| !held.contains(token)) {
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

    fn grant_ended(&self, session: SessionId, token: Token, how: Ending) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            kept.held.remove(&token);
            drop(kept.notices.send(Notice::GrantEnded { token, how }));
        }
    }

    /// Begins a wait, which lasts until it is settled or dropped.
    pub(super) fn wait(self: &Rc<Self>, key: WaitKey, command: Command) -> Waiting {
        let (told, outcome) = oneshot::channel();
        self.waits.borrow_mut().insert(key, Wait { command, told });
        Waiting { key, outcome, lasting: self.clone() }
    }

    /// Everything that waits, in the order in which it began.
    pub(super) fn waits(&self) -> Vec<(WaitKey, Command)> {
        let mut waits: Vec<_> = self.waits.borrow().iter().map(|(key, wait)| (*key, wait.command.clone())).collect();
        waits.sort_unstable_by_key(|(key, _)| *key);
        waits
    }

    /// A wait is over. One that nobody waits for any more is cancelled by the keeper, who learns of the grant then.
    pub(super) fn settle(&self, key: WaitKey, outcome: Result<Token, Failure>) {
        let Some(wait) = self.waits.borrow_mut().remove(&key) else { return };
        if let Ok(token) = outcome {
            self.note_held(key.0, token);
        }
        drop(wait.told.send(outcome));
    }

    pub(super) fn watch(&self, prefix: &str) -> mpsc::Receiver<Watched> {
        self.watchers.borrow_mut().watch(prefix.to_owned())
    }

    /// What is watched, and by somebody.
    pub(super) fn watched(&self) -> Vec<String> {
        let mut watchers = self.watchers.borrow_mut();
        drop(watchers.forget_closed());
        watchers.prefixes()
    }

    /// It may not be watched any more.
    pub(super) fn end_watch(&self, prefix: &str) {
        self.watchers.borrow_mut().end_watch(prefix);
    }

    /// Events may be missing from here on.
    pub(super) fn note_missed(&self) {
        self.watchers.borrow_mut().tell_missed();
    }

    /// Takes in what the service says unasked; returns what need not be watched any more.
    pub(super) fn heed(&self, push: Push) -> Vec<String> {
        match push {
            Push::Waited { session, number, outcome } => self.settle((session, number), outcome),
            Push::Lost { session, token, how } => self.grant_ended(session, token, how),
            Push::SessionEnded { session, how } => self.session_ended(session, how),
            Push::Event(event) => {
                let mut watchers = self.watchers.borrow_mut();
                let unwatched = watchers.forget_closed();
                watchers.tell(std::slice::from_ref(&event));
                return unwatched;
            }
            Push::Unknown => {}
        }
        Vec::new()
    }
}

/// A request that waits. Dropping it ends the wait here; the service learns of that by a cancel.
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
