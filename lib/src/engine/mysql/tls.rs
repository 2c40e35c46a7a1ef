//! What an encrypted line needs.

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};

use super::Config;
use super::Encryption;
use super::error::Trouble;

/// How to dial: with what an encrypted line needs, if it is to be one.
pub(super) fn opts(config: &Config) -> Result<Opts, Trouble> {
    let Encryption::Verified { ca, identity } = &config.encryption else { return Ok(config.server.clone()) };
    if CryptoProvider::get_default().is_none() {
        // The driver asks for whatever is the default; that somebody else has just set one is as good.
        drop(ring::default_provider().install_default());
    }
    let tls = SslOpts::default().with_disable_built_in_roots(true);
    let tls = match ca {
        Some(ca) => tls.with_root_certs(vec![ca.clone().into()]),
        None => tls.with_root_certs(system_roots()?.into_iter().map(Into::into).collect()),
    };
    let identity = identity.as_ref().map(|(cert, key)| ClientIdentity::new(cert.clone().into(), key.clone().into()));
    Ok(OptsBuilder::from_opts(config.server.clone()).ssl_opts(tls.with_client_identity(identity)).into())
}

/// The authorities that the system trusts, each as DER.
fn system_roots() -> Result<Vec<Vec<u8>>, Trouble> {
    // A system may have some that nobody can read any more.
    let found = rustls_native_certs::load_native_certs().certs.into_iter();
    let usable = found.filter(|cert| RootCertStore::empty().add(cert.clone()).is_ok());
    let roots: Vec<_> = usable.map(|cert| cert.to_vec()).collect();
    if roots.is_empty() {
        let what = "this host has no certificates of authorities to trust; name one with ?ssl-ca=FILE";
        return Err(Trouble::for_good(what.to_owned()));
    }
    Ok(roots)
}
