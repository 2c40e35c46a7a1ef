//! TLS for connections to stores.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::outcome::Failure;

/// Returns a TLS configuration that verifies the server's certificate: by this authority, or else by those that the system
/// trusts (`SSL_CERT_FILE` names others).
pub(super) fn config(authority: Option<&Path>) -> Result<ClientConfig, Failure> {
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Failure::Unavailable(format!("TLS cannot be set up: {error}")))?;
    let roots = match authority {
        Some(file) => roots_from_file(file)?,
        None => system_roots()?,
    };
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn roots_from_file(file: &Path) -> Result<RootCertStore, Failure> {
    let bad = |why: String| Failure::Misuse(format!("the certificates in {} cannot be used: {why}", file.display()));
    let pem = fs::read(file).map_err(|error| bad(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(&pem) {
        roots.add(root.map_err(|error| bad(error.to_string()))?).map_err(|error| bad(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(bad("there is none in PEM form".to_owned())),
        false => Ok(roots),
    }
}

fn system_roots() -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    // A system may have certificates that cannot be parsed. The others are enough.
    let (usable, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match usable {
        0 => {
            let message = "the system trusts no certificates: install ca-certificates, or set SSL_CERT_FILE";
            Err(Failure::Misuse(message.to_owned()))
        }
        _ => Ok(roots),
    }
}
