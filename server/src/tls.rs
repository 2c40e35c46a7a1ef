//! TLS: the service's certificate, and those of its clients.

mod names;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The files for TLS, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The service's certificate, followed by those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that must have signed the clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is accepted.
    pub client_optional: bool,
    /// The part of a client's certificate that names its user.
    pub user_from: Option<UserFrom>,
}

/// The part of a client's certificate that names its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserFrom {
    /// The subject's common name.
    CommonName,
    /// The first alternative name that is a DNS name.
    Dns,
    /// The first alternative name that is a mail address.
    Email,
    /// The first alternative name that is a URI.
    Uri,
}

/// Why these files cannot be used for TLS.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum TlsError {
    #[error("cannot read {what} {}: {source}", file.display())]
    Read { what: &'static str, file: PathBuf, source: std::io::Error },
    #[error("{} holds no {what} in PEM form ({why})", file.display())]
    Pem { what: &'static str, file: PathBuf, why: String },
    #[error("the certificate {} and the key {} cannot be used together: {why}", certificate.display(), key.display())]
    Pair { certificate: PathBuf, key: PathBuf, why: rustls::Error },
    #[error("the certificates in {} cannot vouch for clients: {why}", file.display())]
    ClientCa { file: PathBuf, why: String },
}

/// The TLS configuration. Clones share it, also after [`replace`](Tls::replace).
#[derive(Clone)]
pub struct Tls {
    now: Arc<RwLock<Loaded>>,
}

#[derive(Clone)]
struct Loaded {
    resp: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    user_from: Option<UserFrom>,
}

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the certificate and the key do not match.
    pub fn load(files: &TlsFiles) -> Result<Tls, TlsError> {
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates("the certificate", &files.certificate)?;
        let key = key(&files.key)?;
        let pair = |why| TlsError::Pair { certificate: files.certificate.clone(), key: files.key.clone(), why };
        let builder = ServerConfig::builder_with_provider(crypto.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(pair)?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let refused = |why: String| TlsError::ClientCa { file: file.clone(), why };
                let mut roots = RootCertStore::empty();
                for root in certificates("the clients' authority", file)? {
                    roots.add(root).map_err(|why| refused(why.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), crypto);
                let verifier = if files.client_optional { verifier.allow_unauthenticated() } else { verifier };
                builder.with_client_cert_verifier(verifier.build().map_err(|why| refused(why.to_string()))?)
            }
        };
        let resp = builder.with_single_cert(chain, key).map_err(pair)?;
        let mut http = resp.clone();
        http.alpn_protocols = vec![b"http/1.1".to_vec()];
        let now = Loaded { resp: Arc::new(resp), http: Arc::new(http), user_from: files.user_from };
        Ok(Tls { now: Arc::new(RwLock::new(now)) })
    }

    /// Returns the acceptor for RESP connections.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.now().resp.into()
    }

    /// Returns the acceptor for HTTP connections, which negotiate the version by ALPN.
    pub fn http_acceptor(&self) -> TlsAcceptor {
        self.now().http.into()
    }

    /// Replaces the certificates in all clones. Open connections keep theirs.
    pub fn replace(&self, with: &Tls) {
        let after = with.now();
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = after;
    }

    fn now(&self) -> Loaded {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the user that the client's certificate names. The handshake has verified the certificate.
    pub fn user(&self, connection: &ServerConnection) -> Option<String> {
        names::named(connection.peer_certificates()?.first()?, self.now().user_from?)
    }
}

/// The bytes of a connection, with or without TLS.
pub(crate) type ByteStream = Box<dyn Duplex>;

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A connection that was accepted.
pub(crate) enum Accepted {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl Accepted {
    /// Returns its bytes.
    pub(crate) fn bytes(&mut self) -> &mut dyn Duplex {
        match self {
            Accepted::Plain(stream) => stream,
            Accepted::Encrypted(stream) => stream,
        }
    }

    /// Returns it in the form in which all connections are alike.
    pub(crate) fn boxed(self) -> ByteStream {
        match self {
            Accepted::Plain(stream) => Box::new(stream),
            Accepted::Encrypted(stream) => stream,
        }
    }
}

fn read(what: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(file).map_err(|source| TlsError::Read { what, file: file.to_owned(), source })
}

pub(crate) fn certificates(what: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |why: String| TlsError::Pem { what: "certificate", file: file.to_owned(), why };
    let pem = read(what, file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|why| bad(why.to_string()))?;
    if found.is_empty() { Err(bad("nothing is marked as one".to_owned())) } else { Ok(found) }
}

pub(crate) fn key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read("the key", file)?;
    let bad = |why: rustls::pki_types::pem::Error| TlsError::Pem {
        what: "private key",
        file: file.to_owned(),
        why: why.to_string(),
    };
    PrivateKeyDer::from_pem_slice(&pem).map_err(bad)
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("user_from", &self.now().user_from).finish_non_exhaustive()
    }
}
