//! Certificates and logins for services that authenticate their clients.

use std::fs;
use std::path::{Path, PathBuf};

use palisade_server::access::Secret;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates an authority of this name.
    ///
    /// # Panics
    ///
    /// No key can be made. The other functions here panic for that too.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Writes a certificate for these names, and its key: `NAME.pem` and `NAME.key`.
    pub fn issue(&self, folder: &Path, name: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::new(names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
        let params = params.as_mut().expect("names");
        change(params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.clone().signed_by(&key, &self.0).expect("a certificate");
        put(folder, &format!("{name}.pem"), &certificate.pem());
        put(folder, &format!("{name}.key"), &key.serialize_pem());
    }

    /// Writes the certificate of the authority.
    pub fn publish(&self, folder: &Path, file: &str) {
        put(folder, file, &self.0.pem());
    }
}

fn put(folder: &Path, file: &str, text: &str) {
    fs::write(folder.join(file), text).expect("the folder is ours");
}

/// The certificates of an encrypted service and its clients, in one folder: `ca.pem`, `server.pem` and `server.key` for
/// 127.0.0.1 and localhost, `client.pem` and `client.key`.
pub struct Credentials {
    folder: PathBuf,
    /// The authority that issued them.
    pub authority: Authority,
}

impl Credentials {
    /// Creates and writes them.
    pub fn new(folder: &Path) -> Credentials {
        let authority = Authority::new("ours");
        authority.publish(folder, "ca.pem");
        authority.issue(folder, "server", &["127.0.0.1", "localhost"], |_| {});
        authority.issue(folder, "client", &["client"], |_| {});
        Credentials { folder: folder.to_owned(), authority }
    }

    /// Makes services that are started from now on require client certificates.
    pub fn demand_certificates(&self) {
        self.authority.publish(&self.folder, "clients.pem");
    }

    /// Returns the environment variable that makes `serve` encrypt.
    pub fn tls(&self) -> (&'static str, String) {
        ("SERVE_TLS", self.folder.display().to_string())
    }
}

/// Returns the options of a client's URL: the authority that it trusts, and its certificate.
pub fn options(folder: &Path) -> String {
    let folder = folder.display();
    format!("ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key")
}

/// A user of a service.
#[derive(Debug, Clone)]
pub struct Login {
    name: String,
    secret: String,
    hash: String,
    right: String,
}

impl Login {
    /// Creates a user with a random secret and one right: this verb, on names with this prefix.
    pub fn new(name: &str, verb: &str, prefix: &str) -> Login {
        let secret = Secret::random().expect("random numbers");
        let (hash, right) = (secret.hash().to_string(), format!("{verb} {prefix}"));
        Login { name: name.to_owned(), secret: secret.reveal().to_owned(), hash, right }
    }

    /// Returns the same user with another right.
    pub fn allowed(&self, verb: &str, prefix: &str) -> Login {
        Login { right: format!("{verb} {prefix}"), ..self.clone() }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the secret.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Returns the part of a URL before the `@`.
    pub fn in_url(&self) -> String {
        format!("{}:{}", self.name, self.secret)
    }
}

/// Returns the environment variable that makes these the users of `serve`.
pub fn users(logins: &[&Login]) -> (&'static str, String) {
    let user = |login: &&Login| format!("{} {} {}", login.name, login.hash, login.right);
    ("SERVE_USERS", logins.iter().map(user).collect::<Vec<_>>().join(";"))
}
