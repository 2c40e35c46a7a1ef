//! What an encrypted line needs.

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use rustls::crypto::{CryptoProvider, ring};

use super::Config;
use super::Encryption;
use crate::engine::remote::ConnectError;
use crate::engine::tls::{Options, authorities, certificates, private_key};

/// How a URL says it.
pub(super) const OPTIONS: Options = Options { ca: "?ssl-ca=FILE", identity: "?ssl-cert=FILE&ssl-key=FILE" };

/// How to dial: with what an encrypted line needs, if it is to be one.
pub(super) fn opts(config: &Config) -> Result<Opts, ConnectError> {
    let Encryption::Verified { ca, identity } = &config.encryption else { return Ok(config.server.clone()) };
    if CryptoProvider::get_default().is_none() {
        // The driver asks for whatever is the default; that somebody else has just set one is as good.
        drop(ring::default_provider().install_default());
    }
    let roots = authorities(ca.as_deref(), &OPTIONS).map_err(ConnectError::permanent)?;
    let tls = SslOpts::default().with_disable_built_in_roots(true);
    let mut tls = tls.with_root_certs(roots.into_iter().map(|root| root.to_vec().into()).collect());
    if let Some((cert, key)) = identity {
        // The driver would not say which file is the bad one.
        certificates(cert).and(private_key(key).map(drop)).map_err(ConnectError::permanent)?;
        tls = tls.with_client_identity(Some(ClientIdentity::new(cert.clone().into(), key.clone().into())));
    }
    Ok(OptsBuilder::from_opts(config.server.clone()).ssl_opts(tls).into())
}
