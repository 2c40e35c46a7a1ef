//! The errors of the service: permanent or transient, and whether the call may have taken effect.

use palisade_core::Refusal;
use redis_protocol::resp3::types::BytesFrame;
use thiserror::Error;

use crate::engine::Failure;
use crate::engine::remote::{ConnectError, Peer, printable};

/// Describes a reply or push that this build does not understand.
#[derive(Debug)]
pub(super) struct Unexpected(pub(super) String);

impl Unexpected {
    pub(super) fn instead_of(expected: &str, frame: &BytesFrame) -> Unexpected {
        let shown: String = format!("{frame:?}").chars().take(200).collect();
        Unexpected(format!("{shown} instead of {expected}"))
    }
}

impl From<Unexpected> for ConnectError {
    fn from(Unexpected(what): Unexpected) -> ConnectError {
        ConnectError::transient(format!("sent {what}, which this build does not understand"))
    }
}

/// Why a call has no reply.
#[derive(Debug)]
pub(super) struct NoReply {
    /// Why the connection broke.
    pub(super) error: ConnectError,
    /// Whether the command was sent whole.
    pub(super) may_have_taken_effect: bool,
}

impl From<NoReply> for Failure {
    fn from(NoReply { error, may_have_taken_effect }: NoReply) -> Failure {
        error.failure(may_have_taken_effect)
    }
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ReplyError {
    #[error(transparent)]
    Refused(Refusal),
    /// The service is not the leader, or not yet.
    #[error("not ready: {}", printable(.0))]
    NotLeader(String),
    /// The service is at a limit, or shuts down.
    #[error("cannot do this now: {}", printable(.0))]
    TryLater(String),
    #[error("login required: {}", printable(.0))]
    Unauthenticated(String),
    #[error("not allowed: {}; grant the right to the user in the service's configuration", printable(.0))]
    Denied(String),
    #[error("not supported: {}", printable(.0))]
    Unsupported(String),
    #[error("rejects the command: {}", printable(.0))]
    Invalid(String),
}

impl ReplyError {
    /// Reads a code, a message, and after a tab the refusal as JSON.
    pub(super) fn parse(error: &str) -> ReplyError {
        if let Some((_, detail)) = error.rsplit_once('\t')
            && let Ok(refusal) = serde_json::from_str(detail)
        {
            return ReplyError::Refused(refusal);
        }
        match error.split_once(' ') {
            Some(("NOTLEADER", message)) => ReplyError::NotLeader(message.to_owned()),
            Some(("LIMIT" | "CLOSING" | "TIMEOUT", message)) => ReplyError::TryLater(message.to_owned()),
            Some(("NOAUTH" | "WRONGPASS", message)) => ReplyError::Unauthenticated(message.to_owned()),
            Some(("DENIED", message)) => ReplyError::Denied(message.to_owned()),
            Some(("NOTSIGNING", message)) => ReplyError::Unsupported(message.to_owned()),
            _ => ReplyError::Invalid(error.to_owned()),
        }
    }

    /// The failure of the call. A command with an error reply has changed nothing.
    pub(super) fn failure(self, peer: &Peer) -> Failure {
        let what = self.to_string();
        let error = match self {
            ReplyError::Refused(refusal) => return refusal.into(),
            ReplyError::Unauthenticated(_) | ReplyError::Denied(_) => ConnectError::denied(what),
            ReplyError::NotLeader(_) | ReplyError::TryLater(_) => ConnectError::transient(what),
            ReplyError::Unsupported(_) | ReplyError::Invalid(_) => ConnectError::permanent(what),
        };
        error.at(peer).failure(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::SessionId;

    #[test]
    fn an_error_reply_is_read_by_its_code() {
        let refusal = Refusal::NoSuchSession { session: SessionId::new(7).expect("not zero") };
        let detail = serde_json::to_string(&refusal).expect("it can be written");
        assert_eq!(ReplyError::parse(&format!("NOSESSION {refusal}\t{detail}")), ReplyError::Refused(refusal));
        assert!(matches!(ReplyError::parse("NOTLEADER not yet"), ReplyError::NotLeader(_)));
        assert!(matches!(ReplyError::parse("DENIED no right"), ReplyError::Denied(_)));
        assert!(matches!(ReplyError::parse("NOTSIGNING not here"), ReplyError::Unsupported(_)));
        assert!(matches!(ReplyError::parse("LIMIT too many"), ReplyError::TryLater(_)));
        assert!(matches!(ReplyError::parse("BADARG lock\t{}"), ReplyError::Invalid(_)));
    }
}
