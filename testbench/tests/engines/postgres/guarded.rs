//! Encrypted connections: the authorities that a client trusts, its certificate, and its errors.

use std::path::Path;

use palisade::{Error, Palisade};
use palisade_testbench::credentials::Authority;
use palisade_testbench::servers::{InUse, Shared};
use tempfile::TempDir;

use super::fixture::{
    CA, CERTIFICATE, ENCRYPTED, Fixture, KEY, LONG_TTL, NOT_ENCRYPTED, Server, VERIFIED, WEAK, check, take, taken,
    taking, until_queued,
};

static ENCRYPTING: Shared<Server> = Shared::new(Server::start_encrypted);

/// Returns a database on a server with TLS, and the server with the folder of its certificates. The user `sealed` needs an
/// encrypted connection, and the user `client` a certificate.
async fn encrypted() -> (Fixture, std::sync::Arc<InUse<Server>>) {
    let server = ENCRYPTING.in_use().unwrap_or_else(|absent| panic!("{absent}"));
    let fixture = Fixture::beside(server.0.address);
    fixture.allow("sealed", "SSL").await;
    fixture.allow("client", "X509").await;
    (fixture, server)
}

fn trusting(folder: &Path) -> String {
    format!("{CA}={}/ca.pem", folder.display())
}

fn with_certificate(folder: &Path) -> String {
    let folder = folder.display();
    format!("{CERTIFICATE}={folder}/client.pem&{KEY}={folder}/client.key")
}

/// An authority that the clients do not trust, and its certificate.
fn stranger() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let stranger = Authority::new("a stranger");
    stranger.publish(folder.path(), "ca.pem");
    stranger.issue(folder.path(), "client", &["client"], |_| {});
    folder
}

/// Asserts that the connection fails for good without effect, and that the message says what to do.
async fn refused(url: &str, says: &[&str]) -> Error {
    let error = palisade::connect(url).await.map(|_: Palisade| ()).expect_err(url);
    assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
    for part in says {
        assert!(error.to_string().contains(part), "{url} does not say '{part}': {error}");
    }
    error
}

#[test]
#[ignore = "long: several seconds"]
fn a_client_that_asks_for_tls_gets_it() {
    check(async {
        let (fixture, server) = encrypted().await;
        let trust = trusting(server.1.path());
        // A URL that names an authority asks for encryption.
        for options in [trust.clone(), format!("{ENCRYPTED}&{trust}"), format!("{VERIFIED}&{trust}")] {
            let url = format!("{}?{options}", fixture.url_as("sealed", "localhost"));
            let alice = palisade::Options::new().ttl(LONG_TTL).connect(&url).await.expect(&url);
            let bob = palisade::Options::new().ttl(LONG_TTL).connect(&url).await.expect(&url);
            let held = take(&alice, "lock").await;
            let waiting = taking(&bob, "lock");
            until_queued(&alice, "lock", 1).await;
            held.release().await.expect("it is held");
            taken(waiting).await.release().await.expect("it is held");
        }
        // The error names a user that the server accepts over TLS only.
        refused(&format!("{}?{NOT_ENCRYPTED}", fixture.url_as("sealed", "localhost")), &[ENCRYPTED]).await;
        refused(&fixture.url_as("sealed", "localhost"), &[ENCRYPTED]).await;
    });
}

#[test]
fn a_server_with_an_untrusted_certificate_gets_no_request() {
    check(async {
        let (fixture, server) = encrypted().await;
        let (trust, stranger) = (trusting(server.1.path()), stranger());
        let localhost = fixture.url_as("sealed", "localhost");
        let name_it = format!("{CA}=FILE");
        refused(&format!("{localhost}?{}", trusting(stranger.path())), &["signed by an unknown authority", &name_it])
            .await;
        // Both options for encryption verify the server, with the authorities of the system.
        for mode in [ENCRYPTED, VERIFIED] {
            refused(&format!("{localhost}?{mode}"), &[&name_it]).await;
        }
        let elsewhere = format!("{}?{ENCRYPTED}&{trust}", fixture.url_as("sealed", "127.0.0.1"));
        refused(&elsewhere, &["for another name", "localhost", "use a name in the certificate"]).await;
        let key = server.1.path().join("server.key");
        for file in ["/nowhere/ca.pem", &key.display().to_string()] {
            refused(&format!("{localhost}?{CA}={file}"), &[file, "cannot be used"]).await;
        }
    });
}

#[test]
fn a_plain_server_is_refused_unless_the_url_allows_it() {
    check(async {
        let (fixture, folder) = (Fixture::new(), tempfile::tempdir().expect("a folder"));
        Authority::new("anybody").publish(folder.path(), "ca.pem");
        let url = fixture.url();
        for options in [ENCRYPTED.to_owned(), VERIFIED.to_owned(), trusting(folder.path())] {
            refused(&format!("{url}?{options}"), &["does not encrypt", NOT_ENCRYPTED]).await;
        }
        for options in WEAK {
            refused(&format!("{url}?{options}"), &["names no "]).await;
        }
        let plain = palisade::connect(&format!("{url}?{NOT_ENCRYPTED}")).await.expect("that is what it does");
        take(&plain, "lock").await.release().await.expect("it is held");
    });
}

#[test]
#[ignore = "long: several seconds"]
fn a_client_certificate_is_sent_to_a_server_that_requires_one() {
    check(async {
        let (fixture, server) = encrypted().await;
        let (ours, stranger) = (server.1.path(), stranger());
        let url = format!("{}?{}", fixture.url_as("client", "localhost"), trusting(ours));
        let shown = palisade::connect(&format!("{url}&{}", with_certificate(ours))).await.expect("it has one");
        take(&shown, "lock").await.release().await.expect("it is held");
        refused(&url, &[&format!("{CERTIFICATE}=FILE&{KEY}=FILE")]).await;
        refused(
            &format!("{url}&{}", with_certificate(stranger.path())),
            &[&format!("{CERTIFICATE}=FILE&{KEY}=FILE")],
        )
        .await;
        let (cert, ca) = (ours.join("client.pem").display().to_string(), ours.join("ca.pem").display().to_string());
        let keyless = refused(&format!("{url}&{CERTIFICATE}={cert}&{KEY}={ca}"), &[&ca, "no private key"]).await;
        assert!(!keyless.to_string().contains("BEGIN"), "{keyless}");
        refused(&format!("{url}&{CERTIFICATE}=/nowhere/a.pem&{KEY}={ca}"), &["/nowhere/a.pem"]).await;
    });
}
