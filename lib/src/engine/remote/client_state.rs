//! The state of a client that survives a reconnect: sessions, their grants, waiting acquires and watches.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Acquire, Ending, Force, Label, LockName, RequestNo, SessionEnd, SessionId, Token, Ttl};
use tokio::sync::{mpsc, oneshot};

use super::watch_lease::WatchLease;
use super::{Backend, Held};
use crate::BootInstant;
use crate::engine::host::Subscriptions;
use crate::engine::{Failure, Notice, Opened, Watched};

/// The key of a waiting acquire.
pub(crate) type WaitKey = (SessionId, RequestNo);

/// The state of a client that survives a reconnect.
pub struct ClientState<B: Backend> {
    sessions: RefCell<BTreeMap<SessionId, Session<B>>>,
    waits: RefCell<BTreeMap<WaitKey, Wait<B>>>,
    pub(in crate::engine) watchers: RefCell<Subscriptions>,
    pub(crate) watch_lease: WatchLease,
    pub(crate) extra: B::SharedExtra,
}

/// A session that this client opened.
struct Session<B: Backend> {
    ttl: Ttl,
    notices: mpsc::UnboundedSender<Notice>,
    /// Grants whose acquire was answered and whose release was not sent yet.
    grants: BTreeMap<Token, B::GrantExtra>,
    /// Grants that were found by a cancel and are not released. Some stores answer a second cancel as if nothing were held.
    found: BTreeMap<RequestNo, Token>,
    extra: B::SessionExtra,
}

struct Wait<B: Backend> {
    acquire: Acquire,
    extra: B::WaitExtra,
    outcome: oneshot::Sender<Result<Token, Failure>>,
}

impl<B: Backend> Default for ClientState<B> {
    fn default() -> ClientState<B> {
        let (sessions, waits, watchers) = (RefCell::default(), RefCell::default(), RefCell::default());
        let (watch_lease, extra) = (WatchLease::default(), B::SharedExtra::default());
        ClientState { sessions, waits, watchers, watch_lease, extra }
    }
}

// Sessions and grants.
impl<B: Backend> ClientState<B> {
    pub(super) fn add_session(&self, session: SessionId, ttl: Ttl) -> Opened {
        let (sender, notices) = mpsc::unbounded_channel();
        let (grants, found, extra) = (BTreeMap::new(), BTreeMap::new(), B::SessionExtra::default());
        self.sessions.borrow_mut().insert(session, Session { ttl, notices: sender, grants, found, extra });
        Opened { session, notices, lifeline: None }
    }

    /// Stops tracking a session; the store ends it when its TTL expires.
    pub(super) fn forget_session(&self, session: SessionId) {
        self.sessions.borrow_mut().remove(&session);
    }

    /// The sessions that the keeper still uses. The state of the others stays until they are closed: a backend may need it
    /// for that, and the keeper retries the close on later connections.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        let sessions = self.sessions.borrow();
        sessions.iter().filter(|(_, session)| !session.notices.is_closed()).map(|(id, _)| *id).collect()
    }

    pub(super) fn ttl(&self, session: SessionId) -> Option<Duration> {
        self.sessions.borrow().get(&session).map(|session| Duration::from_millis(session.ttl.as_ms()))
    }

    pub(crate) fn shortest_ttl(&self) -> Option<Duration> {
        let sessions = self.sessions.borrow();
        let in_use = sessions.values().filter(|session| !session.notices.is_closed());
        in_use.map(|session| Duration::from_millis(session.ttl.as_ms())).min()
    }

    /// Changes the backend's data of a session; `None` for a session of another client.
    pub(crate) fn session_extra<T>(
        &self,
        session: SessionId,
        change: impl FnOnce(&mut B::SessionExtra) -> T,
    ) -> Option<T> {
        self.sessions.borrow_mut().get_mut(&session).map(|session| change(&mut session.extra))
    }

    pub(super) fn add_grant(&self, session: SessionId, token: Token, grant: B::GrantExtra) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&session) {
            session.grants.insert(token, grant);
        }
    }

    pub(super) fn remove_grant(&self, session: SessionId, token: Token) -> Option<B::GrantExtra> {
        self.sessions.borrow_mut().get_mut(&session)?.grants.remove(&token)
    }

    /// Notes a grant that the cancel of a request has found, for the next cancel of that request.
    pub(super) fn note_found(&self, session: SessionId, number: RequestNo, token: Token) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&session) {
            session.found.insert(number, token);
        }
    }

    /// Returns the grant that an earlier cancel of this request has found, unless it is released.
    pub(super) fn found(&self, session: SessionId, number: RequestNo) -> Option<Token> {
        self.sessions.borrow().get(&session)?.found.get(&number).copied()
    }

    pub(super) fn forget_found(&self, session: SessionId, token: Token) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&session) {
            session.found.retain(|_, found| *found != token);
        }
    }

    pub(super) fn grant_extra(&self, acquire: &Acquire) -> B::GrantExtra {
        match self.sessions.borrow().get(&acquire.caller.session) {
            Some(session) => B::grant_extra(acquire, &session.extra),
            None => B::grant_extra(acquire, &B::SessionExtra::default()),
        }
    }

    /// Returns the tokens of a session's grants.
    pub(crate) fn tokens(&self, session: SessionId) -> HashSet<Token> {
        self.grants(session, |token, _| token).into_iter().collect()
    }

    pub(crate) fn grants<T>(&self, session: SessionId, each: impl Fn(Token, &B::GrantExtra) -> T) -> Vec<T> {
        let sessions = self.sessions.borrow();
        let grants = sessions.get(&session).into_iter().flat_map(|session| &session.grants);
        grants.map(|(token, grant)| each(*token, grant)).collect()
    }

    pub(crate) fn session_ended(&self, session: SessionId, how: SessionEnd) {
        if let Some(session) = self.sessions.borrow_mut().remove(&session) {
            drop(session.notices.send(Notice::SessionEnded(how)));
        }
        let ended: Vec<_> = self.waits.borrow().keys().filter(|(owner, _)| *owner == session).copied().collect();
        for wait in ended.iter().filter_map(|key| self.waits.borrow_mut().remove(key)) {
            drop(wait.outcome.send(Err(Failure::SessionEnded)));
        }
    }

    pub(crate) fn grant_ended(&self, session: SessionId, token: Token, how: Ending) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&session) {
            session.grants.remove(&token);
            drop(session.notices.send(Notice::GrantEnded { token, how }));
        }
    }

    /// Ends those of the known grants that the store no longer has. No connection was open when they ended, so the reason is
    /// unknown.
    pub(crate) fn end_missing_grants(
        &self,
        session: SessionId,
        known: &HashSet<Token>,
        is_at_store: impl Fn(Token) -> bool,
    ) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&session) {
            let is_missing = |token: &Token| known.contains(token) && !is_at_store(*token);
            let missing: Vec<_> = session.grants.keys().copied().filter(is_missing).collect();
            for token in missing {
                session.grants.remove(&token);
                drop(session.notices.send(Notice::GrantEnded { token, how: forced_unseen::<B>(token) }));
            }
        }
    }

    /// Reports to every session that the store has lost its data, and ends every wait.
    pub(crate) fn data_lost(&self, what: &str, failure: impl Fn() -> Failure) {
        for (_, session) in self.sessions.take() {
            drop(session.notices.send(Notice::DataLost { what: what.to_owned() }));
        }
        self.fail_waits(failure);
        self.note_missed_events();
    }
}

// WaitHandle acquires.
impl<B: Backend> ClientState<B> {
    /// Begins a wait, which lasts until it is settled or its handle is dropped.
    pub(super) fn begin_wait(self: &Rc<Self>, key: WaitKey, acquire: Acquire) -> WaitHandle<B> {
        let (sender, outcome) = oneshot::channel();
        let wait = Wait { acquire, extra: B::WaitExtra::default(), outcome: sender };
        self.waits.borrow_mut().insert(key, wait);
        WaitHandle { key, outcome, client: self.clone() }
    }

    pub(crate) fn is_waiting(&self, key: WaitKey) -> bool {
        self.waits.borrow().contains_key(&key)
    }

    /// All waits, in the order in which they began.
    pub(crate) fn waits<T>(&self, each: impl Fn(&Acquire, &B::WaitExtra) -> T) -> Vec<(WaitKey, T)> {
        let waits = self.waits.borrow();
        let mut waits: Vec<_> = waits.iter().map(|(key, wait)| (*key, each(&wait.acquire, &wait.extra))).collect();
        waits.sort_unstable_by_key(|(key, _)| *key);
        waits
    }

    /// Changes the backend's data of a wait; `None` if the wait is over.
    pub(crate) fn wait_extra<T>(
        &self,
        key: WaitKey,
        change: impl FnOnce(&Acquire, &mut B::WaitExtra) -> T,
    ) -> Option<T> {
        self.waits.borrow_mut().get_mut(&key).map(|wait| change(&wait.acquire, &mut wait.extra))
    }

    /// Ends a wait with its outcome. If its caller is gone, the keeper cancels the acquire and learns of the grant from the reply.
    pub(crate) fn settle(&self, key: WaitKey, outcome: Result<Token, Failure>) {
        let Some(wait) = self.waits.borrow_mut().remove(&key) else { return };
        if let Ok(token) = outcome {
            self.add_grant(key.0, token, self.grant_extra(&wait.acquire));
        }
        drop(wait.outcome.send(outcome));
    }

    /// Ends all waits with a failure.
    pub(crate) fn fail_waits(&self, failure: impl Fn() -> Failure) {
        for (_, wait) in self.waits.take() {
            drop(wait.outcome.send(Err(failure())));
        }
    }
}

// Watches.
impl<B: Backend> ClientState<B> {
    pub(crate) fn watch(&self, prefix: &str) -> mpsc::Receiver<Watched> {
        let mut watchers = self.watchers.borrow_mut();
        if !watchers.is_watching() {
            self.watch_lease.reset();
        }
        watchers.watch(prefix.to_owned())
    }

    /// Notes that a call sent at `sent_at` has renewed the lease of all watches.
    pub(crate) fn watches_renewed(&self, sent_at: BootInstant, lease: Duration) {
        if self.watch_lease.renewed(sent_at, lease) {
            self.note_missed_events();
        }
    }

    /// Tells watchers that they may have missed events.
    pub(crate) fn note_missed_events(&self) {
        self.watchers.borrow_mut().tell_missed();
    }
}

impl<B: Backend<GrantExtra = LockName>> ClientState<B> {
    /// Compares the grants of a session with those at the store, each with its lock and the number of its acquire. Ends
    /// those that are missing there, settles waits that were granted, and returns the rest as orphans. `known` are the grants
    /// that the client knew before it asked: a push may have added others since.
    pub(crate) fn reconcile(
        &self,
        session: SessionId,
        known: &HashSet<Token>,
        at_store: &BTreeMap<Token, (LockName, Option<RequestNo>)>,
    ) -> Vec<Held> {
        self.end_missing_grants(session, known, |token| at_store.contains_key(&token));
        let known = self.grants(session, |token, _| token);
        let mut orphans = Vec::new();
        for (token, (lock, number)) in at_store.iter().filter(|(token, _)| !known.contains(token)) {
            match number {
                Some(number) if self.is_waiting((session, *number)) => self.settle((session, *number), Ok(*token)),
                _ => orphans.push(Held { session, lock: lock.clone(), token: *token }),
            }
        }
        orphans
    }
}

/// The end of a grant that was taken away while no connection was open.
pub(crate) fn forced_unseen<B: Backend>(token: Token) -> Ending {
    let reason = format!("unknown: the connection to {} was broken at that time", B::NAME);
    Ending::Forced(Arc::new(Force { by: Label::new("unknown"), reason: Label::new(&reason), moved_to: token }))
}

/// The caller's end of a wait. Dropping it ends the wait in this client; the keeper then cancels the acquire at the store.
pub(super) struct WaitHandle<B: Backend> {
    key: WaitKey,
    outcome: oneshot::Receiver<Result<Token, Failure>>,
    client: Rc<ClientState<B>>,
}

impl<B: Backend> WaitHandle<B> {
    pub(super) async fn outcome(mut self) -> Result<Token, Failure> {
        (&mut self.outcome).await.unwrap_or(Err(Failure::SessionEnded))
    }
}

impl<B: Backend> Drop for WaitHandle<B> {
    fn drop(&mut self) {
        self.outcome.close();
        let mut waits = self.client.waits.borrow_mut();
        // A repeated acquire may have begun another wait under the same key.
        if waits.get(&self.key).is_some_and(|wait| wait.outcome.is_closed()) {
            waits.remove(&self.key);
        }
    }
}
