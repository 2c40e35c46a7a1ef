//! What an encrypted line needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::SecurityError;

/// How a line is encrypted. The service's certificate is always verified. All files are PEM; they are read for the
/// first line, and again after one that somebody's files were in the way of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whose certificates the service may show; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// What this client shows, if the service wants to see a certificate.
    pub identity: Option<Identity>,
    /// What the service's certificate must be for; without it, the host that is called.
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

impl Tls {
    /// Reads the files.
    pub(super) fn load(&self) -> Result<TlsConnector, SecurityError> {
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let no_tls = |error: rustls::Error| SecurityError::NoAgreement { why: error.to_string() };
        let builder = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
        let builder = builder.map_err(no_tls)?.with_root_certificates(self.roots()?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key: file }) => {
                let (chain, key) = (certificates("the certificate", certificate)?, key(file)?);
                let unusable = |error: rustls::Error| unreadable("the key", file, error.to_string());
                builder.with_client_auth_cert(chain, key).map_err(unusable)?
            }
        };
        Ok(Arc::new(config).into())
    }

    fn roots(&self) -> Result<RootCertStore, SecurityError> {
        let mut roots = RootCertStore::empty();
        if let Some(file) = &self.ca {
            for root in certificates("the authority's certificate", file)? {
                let unusable =
                    |error: rustls::Error| unreadable("the authority's certificate", file, error.to_string());
                roots.add(root).map_err(unusable)?;
            }
            return Ok(roots);
        }
        let found = rustls_native_certs::load_native_certs();
        // A system may have some that nobody can read any more.
        let (usable, _) = roots.add_parsable_certificates(found.certs);
        if usable == 0 {
            let why: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
            return Err(SecurityError::NoAuthorities { why: why.join("; ") });
        }
        Ok(roots)
    }
}

fn unreadable(what: &'static str, path: &Path, why: String) -> SecurityError {
    SecurityError::Unreadable { what, path: path.to_owned(), why }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, SecurityError> {
    fs::read(path).map_err(|error| unreadable(what, path, error.to_string()))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let pem = read(what, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unreadable(what, path, "there is no certificate in it in PEM form".to_owned())),
        Err(error) => Err(unreadable(what, path, error.to_string())),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, SecurityError> {
    let pem = read("the key", path)?;
    // Whatever is wrong with it, nothing of it is shown.
    let bad = |_| unreadable("the key", path, "there is no private key in it in PEM form".to_owned());
    PrivateKeyDer::from_pem_slice(&pem).map_err(bad)
}
