//! What outlives a line to Redis, and what is made of what Redis says unasked.

use std::sync::Arc;

use palisade_core::{Ending, Event, LockName, RequestNo, SessionId, Token};

use super::numbers::Numbers;
use super::push::Push;
use super::question::Question;
use crate::engine::lasting::{self, Keeps};

pub(super) use crate::engine::lasting::WaitKey;

pub(super) type Lasting = lasting::Lasting<AtRedis>;

pub(super) struct AtRedis;

impl Keeps for AtRedis {
    type Ask = Asked;
    type Held = Held;
    type OfSession = Numbers;
    type OfAll = ();
    const TAKEN_UNSEEN: &'static str =
        "unknown, as the connection to Redis was broken at that time, or Redis has lost it";

    fn held(asked: &Asked, number: RequestNo, numbers: &Numbers) -> Held {
        Held { lock: asked.lock.clone(), is_once: numbers.is_once(number) }
    }
}

/// A request that waits.
pub(super) struct Asked {
    pub(super) question: Question,
    pub(super) lock: LockName,
}

/// A grant.
pub(super) struct Held {
    pub(super) lock: LockName,
    /// Its request was sent once only.
    pub(super) is_once: bool,
}

impl Lasting {
    /// What is done with a session's numbers; without effect for a session that is not of this client.
    pub(super) fn number<T: Default>(&self, session: SessionId, change: impl FnOnce(&mut Numbers) -> T) -> T {
        self.of_session(session, change).unwrap_or_default()
    }

    pub(super) fn note_granted(&self, (session, number): WaitKey, token: Token, lock: LockName) {
        let is_once = self.number(session, |numbers| numbers.is_once(number));
        self.note_held(session, token, Held { lock, is_once });
    }

    /// A lock of each grant that a session holds, as far as is known here.
    pub(super) fn holdings(&self, session: SessionId) -> Vec<(LockName, Token)> {
        self.held(session, |token, held| (held.lock.clone(), token))
    }

    /// The locks that a session holds or may hold: a request whose reply was lost may have been granted.
    pub(super) fn locks(&self, session: SessionId) -> Vec<LockName> {
        let mut locks = self.held(session, |_, held| held.lock.clone());
        locks.extend(self.number(session, |numbers| numbers.unsettled_locks()));
        locks
    }

    pub(super) fn waiting(&self) -> Vec<WaitKey> {
        self.waits(|_| ()).into_iter().map(|(key, ())| key).collect()
    }

    /// Whether somebody here watches.
    pub(super) fn is_watching(&self) -> bool {
        self.watchers.borrow().is_watching()
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
                self.grant_ended(session, token, Ending::Forced(Arc::new(force)));
            }
        }
    }
}
