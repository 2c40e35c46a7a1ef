//! What engines on databases have in common where lines are encrypted: files, and what is in the way of a line.

use std::error::Error;
use std::path::Path;
use std::{fs, io};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, RootCertStore};

/// How a URL says it.
pub(crate) struct Options {
    /// The option for authorities to trust: `?ca=FILE`.
    pub(crate) ca: &'static str,
    /// What is shown: `?cert=FILE&key=FILE`.
    pub(crate) identity: &'static str,
}

/// Loads the authorities to trust: those in the file, or else the system's.
pub(crate) fn authorities(ca: Option<&Path>, options: &Options) -> Result<Vec<CertificateDer<'static>>, String> {
    let check = |cert: &CertificateDer<'static>| RootCertStore::empty().add(cert.clone());
    if let Some(file) = ca {
        let found = certificates(file)?;
        found.iter().try_for_each(check).map_err(|error| unusable(file, &error.to_string()))?;
        return Ok(found);
    }
    // A system may have some that nobody can read any more.
    let found = rustls_native_certs::load_native_certs().certs.into_iter();
    let usable: Vec<_> = found.filter(|cert| check(cert).is_ok()).collect();
    match usable.is_empty() {
        true => Err(format!("this host has no certificates of authorities to trust; name one with {}", options.ca)),
        false => Ok(usable),
    }
}

/// The certificates in a file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(path, "there is no certificate in it in PEM form")),
        Err(error) => Err(unusable(path, &error.to_string())),
    }
}

/// The private key in a file. Whatever is wrong with it, nothing of it is shown.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let no_key = |_| unusable(path, "there is no private key in it in PEM form");
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(no_key)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| unusable(path, &error.to_string()))
}

fn unusable(path: &Path, why: &str) -> String {
    format!("{} cannot be used: {why}", path.display())
}

/// What is in the way of an encrypted line until somebody does something about it, and what that is. `None` if it may go
/// away by itself.
pub(crate) fn obstacle(error: &(dyn Error + 'static), options: &Options) -> Option<String> {
    use AlertDescription as Alert;
    let Options { ca, identity } = options;
    match behind(error)? {
        rustls::Error::InvalidCertificate(bad) => Some(match bad {
            CertificateError::UnknownIssuer => {
                format!("nobody whom this client trusts has issued its certificate; name the one who has with {ca}")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("its certificate is for another name ({bad}); call it by a name in the certificate")
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                format!("its certificate is not valid now ({bad}); have it renewed, or set this host's clock")
            }
            _ => format!("its certificate cannot be accepted ({bad}); have it replaced"),
        }),
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::CertificateRequired | Alert::NoCertificate => {
                Some(format!("it wants to see a certificate of this client; name one with {identity}"))
            }
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied => Some(format!(
                "it does not accept this client's certificate ({alert:?}); name another with {identity}"
            )),
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => {
                Some(format!("there is no way to encrypt that both sides know ({alert:?}); it needs TLS 1.2 or 1.3"))
            }
            _ => None,
        },
        rustls::Error::PeerIncompatible(why) => {
            Some(format!("there is no way to encrypt that both sides know ({why:?}); it needs TLS 1.2 or 1.3"))
        }
        _ => None,
    }
}

/// What TLS itself has said.
fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // What is in one of these is not its source, but has its source.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
