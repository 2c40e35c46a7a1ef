//! A session: it is this client's alone, and no node knows of it. What nodes know are the keys of its locks.

use std::collections::HashMap;
use std::time::Duration;

use palisade_core::{Label, LockName, RequestNo, SessionId, Token};
use tokio::sync::mpsc;

use crate::BootInstant;
use crate::engine::{Failure, Notice};

/// A session that lives.
pub(super) struct Session {
    pub(super) ttl: Duration,
    pub(super) label: Label,
    pub(super) notices: mpsc::UnboundedSender<Notice>,
    pub(super) lives_until: BootInstant,
    /// When the last renewal was begun, whatever becomes of it. A lock that was asked for before is not part of it.
    pub(super) renewal_begun_at: BootInstant,
    pub(super) grants: HashMap<Token, Held>,
}

/// A lock that a session holds.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) lock: LockName,
    /// What its key says.
    pub(super) value: String,
    pub(super) number: Option<RequestNo>,
    /// It is being given back: whether it can be extended does not matter any more.
    pub(super) is_leaving: bool,
}

/// The sessions of this client.
#[derive(Default)]
pub(super) struct Sessions(HashMap<SessionId, Session>);

impl Sessions {
    pub(super) fn add(&mut self, number: SessionId, session: Session) {
        self.0.insert(number, session);
    }

    pub(super) fn remove(&mut self, number: SessionId) -> Option<Session> {
        self.0.remove(&number)
    }

    /// A session, unless its time is over.
    pub(super) fn living(&mut self, number: SessionId) -> Result<&mut Session, Failure> {
        let session = self.0.get_mut(&number).ok_or(Failure::SessionEnded)?;
        if session.lives_until.has_passed() {
            return Err(Failure::SessionEnded);
        }
        Ok(session)
    }

    /// What a session holds by a request of this number.
    pub(super) fn granted(&self, session: SessionId, number: RequestNo) -> Option<Token> {
        let mut grants = self.0.get(&session)?.grants.iter();
        grants.find(|(_, held)| held.number == Some(number)).map(|(token, _)| *token)
    }

    pub(super) fn held(&mut self, session: SessionId, token: Token) -> Option<&mut Held> {
        self.0.get_mut(&session)?.grants.get_mut(&token)
    }

    pub(super) fn forget(&mut self, session: SessionId, token: Token) {
        if let Some(session) = self.0.get_mut(&session) {
            session.grants.remove(&token);
        }
    }
}
