//! Why a connection is not trusted.

use std::path::PathBuf;

use thiserror::Error;

use super::ConnectError;

/// A problem with encryption, certificates or a secret's file that stays until the operator changes something.
///
/// It is the source of the error that [`connect`](crate::connect) fails with. That error's message also says what to change:
///
/// ```
/// # #[cfg(feature = "service")]
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use palisade::engine::remote::SecurityError;
/// use std::error::Error;
///
/// let error = palisade::connect("palisades://127.0.0.1:1?ca=missing.pem").await.expect_err("there is no such file");
/// let found = error.source().and_then(|source| source.downcast_ref());
/// assert!(matches!(found, Some(SecurityError::Unreadable { .. })) && !error.is_retryable());
/// # }
/// # #[cfg(not(feature = "service"))] fn main() {}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// No trusted authority has signed the server's certificate.
    #[error("its certificate is signed by an unknown authority")]
    UnknownAuthority,
    /// The server's certificate is not valid at this time.
    #[error("its certificate is not valid now ({why})")]
    Expired {
        /// Since when, or until when.
        why: String,
    },
    /// The server's certificate is for another name.
    #[error("its certificate is for another name ({why})")]
    WrongName {
        /// The names.
        why: String,
    },
    /// Something else is wrong with the server's certificate.
    #[error("its certificate cannot be accepted ({why})")]
    BadCertificate {
        /// The problem.
        why: String,
    },
    /// The server requires a certificate of this client.
    #[error("it requires a client certificate")]
    CertificateNeeded,
    /// The server does not accept the certificate of this client.
    #[error("it does not accept this client's certificate ({why})")]
    CertificateRefused {
        /// The server's alert.
        why: String,
    },
    /// The server does not encrypt.
    #[error("it does not encrypt")]
    NotEncrypted,
    /// The server accepts encrypted connections only.
    #[error("it accepts encrypted connections only")]
    Encrypted,
    /// The two sides have no version or method of encryption in common.
    #[error("there is no way to encrypt that both sides know: {why}")]
    NoAgreement {
        /// The missing part.
        why: String,
    },
    /// The system has no trusted authorities.
    #[error("this host has no certificates of authorities to trust")]
    NoAuthorities,
    /// A file cannot be used.
    #[error("{what} in {} cannot be used: {why}", .path.display())]
    Unreadable {
        /// The expected contents.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// The options of a URL that certificates are named with, and the remedies that differ between stores.
pub(crate) struct TlsOptions {
    /// The authority's certificate: `ca`.
    pub(crate) ca: &'static str,
    /// This client's certificate: `cert`.
    pub(crate) cert: &'static str,
    /// Its key: `key`.
    pub(crate) key: &'static str,
    /// What to do about a certificate for another name.
    pub(crate) wrong_name: &'static str,
    /// What to do about a server that does not encrypt.
    pub(crate) not_encrypted: &'static str,
    /// What to do about a server that does.
    pub(crate) encrypted: &'static str,
}

impl TlsOptions {
    /// The options for this client's certificate.
    pub(crate) fn identity(&self) -> String {
        format!("?{}=FILE&{}=FILE", self.cert, self.key)
    }
}

impl SecurityError {
    /// Adds what to do about it.
    pub(crate) fn connect_error(self, options: &TlsOptions) -> ConnectError {
        let advice = match self {
            SecurityError::UnknownAuthority => format!("pass its CA with ?{}=FILE", options.ca),
            SecurityError::NoAuthorities => format!("pass one with ?{}=FILE", options.ca),
            SecurityError::Expired { .. } => "have it renewed, or set this host's clock".to_owned(),
            SecurityError::WrongName { .. } => options.wrong_name.to_owned(),
            SecurityError::BadCertificate { .. } => "have it replaced".to_owned(),
            SecurityError::CertificateNeeded => format!("pass one with {}", options.identity()),
            SecurityError::CertificateRefused { .. } => format!("pass another one with {}", options.identity()),
            SecurityError::NotEncrypted => options.not_encrypted.to_owned(),
            SecurityError::Encrypted => options.encrypted.to_owned(),
            SecurityError::NoAgreement { .. } => "TLS 1.2 or 1.3 is needed".to_owned(),
            SecurityError::Unreadable { .. } => return ConnectError::permanent(self.to_string()).because(self),
        };
        ConnectError::permanent(format!("{self}; {advice}")).because(self)
    }
}
