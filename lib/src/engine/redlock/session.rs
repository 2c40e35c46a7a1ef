//! Sessions. They exist only in this client; the nodes have the keys of their locks.

use std::collections::HashMap;
use std::time::Duration;

use palisade_core::{Label, Limit, Limits, LockName, Refusal, RequestNo, SessionId, Token, Ttl};
use tokio::sync::mpsc;

use crate::BootInstant;
use crate::engine::{Failure, Notice, Unavailable};

/// A session.
pub(super) struct Session {
    pub(super) ttl: Duration,
    pub(super) label: Label,
    pub(super) notices: mpsc::UnboundedSender<Notice>,
    pub(super) expires_at: BootInstant,
    /// When the last renewal began, whatever its outcome. It did not extend locks that were granted after that.
    pub(super) renewal_began_at: BootInstant,
    pub(super) grants: HashMap<Token, Grant>,
}

/// A lock that a session holds.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) lock: LockName,
    /// The value of its key.
    pub(super) value: String,
    pub(super) number: Option<RequestNo>,
    /// Whether it is being released, so that renewals need not extend it.
    pub(super) is_releasing: bool,
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

    /// Returns a session, unless it has expired.
    pub(super) fn live(&mut self, number: SessionId) -> Result<&mut Session, Failure> {
        let session = self.0.get_mut(&number).ok_or(Failure::SessionEnded)?;
        if session.expires_at.has_passed() {
            return Err(Failure::SessionEnded);
        }
        Ok(session)
    }

    /// Returns the grant of the acquire with this number.
    pub(super) fn granted(&self, session: SessionId, number: RequestNo) -> Option<Token> {
        let mut grants = self.0.get(&session)?.grants.iter();
        grants.find(|(_, held)| held.number == Some(number)).map(|(token, _)| *token)
    }

    pub(super) fn held(&mut self, session: SessionId, token: Token) -> Option<&mut Grant> {
        self.0.get_mut(&session)?.grants.get_mut(&token)
    }

    pub(super) fn forget(&mut self, session: SessionId, token: Token) {
        if let Some(session) = self.0.get_mut(&session) {
            session.grants.remove(&token);
        }
    }
}

/// Refuses a TTL or a label out of range.
pub(super) fn check(ttl: Ttl, label: &Label, max_ttl: Duration) -> Result<(), Failure> {
    let limits = Limits::default();
    let (ttl_ms, label_bytes) = (ttl.as_ms(), label.as_str().len() as u64);
    let over = |limit, value| Refusal::OverLimit { limit, max: limits.of(limit), value };
    if ttl_ms < limits.of(Limit::TtlMinMs) {
        let (limit, min) = (Limit::TtlMinMs, limits.of(Limit::TtlMinMs));
        return Err(Refusal::UnderLimit { limit, min, value: ttl_ms }.into());
    }
    if ttl_ms > limits.of(Limit::TtlMaxMs) {
        return Err(over(Limit::TtlMaxMs, ttl_ms).into());
    }
    if label_bytes > limits.of(Limit::LabelBytes) {
        return Err(over(Limit::LabelBytes, label_bytes).into());
    }
    let max_ms = max_ttl.as_millis() as u64;
    if ttl_ms > max_ms {
        let what = format!(
            "a TTL of {ttl_ms} ms is longer than max_ttl, {max_ms} ms, for which a restarted node does not count; add \
             ?max_ttl={ttl_ms}ms to the URL of every client, or use a shorter TTL"
        );
        return Err(Unavailable::new(what).without_effect().permanent().into());
    }
    Ok(())
}
