//! TLS connections to the proxy.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::proxy::Proxy;
use super::upstream::Upstream;
use crate::common::bounded::{Bounded, TIMEOUT};
use crate::sandbox::Sandbox;

#[test]
fn clients_can_connect_with_tls() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(sandbox.path().join("server.pem"), certificate.pem()).unwrap();
    fs::write(sandbox.path().join("server.key"), key.serialize_pem()).unwrap();
    let options = ["--tls-certificate", "server.pem", "--tls-key", "server.key", "--store", "memory:"];
    let proxy = Proxy::start(&sandbox, &upstream.url(), &options);

    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let socket = TcpStream::connect(proxy.address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    let request =
        "POST / HTTP/1.1\r\nhost: x\r\nfencing-token: 33; seal\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    // A server may close without a TLS close_notify.
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.contains("fencing-verdict: sealed; token=33; seq=0"), "{answer}");

    // And by `palisade fence check`, which trusts the authority in SSL_CERT_FILE.
    let url = format!("https://localhost:{}", proxy.address.port());
    let check = |authority: &str| {
        let mut command = sandbox.command(&["fence", "check", &url, "orders", "--token", "32"]);
        sandbox.output(&command.env("SSL_CERT_FILE", sandbox.path().join(authority)).finish())
    };
    let output = check("server.pem");
    assert!(output.code == Some(76) && output.out.starts_with("orders is sealed with token 33."), "{output:?}");
    let other = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    fs::write(sandbox.path().join("other.pem"), other.self_signed(&KeyPair::generate().unwrap()).unwrap().pem())
        .unwrap();
    let output = check("other.pem");
    assert!(output.code == Some(69) && output.err.contains("certificate"), "{output:?}");
}
