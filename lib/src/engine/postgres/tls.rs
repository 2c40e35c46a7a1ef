//! What an encrypted line needs.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Encryption;
use super::error::Trouble;

/// Reads the files; `None` for a line that is not encrypted.
pub(super) fn load(encryption: &Encryption) -> Result<Option<MakeRustlsConnect>, Trouble> {
    let Encryption::Verified { ca, identity } = encryption else { return Ok(None) };
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let no_tls = |error: rustls::Error| Trouble::for_good(format!("cannot encrypt: {error}"));
    let builder = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
    let builder = builder.map_err(no_tls)?.with_root_certificates(roots(ca.as_deref())?);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert)?;
            // Whatever is wrong with it, nothing of it is shown.
            let bad = |_| unreadable(key, "there is no private key in it in PEM form");
            let key_der = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(bad)?;
            builder.with_client_auth_cert(chain, key_der).map_err(|error| unreadable(key, &error.to_string()))?
        }
    };
    Ok(Some(MakeRustlsConnect::new(config)))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, Trouble> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = ca {
        for root in certificates(file)? {
            roots.add(root).map_err(|error| unreadable(file, &error.to_string()))?;
        }
        return Ok(roots);
    }
    // A system may have some that nobody can read any more.
    let (usable, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if usable == 0 {
        let what = "this host has no certificates of authorities to trust; name one with ?sslrootcert=FILE";
        return Err(Trouble::for_good(what.to_owned()));
    }
    Ok(roots)
}

fn unreadable(path: &Path, why: &str) -> Trouble {
    Trouble::for_good(format!("{} cannot be used: {why}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, Trouble> {
    fs::read(path).map_err(|error| unreadable(path, &error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Trouble> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unreadable(path, "there is no certificate in it in PEM form")),
        Err(error) => Err(unreadable(path, &error.to_string())),
    }
}
