//! What an encrypted line needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// How lines are encrypted. The server's certificate is always verified. All files are PEM, and read for every line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whose certificates the server may show; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// What this client shows, if the server wants to see a certificate.
    pub identity: Option<Identity>,
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
    /// Reads the files; an error says what is wrong with which.
    pub(super) fn load(&self) -> Result<TlsConnector, String> {
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(self.roots()?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                // Whatever is wrong with a key, nothing of it is shown.
                let no_key = |_| format!("there is no private key in PEM form in {}", key.display());
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(no_key)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
        };
        Ok(Arc::new(config).into())
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let found = match &self.ca {
            Some(file) => certificates(file)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let (usable, _) = roots.add_parsable_certificates(found);
        if usable == 0 {
            return Err("there is no authority to trust; name one with ?ca=FILE".to_owned());
        }
        Ok(roots)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    found.map_err(|error| format!("{} has no certificates in PEM form: {error}", path.display()))
}
