//! What can go wrong on the way to the service, and what to do about it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Refusal;
use thiserror::Error;

use super::Obstacle;
use crate::engine::lines::InTheWay;
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
    #[error("an address with colons is written in brackets, as in palisade://[::1]:7420; {ACCEPTED}")]
    NoBrackets,
    /// There is something that has no meaning here.
    #[error("{found:?} has no meaning there, and is written percent-encoded in a secret; {ACCEPTED}")]
    Unknown {
        /// What.
        found: char,
    },
    /// There is a secret, but not whose.
    #[error("a user is missing for the secret; {ACCEPTED}")]
    NoUser,
    /// There is a user, but no secret.
    #[error(
        "the user's secret is missing; set the environment variable PALISADE_SECRET, or name a file with \
         ?secret_file=FILE; {ACCEPTED}"
    )]
    NoSecret,
    /// There are two secrets.
    #[error("it says a secret and a secret_file; leave one out; {ACCEPTED}")]
    TwoSecrets,
    /// What is percent-encoded is no text.
    #[error("what is percent-encoded in it is no UTF-8; {ACCEPTED}")]
    NotText,
    /// An option is not known.
    #[error("an option is not known; there are ca, cert, key, name and secret_file; {ACCEPTED}")]
    UnknownOption,
    /// An option has no value, or is there twice.
    #[error("an option has no value, or stands there twice; {ACCEPTED}")]
    BadOption,
    /// A certificate has no key, or a key no certificate.
    #[error("cert and key go together; {ACCEPTED}")]
    HalfIdentity,
    /// An option is of use on an encrypted line only.
    #[error("ca, cert, key and name are for encrypted lines; say palisades:// instead of palisade://")]
    NotEncrypted,
}

const ACCEPTED: &str = "say palisade://host:port, or palisades://user@host:port with TLS and a login";

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
    #[error("the service at {address} does not take this client now: {what}")]
    NotNow { address: String, what: String },
    #[error("no line to the service at {address}: {obstacle}")]
    Barred { address: String, obstacle: Obstacle },
    #[error("the service at {address} does not let this client in: {what}")]
    NotLetIn { address: String, what: String },
    #[error("what answers at {address} is no Palisade service: {what}")]
    NotOurs { address: String, what: String },
    #[error("the service at {address} said something that this build does not understand: {what}")]
    Garbled { address: String, what: String },
}

impl InTheWay for Trouble {
    fn is_for_good(&self) -> bool {
        matches!(self, Trouble::NotOurs { .. } | Trouble::Barred { .. } | Trouble::NotLetIn { .. })
    }
}

impl Trouble {
    /// From a stream that failed.
    pub(super) fn of_stream(address: String, error: io::Error) -> Trouble {
        match Obstacle::behind(&error) {
            Some(obstacle) => Trouble::Barred { address, obstacle },
            // An encrypted stream that ends without a farewell. What is cut short is noticed all the same: every
            // answer says how long it is.
            None if error.kind() == io::ErrorKind::UnexpectedEof => Trouble::Closed { address },
            None => Trouble::Broken { address, source: Arc::new(error) },
        }
    }

    /// As the caller sees it.
    pub(super) fn failure(&self, may_have_taken_effect: bool) -> Failure {
        if let Trouble::NotLetIn { .. } = self {
            return Failure::Denied(self.to_string());
        }
        let what = match may_have_taken_effect {
            _ if self.is_for_good() => self.to_string(),
            true => format!("{self} (the call may have taken effect)"),
            false => format!("{self} (nothing was asked)"),
        };
        Failure::Unavailable(Unavailable {
            what,
            may_have_taken_effect,
            is_retryable: !self.is_for_good(),
            source: match self {
                Trouble::NotReached { source, .. } | Trouble::Broken { source, .. } => Some(Box::new(source.clone())),
                Trouble::Barred { obstacle, .. } => Some(Box::new(obstacle.clone())),
                _ => None,
            },
        })
    }
}

/// What somebody else has said, fit for a terminal.
pub(super) fn shown(text: &str) -> String {
    let show = |c: char| if c == '\'' || c == '"' { c.to_string() } else { c.escape_debug().to_string() };
    text.chars().map(show).collect()
}

/// A command that the service did not carry out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Denied {
    /// The rules say no.
    #[error(transparent)]
    ByRules(Refusal),
    /// The service does not lead, or not yet.
    #[error("the service is not ready: {}", shown(.0))]
    NotLeading(String),
    /// The service has no room, or is about to end.
    #[error("the service does not do it now: {}", shown(.0))]
    NotNow(String),
    /// Who asks is not known.
    #[error("the service wants to know who asks: {}", shown(.0))]
    NotLetIn(String),
    /// Who asks has no right to it.
    #[error("the service does not allow it: {}; have the right given to the user in the service's configuration", shown(.0))]
    NotAllowed(String),
    /// It does not do such a thing.
    #[error("the service does not do it: {}", shown(.0))]
    NotOffered(String),
    /// It could not make sense of the command.
    #[error("the service refuses the command: {}", shown(.0))]
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
            Some(("LIMIT" | "CLOSING" | "TIMEOUT", message)) => Denied::NotNow(message.to_owned()),
            Some(("NOAUTH" | "WRONGPASS", message)) => Denied::NotLetIn(message.to_owned()),
            Some(("DENIED", message)) => Denied::NotAllowed(message.to_owned()),
            Some(("NOTSIGNING", message)) => Denied::NotOffered(message.to_owned()),
            _ => Denied::Misunderstood(error.to_owned()),
        }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Failure {
        match denied {
            Denied::ByRules(refusal) => refusal.into(),
            Denied::NotLetIn(_) | Denied::NotAllowed(_) => Failure::Denied(denied.to_string()),
            Denied::NotLeading(_) | Denied::NotNow(_) => Unavailable::new(denied.to_string()).without_effect().into(),
            Denied::NotOffered(_) | Denied::Misunderstood(_) => {
                Unavailable::new(denied.to_string()).without_effect().permanent().into()
            }
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
        assert!(matches!(Denied::parse("DENIED no right"), Denied::NotAllowed(_)));
        assert!(matches!(Denied::parse("NOTSIGNING not here"), Denied::NotOffered(_)));
        assert!(matches!(Denied::parse("LIMIT too many"), Denied::NotNow(_)));
        assert!(matches!(Denied::parse("BADARG lock\t{}"), Denied::Misunderstood(_)));
    }
}
