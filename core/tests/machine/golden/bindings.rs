//! The names of a script: sessions by name, waits by session and lock.

use std::collections::BTreeMap;

use palisade_core::{Event, LockName, SessionId, Ticket};

use super::parse::ParseError;

#[derive(Default)]
pub(crate) struct Bindings {
    sessions: BTreeMap<String, SessionId>,
    tickets: BTreeMap<u64, Ticket>,
    /// The latest wait of a session for a lock, over or not.
    waits: BTreeMap<(SessionId, LockName), Ticket>,
}

impl Bindings {
    /// Binds a name to a session. The name stays bound after the session's end.
    pub(crate) fn bind(&mut self, name: &str, session: SessionId) {
        self.sessions.insert(name.to_owned(), session);
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.sessions.contains_key(name)
    }

    pub(crate) fn record(&mut self, event: &Event) {
        if let Event::Queued { ticket, session, locks } = event {
            self.tickets.insert(ticket.arrival(), *ticket);
            for lock in locks {
                self.waits.insert((*session, lock.clone()), *ticket);
            }
        }
    }

    /// Returns the id of the next session that is opened: 1, 2, 3 …
    pub(crate) fn next_session(&self) -> SessionId {
        let last = self.sessions.values().map(|session| session.get()).max().unwrap_or(0);
        SessionId::new(last + 1).expect("not zero")
    }

    /// Returns a session by its name, or by any number.
    pub(crate) fn session(&self, name: &str) -> Result<SessionId, ParseError> {
        match (self.sessions.get(name), name.parse::<u64>()) {
            (Some(session), _) => Ok(*session),
            (None, Ok(number)) => Ok(SessionId::new(number)?),
            (None, Err(_)) => Err(ParseError::Script(format!("no session '{name}' was opened"))),
        }
    }

    pub(crate) fn name(&self, session: SessionId) -> String {
        let found = self.sessions.iter().find(|(_, id)| **id == session);
        found.map_or_else(|| format!("session {session}"), |(name, _)| name.clone())
    }

    pub(crate) fn ticket(&self, arrival: u64) -> Result<Ticket, ParseError> {
        let ticket = self.tickets.get(&arrival).copied();
        ticket.ok_or_else(|| ParseError::Script(format!("no ticket {arrival} was given")))
    }

    pub(crate) fn wait(&self, session: SessionId, lock: &LockName) -> Result<Ticket, ParseError> {
        let ticket = self.waits.get(&(session, lock.clone())).copied();
        ticket.ok_or_else(|| ParseError::Script(format!("{} never waited for {lock}", self.name(session))))
    }
}
