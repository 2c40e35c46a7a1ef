//! TLS between members: each shows a certificate of the cluster's authority.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::tls::{TlsError, certificates, key};

/// The files of a member, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// The member's certificate, followed by those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that has signed the certificates of all members.
    pub ca: PathBuf,
}

/// TLS to and from other members. Clones share it, also after [`replace`](PeerTls::replace).
#[derive(Clone)]
pub struct PeerTls {
    now: Arc<RwLock<Loaded>>,
}

#[derive(Clone)]
struct Loaded {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl PeerTls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the certificate and the key do not match.
    pub fn load(files: &PeerTlsFiles) -> Result<PeerTls, TlsError> {
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates("the member's certificate", &files.certificate)?;
        let key = key(&files.key)?;
        let pair = |why| TlsError::Pair { certificate: files.certificate.clone(), key: files.key.clone(), why };
        let refused = |why: String| TlsError::ClientCa { file: files.ca.clone(), why };
        let mut roots = RootCertStore::empty();
        for root in certificates("the members' authority", &files.ca)? {
            roots.add(root).map_err(|why| refused(why.to_string()))?;
        }
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), crypto.clone()).build();
        let verifier = verifier.map_err(|why| refused(why.to_string()))?;
        let versions = &[&rustls::version::TLS13];
        let server =
            ServerConfig::builder_with_provider(crypto.clone()).with_protocol_versions(versions).map_err(pair)?;
        let server = server.with_client_cert_verifier(verifier);
        let server = server.with_single_cert(chain.clone(), key.clone_key()).map_err(pair)?;
        let client = ClientConfig::builder_with_provider(crypto).with_protocol_versions(versions).map_err(pair)?;
        let client = client.with_root_certificates(roots).with_client_auth_cert(chain, key).map_err(pair)?;
        let now = Loaded { server: Arc::new(server), client: Arc::new(client) };
        Ok(PeerTls { now: Arc::new(RwLock::new(now)) })
    }

    /// Replaces the certificates in all clones. Open connections keep theirs.
    pub fn replace(&self, with: &PeerTls) {
        let after = with.now();
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = after;
    }

    fn now(&self) -> Loaded {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        TlsAcceptor::from(self.now().server).accept(stream).await
    }

    /// Connects to the member at this address, whose certificate must name the host.
    pub(super) async fn connect(&self, address: &str, stream: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.now().client).connect(name, stream).await
    }
}

impl std::fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerTls").finish_non_exhaustive()
    }
}
