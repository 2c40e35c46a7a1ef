//! What outlives a line to where locks are kept: sessions, what they hold, waits and watches. Whatever line comes next takes
//! them up again. Each engine on a line keeps something of its own beside it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Ending, Force, Label, LockName, RequestNo, SessionEnd, SessionId, Token, Ttl};
use tokio::sync::{mpsc, oneshot};

use super::host::Subscriptions;
use super::{Failure, Notice, Opened, Watched};

/// Names a request that waits.
pub(super) type WaitKey = (SessionId, RequestNo);

/// What an engine keeps of its own.
pub(super) trait Keeps: 'static {
    /// What a wait is: enough to ask for it again on another line.
    type Ask;
    /// What is known of a grant.
    type Held;
    /// What is kept with a session.
    type OfSession: Default;
    /// What is kept with everything.
    type OfAll: Default;
    /// Why a grant is gone whose session lives, when nobody here was told.
    const TAKEN_UNSEEN: &'static str;

    /// What is known of the grant that a wait has come to.
    fn held(ask: &Self::Ask, number: RequestNo, of_session: &Self::OfSession) -> Self::Held;
}

pub(super) struct Lasting<K: Keeps> {
    sessions: RefCell<HashMap<SessionId, Kept<K>>>,
    waits: RefCell<HashMap<WaitKey, Wait<K>>>,
    pub(super) watchers: RefCell<Subscriptions>,
    pub(super) of_all: K::OfAll,
}

/// A session that was opened here.
struct Kept<K: Keeps> {
    ttl: Ttl,
    notices: mpsc::UnboundedSender<Notice>,
    /// What it holds, as far as was answered here, and was not asked to be released.
    held: HashMap<Token, K::Held>,
    of_session: K::OfSession,
}

struct Wait<K: Keeps> {
    ask: K::Ask,
    told: oneshot::Sender<Result<Token, Failure>>,
}

impl<K: Keeps> Default for Lasting<K> {
    fn default() -> Lasting<K> {
        let (sessions, waits, watchers) = (RefCell::default(), RefCell::default(), RefCell::default());
        Lasting { sessions, waits, watchers, of_all: K::OfAll::default() }
    }
}

impl<K: Keeps> Lasting<K> {
    pub(super) fn opened(&self, session: SessionId, ttl: Ttl) -> Opened {
        let (sender, notices) = mpsc::unbounded_channel();
        let (held, of_session) = (HashMap::new(), K::OfSession::default());
        self.sessions.borrow_mut().insert(session, Kept { ttl, notices: sender, held, of_session });
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

    /// What is kept with a session, if it is of this client.
    pub(super) fn of_session<T>(&self, session: SessionId, change: impl FnOnce(&mut K::OfSession) -> T) -> Option<T> {
        self.sessions.borrow_mut().get_mut(&session).map(|kept| change(&mut kept.of_session))
    }

    pub(super) fn note_held(&self, session: SessionId, token: Token, held: K::Held) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            kept.held.insert(token, held);
        }
    }

    /// What was known of it, if it was known to be held.
    pub(super) fn note_given_back(&self, session: SessionId, token: Token) -> Option<K::Held> {
        self.sessions.borrow_mut().get_mut(&session)?.held.remove(&token)
    }

    /// What a session holds, as far as is known here.
    pub(super) fn held<T>(&self, session: SessionId, each: impl Fn(Token, &K::Held) -> T) -> Vec<T> {
        let sessions = self.sessions.borrow();
        let held = sessions.get(&session).into_iter().flat_map(|kept| &kept.held);
        held.map(|(token, held)| each(*token, held)).collect()
    }

    /// What a session held and is not there any more was taken away while nobody here was told.
    pub(super) fn end_missing(&self, session: SessionId, is_there: impl Fn(Token) -> bool) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            for (token, _) in kept.held.extract_if(|token, _| !is_there(*token)) {
                // Nobody listens for a session that was given up.
                drop(kept.notices.send(Notice::GrantEnded { token, how: taken_unseen::<K>(token) }));
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

    pub(super) fn grant_ended(&self, session: SessionId, token: Token, how: Ending) {
        if let Some(kept) = self.sessions.borrow_mut().get_mut(&session) {
            kept.held.remove(&token);
            drop(kept.notices.send(Notice::GrantEnded { token, how }));
        }
    }

    /// Begins a wait, which lasts until it is settled or dropped.
    pub(super) fn wait(self: &Rc<Self>, key: WaitKey, ask: K::Ask) -> Waiting<K> {
        let (told, outcome) = oneshot::channel();
        self.waits.borrow_mut().insert(key, Wait { ask, told });
        Waiting { key, outcome, lasting: self.clone() }
    }

    /// Everything that waits, in the order in which it began.
    pub(super) fn waits<T>(&self, each: impl Fn(&K::Ask) -> T) -> Vec<(WaitKey, T)> {
        let mut waits: Vec<_> = self.waits.borrow().iter().map(|(key, wait)| (*key, each(&wait.ask))).collect();
        waits.sort_unstable_by_key(|(key, _)| *key);
        waits
    }

    /// What is kept of a wait, if it still waits.
    pub(super) fn of_wait<T>(&self, key: WaitKey, change: impl FnOnce(&mut K::Ask) -> T) -> Option<T> {
        self.waits.borrow_mut().get_mut(&key).map(|wait| change(&mut wait.ask))
    }

    /// A wait is over. One that nobody waits for any more is cancelled by the keeper, who learns of the grant then.
    pub(super) fn settle(&self, key: WaitKey, outcome: Result<Token, Failure>) {
        let Some(wait) = self.waits.borrow_mut().remove(&key) else { return };
        if let Ok(token) = outcome
            && let Some(kept) = self.sessions.borrow_mut().get_mut(&key.0)
        {
            kept.held.insert(token, K::held(&wait.ask, key.1, &kept.of_session));
        }
        drop(wait.told.send(outcome));
    }

    pub(super) fn watch(&self, prefix: &str) -> mpsc::Receiver<Watched> {
        self.watchers.borrow_mut().watch(prefix.to_owned())
    }

    /// Events may be missing from here on.
    pub(super) fn note_missed(&self) {
        self.watchers.borrow_mut().tell_missed();
    }

    /// Nothing that was held is certain any more, and nothing is waited for.
    pub(super) fn data_lost(&self, what: &str, failure: impl Fn() -> Failure) {
        for (_, kept) in self.sessions.borrow_mut().drain() {
            drop(kept.notices.send(Notice::DataLost { what: what.to_owned() }));
        }
        self.end_waits(failure);
        self.note_missed();
    }

    /// Nothing is waited for any more: somebody has to do something first.
    pub(super) fn end_waits(&self, failure: impl Fn() -> Failure) {
        for (_, wait) in self.waits.borrow_mut().drain() {
            drop(wait.told.send(Err(failure())));
        }
    }
}

/// What a session holds that nobody here knows of.
pub(super) struct Stray {
    pub(super) session: SessionId,
    pub(super) lock: LockName,
    pub(super) token: Token,
}

impl<K: Keeps<Held = LockName>> Lasting<K> {
    /// What a session holds, and under which number, as the store says. What is missing was taken away meanwhile; what
    /// was waited for is granted; the rest is nobody's, and is returned.
    pub(super) fn compare_held(
        &self,
        session: SessionId,
        found: &BTreeMap<Token, (LockName, Option<RequestNo>)>,
    ) -> Vec<Stray> {
        self.end_missing(session, |token| found.contains_key(&token));
        let known = self.held(session, |token, _| token);
        let mut strays = Vec::new();
        for (token, (lock, number)) in found.iter().filter(|(token, _)| !known.contains(token)) {
            match number {
                Some(number) if self.waits.borrow().contains_key(&(session, *number)) => {
                    self.settle((session, *number), Ok(*token));
                }
                _ => strays.push(Stray { session, lock: lock.clone(), token: *token }),
            }
        }
        strays
    }
}

/// How a grant ended whose session lives, while nobody here was told.
pub(super) fn taken_unseen<K: Keeps>(token: Token) -> Ending {
    let (by, reason) = (Label::new("somebody"), Label::new(K::TAKEN_UNSEEN));
    Ending::Forced(Arc::new(Force { by, reason, moved_to: token }))
}

/// A request that waits. Dropping it ends the wait here; where the locks are that is learned by a cancel.
pub(super) struct Waiting<K: Keeps> {
    key: WaitKey,
    outcome: oneshot::Receiver<Result<Token, Failure>>,
    lasting: Rc<Lasting<K>>,
}

impl<K: Keeps> Waiting<K> {
    pub(super) async fn outcome(mut self) -> Result<Token, Failure> {
        (&mut self.outcome).await.unwrap_or(Err(Failure::SessionEnded))
    }
}

impl<K: Keeps> Drop for Waiting<K> {
    fn drop(&mut self) {
        self.outcome.close();
        let mut waits = self.lasting.waits.borrow_mut();
        // Another wait may have been begun under the same key.
        if waits.get(&self.key).is_some_and(|wait| wait.told.is_closed()) {
            waits.remove(&self.key);
        }
    }
}
