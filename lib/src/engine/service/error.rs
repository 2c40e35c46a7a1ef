//! The errors of the service and of the connection to it: permanent or transient, and whether the call may have taken effect.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use palisade_core::Refusal;
use redis_protocol::resp3::types::BytesFrame;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

use crate::engine::Failure;
use crate::engine::remote::{ConnectError, Peer};

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
    /// An option needs an encrypted connection.
    #[error("ca, cert, key and name are for encrypted lines; say palisades:// instead of palisade://")]
    NotEncrypted,
}

const ACCEPTED: &str = "say palisade://host:port, or palisades://user@host:port with TLS and a login";

/// A problem with encryption, certificates or the secret's file that stays until the operator changes something.
///
/// It is the source of the error that [`connect`](crate::connect) fails with:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use palisade::engine::service::SecurityError;
/// use std::error::Error;
///
/// let error = palisade::connect("palisades://127.0.0.1:1?ca=missing.pem").await.expect_err("there is no such file");
/// let found = error.source().and_then(|source| source.downcast_ref());
/// assert!(matches!(found, Some(SecurityError::Unreadable { .. })) && !error.is_retryable());
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// No trusted authority has signed the service's certificate.
    #[error("its certificate is signed by an unknown authority; pass the authority's certificate with ?ca=FILE")]
    UnknownAuthority,
    /// The service's certificate is not valid at this time.
    #[error("its certificate is not valid now ({why}); have it renewed, or set this host's clock")]
    Expired {
        /// The time since it ended, or until it begins.
        why: String,
    },
    /// The service's certificate is for another name.
    #[error(
        "its certificate is for another name ({why}); use a name in the certificate, or pass one with ?name=NAME"
    )]
    WrongName {
        /// The names.
        why: String,
    },
    /// Something else is wrong with the service's certificate.
    #[error("its certificate cannot be accepted ({why}); have it replaced")]
    BadCertificate {
        /// The problem.
        why: String,
    },
    /// The service requires a certificate of this client.
    #[error("it requires a client certificate; pass one with ?cert=FILE&key=FILE")]
    CertificateNeeded,
    /// The service does not accept the certificate of this client.
    #[error("it does not accept this client's certificate ({why}); pass another one with ?cert=FILE&key=FILE")]
    CertificateRefused {
        /// The service's alert.
        why: String,
    },
    /// The service does not encrypt.
    #[error("it does not encrypt; if that is intended, use palisade:// instead of palisades://")]
    NotEncrypted,
    /// The service accepts encrypted connections only.
    #[error("it accepts encrypted connections only; use palisades:// instead of palisade://")]
    Encrypted,
    /// The two sides have no version or method of encryption in common.
    #[error("there is no way to encrypt that both sides know: {why}")]
    NoAgreement {
        /// The missing part.
        why: String,
    },
    /// The system has no trusted authorities.
    #[error("this host has no certificates of authorities to trust; pass one with ?ca=FILE{}", because(.why))]
    NoAuthorities {
        /// The files that could not be read.
        why: String,
    },
    /// A file cannot be used.
    #[error("{what} in {} cannot be used: {why}", .path.display())]
    Unreadable {
        /// The expected contents.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
}

/// Returns the time between two instants as text.
fn span(from: UnixTime, to: UnixTime) -> String {
    let seconds = to.as_secs().saturating_sub(from.as_secs());
    match (seconds / 86_400, seconds / 3_600) {
        (0, 0) => format!("{seconds} s"),
        (0, hours) => format!("{hours} h"),
        (days, _) => format!("{days} days"),
    }
}

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}

impl SecurityError {
    /// Returns why a stream failed, if the operator has to change something.
    fn cause_of(error: &io::Error) -> Option<SecurityError> {
        use rustls::Error::{AlertReceived, InvalidCertificate, PeerIncompatible};
        match error.get_ref()?.downcast_ref()? {
            InvalidCertificate(bad) => Some(SecurityError::in_certificate(bad)),
            AlertReceived(alert) => SecurityError::in_alert(*alert),
            PeerIncompatible(why) => Some(SecurityError::NoAgreement { why: format!("{why:?}") }),
            _ => None,
        }
    }

    /// Returns why a handshake failed, if the operator has to change something. Bytes that are not TLS mean that the service does not encrypt.
    pub(super) fn in_handshake(error: &io::Error) -> Option<SecurityError> {
        let source = error.get_ref().and_then(|source| source.downcast_ref());
        match source {
            Some(rustls::Error::InvalidMessage(_)) => Some(SecurityError::NotEncrypted),
            _ => SecurityError::cause_of(error),
        }
    }

    fn in_certificate(bad: &CertificateError) -> SecurityError {
        let why = bad.to_string();
        match bad {
            CertificateError::UnknownIssuer => SecurityError::UnknownAuthority,
            CertificateError::ExpiredContext { time, not_after } => {
                SecurityError::Expired { why: format!("it ended {} ago", span(*not_after, *time)) }
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                SecurityError::Expired { why: format!("it begins in {}", span(*time, *not_before)) }
            }
            CertificateError::Expired | CertificateError::NotValidYet => SecurityError::Expired { why },
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                SecurityError::WrongName { why }
            }
            _ => SecurityError::BadCertificate { why },
        }
    }

    fn in_alert(alert: AlertDescription) -> Option<SecurityError> {
        use AlertDescription as Alert;
        let why = format!("{alert:?}");
        match alert {
            Alert::CertificateRequired | Alert::NoCertificate => Some(SecurityError::CertificateNeeded),
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied => Some(SecurityError::CertificateRefused { why }),
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => {
                Some(SecurityError::NoAgreement { why })
            }
            _ => None,
        }
    }
}

impl From<SecurityError> for ConnectError {
    fn from(error: SecurityError) -> ConnectError {
        ConnectError::permanent(error.to_string()).because(error)
    }
}

/// Converts the error of a stream.
pub(super) fn stream_error(error: io::Error) -> ConnectError {
    match SecurityError::cause_of(&error) {
        Some(error) => error.into(),
        // An encrypted stream that ends without close_notify. A truncated reply is detected anyway: it has a length.
        None if error.kind() == io::ErrorKind::UnexpectedEof => closed(),
        None => ConnectError::transient(format!("the connection broke: {error}")).because(Arc::new(error)),
    }
}

pub(super) fn closed() -> ConnectError {
    ConnectError::transient("the connection was closed")
}

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

/// Escapes text from the service for a terminal.
pub(super) fn printable(text: &str) -> String {
    let show = |c: char| if c == '\'' || c == '"' { c.to_string() } else { c.escape_debug().to_string() };
    text.chars().map(show).collect()
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
