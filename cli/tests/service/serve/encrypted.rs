//! TLS, and client certificates that name users.

use std::fs;
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::{Client, Value};
use super::service::Service;
use super::users::TestUsers;
use crate::sandbox::Sandbox;

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub(crate) struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        Authority::called("ours")
    }

    pub(crate) fn called(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Identity { certificate: params.signed_by(&key, &self.0).unwrap(), key }
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn named(&self, name: &str) -> Identity {
        self.issue(|params| params.distinguished_name.push(DnType::CommonName, name))
    }
}

/// Writes the service's certificate and key. Returns the `[serve.tls]` table.
pub(crate) fn tls(sandbox: &Sandbox, server: &Identity, client_ca: Option<&Authority>, more: &str) -> String {
    let put = |name: &str, text: String| fs::write(sandbox.path().join(name), text).unwrap();
    put("server.pem", server.certificate.pem());
    put("server.key", server.key.serialize_pem());
    let mut table = "[serve.tls]\ncertificate = 'server.pem'\nkey = 'server.key'\n".to_owned();
    if let Some(authority) = client_ca {
        put("clients.pem", authority.0.pem());
        table += "client_ca = 'clients.pem'\n";
    }
    table + more + "\n"
}

/// Returns the TLS configuration of a client: the authority that it trusts, and its certificate.
pub(crate) fn trust(trusted: &Authority, certificate: Option<&Identity>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.0.der().clone()).unwrap();
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    match certificate {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let chain: Vec<CertificateDer<'static>> = vec![identity.certificate.der().clone()];
            let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    }
}

pub(crate) fn connect(
    service: &Service,
    trusted: &Authority,
    certificate: Option<&Identity>,
) -> Result<Client, String> {
    let config = trust(trusted, certificate);
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(service.address).unwrap();
    let stream = StreamOwned::new(session, socket.try_clone().unwrap());
    let mut client = Client::over(Box::new(stream), socket);
    // With TLS 1.3 a client learns only now that its certificate was refused.
    match client.try_send(b"*1\r\n$4\r\nPING\r\n").then(|| client.read()) {
        Some(Ok(Value::Simple(_))) => Ok(client),
        Some(Ok(other)) => Err(other.to_string()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("it could not be sent".to_owned()),
    }
}

#[test]
fn a_client_can_connect_with_tls() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let service = sandbox.serve_with(&tls(&sandbox, &authority.named("x"), None, ""));
    let mut client = connect(&service, &authority, None).unwrap();
    client.hello();
    let session = client.session().to_string();
    client.call_ok(&format!("LOCK ACQUIRE a SESSION {session}"));
    // Large requests and replies, in many TLS records.
    let message = vec![b'x'; 200_000];
    for _ in 0..20 {
        client.send_command(&[b"PING", &message]);
    }
    for _ in 0..20 {
        assert_eq!(client.answer().text().len(), message.len());
    }
    client.call_ok("QUIT");
    assert_eq!(client.until_closed(), "");
    service.stop();
}

#[test]
fn a_plaintext_client_is_not_answered() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let service = sandbox.serve_with(&tls(&sandbox, &authority.named("x"), None, ""));
    let output = service.client().send(b"*1\r\n$4\r\nPING\r\n").until_closed();
    assert!(!output.contains("PONG"), "{output}");
    assert!(service.line_with("the TLS handshake failed").contains("peer="));
    connect(&service, &authority, None).unwrap();
}

#[test]
fn a_client_rejects_a_certificate_of_another_authority() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let service = sandbox.serve_with(&tls(&sandbox, &authority.named("x"), None, ""));
    let refused = connect(&service, &Authority::called("theirs"), None).err().unwrap();
    assert!(refused.contains("could not be sent") || refused.contains("UnknownIssuer"), "{refused}");
    connect(&service, &authority, None).unwrap();
}

#[test]
fn a_handshake_without_progress_is_closed() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let config = tls(&sandbox, &authority.named("x"), None, "") + "[serve.bounds]\ngreeting = '5s'\nstrangers = 1\n";
    let service = sandbox.serve_with(&config);
    let mut silent = service.client();
    assert_eq!(silent.until_closed(), "");
    connect(&service, &authority, None).unwrap();
}

#[test]
fn only_client_certificates_of_the_configured_authority_are_accepted() {
    let (sandbox, ours, theirs) = (Sandbox::new(), Authority::new(), Authority::called("theirs"));
    let service = sandbox.serve_with(&tls(&sandbox, &ours.named("x"), Some(&ours), ""));
    connect(&service, &ours, Some(&ours.named("client"))).unwrap();
    let expired = ours.issue(|params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    let mut output = String::new();
    for (what, shown) in [
        ("no certificate", None),
        ("that of another authority", Some(theirs.named("client"))),
        ("one that has expired", Some(expired)),
    ] {
        output += &format!("{what} => {}\n", connect(&service, &ours, shown.as_ref()).err().unwrap());
        let line = service.line_with("the TLS handshake failed");
        output += &format!("  {}\n", line.split_once("why=").unwrap().1);
    }
    let mut settings = insta::Settings::clone_current();
    // The times of the verification.
    settings.add_filter(r"verification time \d+", "verification time [NOW]");
    settings.add_filter(r"\d+ seconds ago", "[TIME] ago");
    settings.bind(|| insta::assert_snapshot!("client-certificates", output));
    connect(&service, &ours, Some(&ours.named("client"))).unwrap();
}

#[test]
fn a_client_certificate_can_name_the_user() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['observe', 'acquire'], prefix = 'alice/' }"),
        ("bob", "{ verbs = ['observe', 'acquire'], prefix = 'bob/' }"),
    ]);
    for (from, certificate) in [
        (
            "common-name",
            &(|name: &str, params: &mut CertificateParams| {
                params.distinguished_name.push(DnType::CommonName, name);
            }) as &dyn Fn(&str, &mut CertificateParams),
        ),
        ("dns", &|name, params| params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())]),
        ("uri", &|name, params| params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())]),
        ("email", &|name, params| params.subject_alt_names = vec![SanType::Rfc822Name(name.try_into().unwrap())]),
    ] {
        let (sandbox, authority) = (Sandbox::new(), Authority::new());
        let more = format!("user_from = '{from}'\nclient_certificates = 'optional'");
        let config = tls(&sandbox, &authority.named("x"), Some(&authority), &more) + &users.config();
        let service = sandbox.serve_with(&config);
        let alice = authority.issue(|params| certificate("alice", params));
        let mut client = connect(&service, &authority, Some(&alice)).unwrap();
        client.hello().call_ok("LOCK ACQUIRE alice/1 TTL 60000");
        assert!(client.refusal("LOCK ACQUIRE bob/1 TTL 60000").starts_with("DENIED "), "{from}");
        // A client with an unknown certificate, or with none, connects without a login.
        let carol = authority.issue(|params| certificate("carol", params));
        for shown in [Some(&carol), None] {
            let mut client = connect(&service, &authority, shown).unwrap();
            assert!(client.refusal("INFO").starts_with("NOAUTH "), "{from}");
        }
    }
}

#[test]
fn with_tls_and_users_the_service_may_listen_to_other_hosts() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let users = TestUsers::new(&[("alice", "{ verbs = ['acquire'], prefix = '' }")]);
    let table = tls(&sandbox, &authority.named("x"), None, "");
    let only_tls = sandbox.configure(&table);
    let args = ["serve", "--check", "--config", &only_tls, "--data-dir", "data", "--resp", "0.0.0.0:0"];
    insta::assert_snapshot!("open-without-users", sandbox.stderr(64, &args));
    let config = sandbox.configure(&(table + &users.config()));
    let checked =
        sandbox.stdout(&["serve", "--check", "--config", &config, "--data-dir", "data", "--resp", "0.0.0.0:0"]);
    insta::assert_snapshot!("check-encrypted", sandbox.redacted(&checked, crate::sandbox::Numbers::Kept));
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let config = sandbox.configure(&tls(&sandbox, &authority.named("x"), None, ""));
    fs::write(sandbox.path().join("server.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let output = sandbox.stderr(64, &["serve", "--check", "--config", &config, "--data-dir", "data"]);
    insta::assert_snapshot!("wrong-key", sandbox.redacted(&output, crate::sandbox::Numbers::Kept));
}
