//! The user of each session, and how many sessions each user has.

use std::collections::HashMap;
use std::rc::Rc;

use palisade_core::{Limit, Machine, Refusal, SessionId};

use crate::access::owner;

/// Counts sessions by user. Without users it counts nothing.
#[derive(Debug, Default)]
pub(super) struct UserSessions {
    /// How many a user may have; `None` without users.
    bound: Option<usize>,
    users: HashMap<SessionId, Rc<str>>,
    counts: HashMap<Rc<str>, Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    open: usize,
    /// Requested, and not yet answered.
    opening: usize,
}

impl UserSessions {
    pub(super) fn new(bound: Option<usize>) -> UserSessions {
        UserSessions { bound, ..UserSessions::default() }
    }

    /// Counts all sessions of the machine.
    pub(super) fn count(&mut self, machine: &Machine) {
        self.users.clear();
        self.counts.values_mut().for_each(|sessions| sessions.open = 0);
        if self.bound.is_some() {
            machine.sessions().for_each(|session| self.opened(session.id(), machine));
        }
    }

    /// Counts a session that is about to be opened.
    ///
    /// # Errors
    ///
    /// The user would have too many.
    pub(super) fn open(&mut self, user: &str) -> Result<(), Refusal> {
        let Some(bound) = self.bound else { return Ok(()) };
        let sessions = self.counts.entry(user.into()).or_default();
        if sessions.open + sessions.opening >= bound {
            let max = bound as u64;
            return Err(Refusal::OverLimit { limit: Limit::Sessions, max, value: max + 1 });
        }
        sessions.opening += 1;
        Ok(())
    }

    /// Ends the count of [`open`](UserSessions::open): the request was answered.
    pub(super) fn answered(&mut self, user: &str) {
        if let Some(sessions) = self.counts.get_mut(user) {
            sessions.opening = sessions.opening.saturating_sub(1);
        }
    }

    /// Forgets the sessions that are about to be opened: the node has lost the leadership, and does not answer the requests.
    pub(super) fn forget_opening(&mut self) {
        self.counts.values_mut().for_each(|sessions| sessions.opening = 0);
    }

    pub(super) fn opened(&mut self, session: SessionId, machine: &Machine) {
        let label = self.bound.and_then(|_| Some(machine.session(session)?.label()));
        if let Some(user) = label.and_then(|label| owner(label.as_str())) {
            let user: Rc<str> = self.counts.get_key_value(user).map_or_else(|| user.into(), |(name, _)| name.clone());
            self.counts.entry(user.clone()).or_default().open += 1;
            self.users.insert(session, user);
        }
    }

    /// Returns the session's user. `None` without users: then a label may contain any name.
    pub(super) fn user_of(&self, session: SessionId) -> Option<&str> {
        self.users.get(&session).map(|user| &**user)
    }

    pub(super) fn ended(&mut self, session: SessionId) {
        if let Some(sessions) = self.users.remove(&session).and_then(|user| self.counts.get_mut(&user)) {
            sessions.open = sessions.open.saturating_sub(1);
        }
    }
}
