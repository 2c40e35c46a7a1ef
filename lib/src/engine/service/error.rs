//! What can go wrong on the way to the service, and what to do about it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Refusal;
use thiserror::Error;

use crate::engine::{Failure, Unavailable};

/// Why a URL names no service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadAddress {
    /// There is no host.
    #[error("a host is missing; {ACCEPTED}")]
    NoHost,
    /// There is no port, or none that can be.
    #[error("a port between 1 and 65535 is missing; {ACCEPTED}")]
    NoPort,
    /// An address of version 6 stands without brackets.
    #[error("an address with colons is written in brackets, as in palisade://[::1]:7117; {ACCEPTED}")]
    NoBrackets,
    /// There is something that has no meaning here.
    #[error("{found:?} has no meaning in it; {ACCEPTED}")]
    Unknown {
        /// What.
        found: char,
    },
}

const ACCEPTED: &str = "say palisade://host:port";

/// What went wrong with the line. It has many callers, so it can be cloned.
#[derive(Debug, Clone, Error)]
pub(super) enum Trouble {
    #[error("the service at {address} cannot be reached: {source}. Is it running, and is the address right?")]
    NotReached { address: String, source: Arc<io::Error> },
    #[error("the line to the service at {address} broke: {source}")]
    Broken { address: String, source: Arc<io::Error> },
    #[error("the service at {address} closed the line")]
    Closed { address: String },
    #[error("the service at {address} has not answered for {} ms", .waited.as_millis())]
    Silent { address: String, waited: Duration },
    #[error("what answers at {address} is no Palisade service: {what}")]
    NotOurs { address: String, what: String },
    #[error("the service at {address} said something that this build does not understand: {what}")]
    Garbled { address: String, what: String },
}

impl Trouble {
    /// As the caller sees it.
    pub(super) fn failure(&self, may_have_taken_effect: bool) -> Failure {
        let known = if may_have_taken_effect { "the call may have taken effect" } else { "nothing was asked" };
        Failure::Unavailable(Unavailable {
            what: format!("{self} ({known})"),
            may_have_taken_effect,
            is_retryable: !matches!(self, Trouble::NotOurs { .. }),
            source: match self {
                Trouble::NotReached { source, .. } | Trouble::Broken { source, .. } => Some(Box::new(source.clone())),
                _ => None,
            },
        })
    }
}

/// A command that the service did not carry out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Denied {
    /// The rules say no.
    #[error(transparent)]
    ByRules(Refusal),
    /// The service does not lead, or not yet.
    #[error("the service is not ready: {}", .0.escape_debug())]
    NotLeading(String),
    /// It could not make sense of the command.
    #[error("the service refuses the command: {}", .0.escape_debug())]
    Misunderstood(String),
}

impl Denied {
    /// From an error of the protocol: a code, a message for people, and behind a tab the refusal itself.
    pub(super) fn parse(error: &str) -> Denied {
        if let Some((_, detail)) = error.rsplit_once('\t')
            && let Ok(refusal) = serde_json::from_str(detail)
        {
            return Denied::ByRules(refusal);
        }
        match error.split_once(' ') {
            Some(("NOTLEADER", message)) => Denied::NotLeading(message.to_owned()),
            _ => Denied::Misunderstood(error.to_owned()),
        }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Failure {
        match denied {
            Denied::ByRules(refusal) => refusal.into(),
            Denied::NotLeading(_) => Unavailable::new(denied.to_string()).without_effect().into(),
            Denied::Misunderstood(_) => Unavailable::new(denied.to_string()).without_effect().for_good().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::SessionId;

    #[test]
    fn refusals_come_back_as_they_were() {
        let refusal = Refusal::NoSuchSession { session: SessionId::new(7).expect("not zero") };
        let detail = serde_json::to_string(&refusal).expect("it can be written");
        assert_eq!(Denied::parse(&format!("NOSESSION {refusal}\t{detail}")), Denied::ByRules(refusal));
        assert!(matches!(Denied::parse("NOTLEADER not yet"), Denied::NotLeading(_)));
        assert!(matches!(Denied::parse("BADARG lock\t{}"), Denied::Misunderstood(_)));
    }
}
