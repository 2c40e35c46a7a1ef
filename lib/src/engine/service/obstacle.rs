//! What is in the way of a line until somebody does something about it.

use std::io;
use std::path::PathBuf;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

/// Why there is no line to a service, and will be none until somebody does something about it.
///
/// It is the source of the error that [`connect`](crate::connect) fails with:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use palisade::engine::service::Obstacle;
/// use std::error::Error;
///
/// let error = palisade::connect("palisades://127.0.0.1:1?ca=missing.pem").await.expect_err("there is no such file");
/// let obstacle = error.source().and_then(|source| source.downcast_ref());
/// assert!(matches!(obstacle, Some(Obstacle::Unreadable { .. })) && !error.is_retryable());
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// Nobody who is trusted vouches for the service.
    #[error("nobody whom this client trusts has issued its certificate; name the one who has with ?ca=FILE")]
    UnknownAuthority,
    /// The service's certificate is not valid at this time.
    #[error("its certificate is not valid now ({why}); have it renewed, or set this host's clock")]
    Expired {
        /// Since or until when.
        why: String,
    },
    /// The service's certificate is for somebody else.
    #[error(
        "its certificate is for another name ({why}); call it by a name in the certificate, or say which one \
             with ?name=NAME"
    )]
    WrongName {
        /// For which.
        why: String,
    },
    /// Something else is wrong with the service's certificate.
    #[error("its certificate cannot be accepted ({why}); have it replaced")]
    BadCertificate {
        /// What.
        why: String,
    },
    /// The service wants to see a certificate, and was shown none.
    #[error("it wants to see a certificate of this client; name one with ?cert=FILE&key=FILE")]
    CertificateNeeded,
    /// The service does not accept the certificate of this client.
    #[error("it does not accept this client's certificate ({why}); name another one with ?cert=FILE&key=FILE")]
    CertificateRefused {
        /// What it said.
        why: String,
    },
    /// What answers does not encrypt.
    #[error("what answers there is not encrypted; if that is meant, say palisade:// instead of palisades://")]
    NotEncrypted,
    /// What answers only encrypts.
    #[error("what answers there is encrypted; say palisades:// instead of palisade://")]
    Encrypted,
    /// The two sides have no version or method of encryption in common.
    #[error("there is no way to encrypt that both sides know: {why}")]
    NoAgreement {
        /// What is missing.
        why: String,
    },
    /// The system trusts nobody.
    #[error("this host has no certificates of authorities to trust; name one with ?ca=FILE{}", because(.why))]
    NoAuthorities {
        /// What could not be read.
        why: String,
    },
    /// A file cannot be used.
    #[error("{what} in {} cannot be used: {why}", .path.display())]
    Unreadable {
        /// What it should hold.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// From one time to another, for people.
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

impl Obstacle {
    /// What is in the way, if that is why a stream failed; everything else may go away by itself.
    pub(super) fn behind(error: &io::Error) -> Option<Obstacle> {
        use rustls::Error::{AlertReceived, InvalidCertificate, PeerIncompatible};
        match error.get_ref()?.downcast_ref()? {
            InvalidCertificate(bad) => Some(Obstacle::in_certificate(bad)),
            AlertReceived(alert) => Obstacle::in_alert(*alert),
            PeerIncompatible(why) => Some(Obstacle::NoAgreement { why: format!("{why:?}") }),
            _ => None,
        }
    }

    /// The same, for one that was never encrypted.
    pub(super) fn before(error: &io::Error) -> Option<Obstacle> {
        let source = error.get_ref().and_then(|source| source.downcast_ref());
        match source {
            Some(rustls::Error::InvalidMessage(_)) => Some(Obstacle::NotEncrypted),
            _ => Obstacle::behind(error),
        }
    }

    fn in_certificate(bad: &CertificateError) -> Obstacle {
        let why = bad.to_string();
        match bad {
            CertificateError::UnknownIssuer => Obstacle::UnknownAuthority,
            CertificateError::ExpiredContext { time, not_after } => {
                Obstacle::Expired { why: format!("it ended {} ago", span(*not_after, *time)) }
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                Obstacle::Expired { why: format!("it begins in {}", span(*time, *not_before)) }
            }
            CertificateError::Expired | CertificateError::NotValidYet => Obstacle::Expired { why },
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Obstacle::WrongName { why }
            }
            _ => Obstacle::BadCertificate { why },
        }
    }

    fn in_alert(alert: AlertDescription) -> Option<Obstacle> {
        use AlertDescription as Alert;
        let why = format!("{alert:?}");
        match alert {
            Alert::CertificateRequired | Alert::NoCertificate => Some(Obstacle::CertificateNeeded),
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied => Some(Obstacle::CertificateRefused { why }),
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => {
                Some(Obstacle::NoAgreement { why })
            }
            _ => None,
        }
    }
}
