//! Stores over TLS: `palisade` connects only if their certificate is valid.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::{run, run_long};
use crate::sandbox::Sandbox;
use crate::servers::{Server, hand_over, try_mariadb};

/// Writes an authority's certificate, and a certificate for 127.0.0.1 that it has signed, with its key.
fn write_certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    for (name, text) in
        [("ca.pem", authority.pem()), ("server.pem", certificate.pem()), ("server.key", key.serialize_pem())]
    {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        hand_over(&path);
    }
}

/// Checks that the fence can be installed and used over this URL.
fn assert_reached(server: &Server, install: &[&str], url: &str) {
    let sandbox = Sandbox::new();
    let output = run(&sandbox, server, &[install, &[url]].concat());
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output:?}");
    let output = run(&sandbox, server, &["fence", "check", url, "orders"]);
    assert_eq!(output.out, "Nothing has sealed orders yet.\n", "{output:?}");
    let output = run_long(&sandbox, server, &["prove", "order", "--resource", url]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("NOTHING LOST"), "{output:?}");
}

fn assert_refused(server: &Server, url: &str) {
    let sandbox = Sandbox::new();
    for args in [&["fence", "check", url, "orders"][..], &["prove", "order", "--resource", url]] {
        let output = run(&sandbox, server, args);
        assert_eq!(output.code, Some(69), "{args:?}: {output:?}");
        assert!(output.err.to_lowercase().contains("certificate"), "{args:?}: {output:?}");
    }
}

#[test]
fn postgres_is_encrypted_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) =
        (format!("ssl_cert_file={}", path("server.pem")), format!("ssl_key_file={}", path("server.key")));
    let settings = ["-c", "ssl=on", "-c", &certificate, "-c", &key];
    let server = Server::postgres_with(&settings, |data| {
        // The readiness probe of the fixture connects without TLS.
        let rules = "hostnossl all postgres 127.0.0.1/32 trust\nhostssl all encrypted 127.0.0.1/32 trust\n";
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
    });
    crate::servers::try_psql(&format!("{}?sslmode=disable", server.url), "CREATE ROLE encrypted SUPERUSER LOGIN")
        .unwrap();
    let url = |mode: &str, authority: &str| {
        format!("postgres://encrypted@127.0.0.1:{}/postgres?sslmode={mode}&sslrootcert={authority}", server.port)
    };
    for mode in ["require", "verify-full"] {
        assert_reached(&server, &["fence", "postgres", "--install"], &url(mode, &path("ca.pem")));
    }
    let other = tempfile::tempdir().unwrap();
    write_certificates(other.path());
    assert_refused(&server, &url("verify-full", &other.path().join("ca.pem").display().to_string()));
    assert_refused(&server, &url("require", &path("ca.pem")).replace("127.0.0.1", "localhost"));
    let sandbox = Sandbox::new();
    let plain = url("disable", &path("ca.pem"));
    assert_eq!(sandbox.run(&["fence", "check", &plain, "orders"]).code, Some(69), "the server requires TLS");
}

#[test]
fn mariadb_is_encrypted_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) =
        (format!("--ssl-cert={}", path("server.pem")), format!("--ssl-key={}", path("server.key")));
    let server = Server::mariadb(&[&certificate, &key]);
    let user = "CREATE USER encrypted@'%' REQUIRE SSL; GRANT ALL ON shop.* TO encrypted@'%'; GRANT SUPER ON *.* TO encrypted@'%'";
    try_mariadb(server.port, user).unwrap();
    let url = |options: &str| format!("mysql://encrypted@127.0.0.1:{}/shop{options}", server.port);
    let good = url(&format!("?require_ssl=true&ssl-ca={}", path("ca.pem")));
    assert_reached(&server, &["fence", "mysql", "--install"], &good);
    let other = tempfile::tempdir().unwrap();
    write_certificates(other.path());
    assert_refused(&server, &url(&format!("?require_ssl=true&ssl-ca={}", other.path().join("ca.pem").display())));
    assert_refused(&server, &url("?require_ssl=true"));
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["fence", "check", &url(""), "orders"]).code, Some(69), "the server requires TLS");
}

#[test]
fn redis_is_encrypted_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let port = crate::servers::free_port();
    let mut server = Server::redis(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://127.0.0.1:{port}");
    assert_refused(&server, &url);
    server.variables.push(("SSL_CERT_FILE", path("ca.pem")));
    assert_reached(&server, &["fence", "redis", "--install"], &url);
}
