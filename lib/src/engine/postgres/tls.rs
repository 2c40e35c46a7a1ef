//! What an encrypted line needs.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Encryption;
use crate::engine::remote::ConnectError;
use crate::engine::tls::{Options, authorities, certificates, private_key};

/// How a URL says it.
pub(super) const OPTIONS: Options = Options { ca: "?sslrootcert=FILE", identity: "?sslcert=FILE&sslkey=FILE" };

/// Reads the files; `None` for a line that is not encrypted.
pub(super) fn load(encryption: &Encryption) -> Result<Option<MakeRustlsConnect>, ConnectError> {
    let Encryption::Verified { ca, identity } = encryption else { return Ok(None) };
    let no_tls = |error: rustls::Error| ConnectError::permanent(format!("cannot encrypt: {error}"));
    let mut roots = RootCertStore::empty();
    for root in authorities(ca.as_deref(), &OPTIONS).map_err(ConnectError::permanent)? {
        roots.add(root).map_err(no_tls)?;
    }
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
    let builder = builder.map_err(no_tls)?.with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert).map_err(ConnectError::permanent)?;
            let key = private_key(key).map_err(ConnectError::permanent)?;
            builder.with_client_auth_cert(chain, key).map_err(no_tls)?
        }
    };
    Ok(Some(MakeRustlsConnect::new(config)))
}
