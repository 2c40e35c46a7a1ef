//! TLS: the files of a client, and the errors of encrypted connections.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use super::{BadUrl, ConnectError, SecurityError, TlsOptions, Url};

/// The settings of an encrypted connection. The server's certificate is always verified. All files are PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of trusted authorities; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// The certificate of this client, if the server requires one.
    pub identity: Option<Identity>,
    /// The name that the server's certificate must be for; without it, the host of the URL.
    pub name: Option<String>,
}

/// A certificate and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The values of the option that says whether to encrypt.
pub(crate) struct TlsModes {
    /// The option's name.
    pub(crate) option: &'static str,
    pub(crate) off: &'static str,
    /// Encrypted and verified, in both words.
    pub(crate) on: [&'static str; 2],
    /// Encrypted only if the server can.
    pub(crate) opportunistic: &'static [&'static str],
    /// Verified, but not the name.
    pub(crate) any_name: &'static str,
}

impl Tls {
    /// Reads the options of a URL.
    pub(crate) fn read(url: &Url<'_>, options: &TlsOptions) -> Result<Tls, BadUrl> {
        let identity = match (url.option(options.cert)?, url.option(options.key)?) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(Identity { certificate: certificate.into(), key: key.into() }),
            _ => return Err(BadUrl::HalfIdentity),
        };
        Ok(Tls { ca: url.option(options.ca)?.map(Into::into), identity, name: url.option("name")? })
    }

    /// Reads the options of a URL whose scheme says whether to encrypt.
    pub(crate) fn read_if(url: &Url<'_>, options: &TlsOptions, is_on: bool) -> Result<Option<Tls>, BadUrl> {
        let tls = Tls::read(url, options)?;
        if !is_on && tls != Tls::default() { Err(BadUrl::NotEncrypted) } else { Ok(is_on.then_some(tls)) }
    }

    /// Reads the options of a URL with an option that says whether to encrypt. By default, connections to other hosts are
    /// encrypted.
    pub(crate) fn read_by_mode(
        url: &Url<'_>,
        options: &TlsOptions,
        mode: Option<&str>,
        modes: &TlsModes,
        is_local: bool,
    ) -> Result<Option<Tls>, BadUrl> {
        let (tls, TlsModes { option, off, on: [on, verified], .. }) = (Tls::read(url, options)?, modes);
        let has_files = tls != Tls::default();
        Err(BadUrl::Invalid(match mode {
            None => return Ok((!is_local || has_files).then_some(tls)),
            Some(mode) if modes.on.contains(&mode) => return Ok(Some(tls)),
            Some(mode) if mode == *off && !has_files => return Ok(None),
            Some(mode) if mode == *off => format!("{option}={off} encrypts nothing; leave the certificates out"),
            Some(mode) if modes.opportunistic.contains(&mode) => format!(
                "with {option}={mode} an attacker on the network decides whether to encrypt; use {on} or {off}"
            ),
            Some(mode) if mode == modes.any_name => {
                format!("{option}={mode} accepts certificates for any name; use {verified}")
            }
            Some(_) => format!("{option} is {off}, {on} or {verified}"),
        }))
    }

    /// Reads the files.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, SecurityError> {
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let no_tls = |error: rustls::Error| SecurityError::NoAgreement { why: error.to_string() };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authorities()?);
        let builder = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
        let builder = builder.map_err(no_tls)?.with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = identity.load()?;
                builder.with_client_auth_cert(chain, key).map_err(|error| identity.unusable(&error))?
            }
        };
        Ok(Arc::new(config))
    }

    /// Loads the authorities to trust.
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
        const CA: &str = "the authority's certificate";
        let check = |cert: &CertificateDer<'static>| RootCertStore::empty().add(cert.clone());
        if let Some(file) = &self.ca {
            let found = certificates(CA, file)?;
            found.iter().try_for_each(check).map_err(|error| unreadable(CA, file, error.to_string()))?;
            return Ok(found);
        }
        let mut found = rustls_native_certs::load_native_certs().certs;
        // A system may have old ones that cannot be parsed.
        found.retain(|cert| check(cert).is_ok());
        if found.is_empty() { Err(SecurityError::NoAuthorities) } else { Ok(found) }
    }
}

impl Identity {
    pub(crate) fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SecurityError> {
        let chain = certificates("the certificate", &self.certificate)?;
        // The error might quote the key.
        let no_key = |_| unreadable("the key", &self.key, "there is no private key in it in PEM form".to_owned());
        let key = PrivateKeyDer::from_pem_slice(&read("the key", &self.key)?).map_err(no_key)?;
        let crypto = rustls::crypto::ring::default_provider();
        let checked = CertifiedKey::from_der(chain.clone(), key.clone_key(), &crypto);
        checked.map_err(|error| self.unusable(&error))?;
        Ok((chain, key))
    }

    fn unusable(&self, error: &rustls::Error) -> SecurityError {
        match error {
            rustls::Error::InvalidCertificate(bad) => {
                let why = match bad.to_string() {
                    // The library's word for it.
                    why if why.contains("UnsupportedCertVersion") => "it is not of X.509 version 3".to_owned(),
                    why => why,
                };
                unreadable("the certificate", &self.certificate, why)
            }
            rustls::Error::InconsistentKeys(_) => {
                let why = format!("it is not the key of the certificate in {}", self.certificate.display());
                unreadable("the key", &self.key, why)
            }
            other => unreadable("the key", &self.key, other.to_string()),
        }
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(what, path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unreadable(what, path, "there is no certificate in it in PEM form".to_owned())),
        Err(error) => Err(unreadable(what, path, error.to_string())),
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, SecurityError> {
    fs::read(path).map_err(|error| unreadable(what, path, error.to_string()))
}

fn unreadable(what: &'static str, path: &Path, why: String) -> SecurityError {
    SecurityError::Unreadable { what, path: path.to_owned(), why }
}

impl SecurityError {
    /// Finds the reason of an error, unless it may pass without a change by the operator.
    pub(crate) fn behind(error: &(dyn Error + 'static)) -> Option<SecurityError> {
        match tls_error(error) {
            Some(rustls::Error::InvalidCertificate(bad)) => Some(in_certificate(bad)),
            Some(rustls::Error::AlertReceived(alert)) => in_alert(*alert),
            Some(rustls::Error::PeerIncompatible(why)) => {
                Some(SecurityError::NoAgreement { why: format!("{why:?}") })
            }
            Some(_) => None,
            None => in_alert(alert_in_text(error)?),
        }
    }

    /// Finds the reason, as [`SecurityError::behind`]. An older server says the same for a certificate that is missing and for one
    /// that it does not accept.
    #[cfg(any(feature = "consul", feature = "etcd"))]
    pub(crate) fn behind_client(error: &(dyn Error + 'static), has_certificate: bool) -> Option<SecurityError> {
        match SecurityError::behind(error)? {
            SecurityError::CertificateRefused { .. } if !has_certificate => Some(SecurityError::CertificateNeeded),
            found => Some(found),
        }
    }
}

/// Returns the alert that the last cause names. HTTP/2 keeps the text of an alert that arrives after the handshake, and not the
/// error.
fn alert_in_text(error: &(dyn Error + 'static)) -> Option<AlertDescription> {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let text = last.to_string();
    (0..=u8::MAX)
        .map(AlertDescription::from)
        .find(|alert| text.ends_with(&rustls::Error::AlertReceived(*alert).to_string()))
}

fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The error inside an io::Error is not its source, but has its source.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Whether the server has answered with bytes that are not TLS.
#[cfg(any(feature = "consul", feature = "etcd", feature = "redis", feature = "service"))]
pub(crate) fn is_not_tls(error: &(dyn Error + 'static)) -> bool {
    matches!(tls_error(error), Some(rustls::Error::InvalidMessage(_)))
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

/// Returns the time between two instants in words.
fn span(from: UnixTime, to: UnixTime) -> String {
    let seconds = to.as_secs().saturating_sub(from.as_secs());
    match (seconds / 86_400, seconds / 3_600) {
        (0, 0) => format!("{seconds} s"),
        (0, hours) => format!("{hours} h"),
        (days, _) => format!("{days} days"),
    }
}

/// The reason of a failed stream.
pub(crate) fn stream_error(error: io::Error, options: &TlsOptions) -> ConnectError {
    match SecurityError::behind(&error) {
        Some(error) => error.connect_error(options),
        // An encrypted stream that ends without close_notify. A truncated reply is detected anyway: it has a length.
        None if error.kind() == io::ErrorKind::UnexpectedEof => ConnectError::closed(),
        None => ConnectError::transient(format!("the connection broke: {error}")).because(Arc::new(error)),
    }
}

/// Encrypts a connection to a server of this name.
#[cfg(any(feature = "redis", feature = "service"))]
pub(crate) async fn encrypt(
    stream: tokio::net::TcpStream,
    config: Arc<ClientConfig>,
    name: &str,
    options: &TlsOptions,
) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, ConnectError> {
    let Ok(server) = rustls::pki_types::ServerName::try_from(name.to_owned()) else {
        let why = format!("'{}' is not a valid name", name.escape_debug());
        return Err(SecurityError::WrongName { why }.connect_error(options));
    };
    tokio_rustls::TlsConnector::from(config).connect(server, stream).await.map_err(|error| match is_not_tls(&error) {
        true => SecurityError::NotEncrypted.connect_error(options),
        false => stream_error(error, options),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_at_fault_is_named() {
        let identity = Identity { certificate: "ci.pem".into(), key: "ci.key".into() };
        let named = |error: rustls::Error| identity.unusable(&error).to_string();
        let bad = rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        assert!(named(bad).starts_with("the certificate in ci.pem cannot be used"));
        assert!(named(rustls::Error::General("odd".to_owned())).starts_with("the key in ci.key cannot be used"));
    }

    /// HTTP/2 replaces the error by one with its text, if the alert arrives after the handshake.
    #[cfg(any(feature = "consul", feature = "etcd"))]
    #[test]
    fn an_alert_of_which_only_the_text_is_left_is_recognised() {
        let arrived = |alert| io::Error::other(rustls::Error::AlertReceived(alert).to_string());
        let bad = arrived(AlertDescription::BadCertificate);
        assert_eq!(SecurityError::behind_client(&bad, false), Some(SecurityError::CertificateNeeded));
        assert!(matches!(SecurityError::behind_client(&bad, true), Some(SecurityError::CertificateRefused { .. })));
        let needed = arrived(AlertDescription::CertificateRequired);
        assert_eq!(SecurityError::behind_client(&needed, true), Some(SecurityError::CertificateNeeded));
        assert_eq!(SecurityError::behind_client(&io::Error::other("odd"), false), None);
    }
}
