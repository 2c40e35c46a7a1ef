//! Encrypted lines: whom a client believes, what it shows, and what it is told when that is not enough.

use std::path::Path;

use palisade::{Error, Palisade};
use palisade_testbench::credentials::Authority;
use palisade_testbench::servers::Shared;
use tempfile::TempDir;

use crate::fixture::{
    CA, CERTIFICATE, ENCRYPTED, Fixture, KEY, LONG_TTL, NOT_ENCRYPTED, Server, VERIFIED, WEAK, check, take, taken,
    taking, until_queued,
};

static ENCRYPTING: Shared<Server> = Shared::new(Server::start_encrypted);

/// A database on a server that encrypts, with users `sealed`, for encrypted lines only, and `client`, who has to show a
/// certificate; and the folder of what vouches for whom.
async fn encrypting() -> (Fixture, std::sync::Arc<(Server, TempDir)>) {
    let server = ENCRYPTING.get().unwrap_or_else(|absent| panic!("{absent}"));
    let fixture = Fixture::beside(server.0.address);
    fixture.let_in("sealed", "SSL").await;
    fixture.let_in("client", "X509").await;
    (fixture, server)
}

fn believing(folder: &Path) -> String {
    format!("{CA}={}/ca.pem", folder.display())
}

fn showing(folder: &Path) -> String {
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

/// It is not let in, nothing has happened, there is no use in trying again, and it says what to do.
async fn refused(url: &str, says: &[&str]) -> Error {
    let error = palisade::connect(url).await.map(|_: Palisade| ()).expect_err(url);
    assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
    for part in says {
        assert!(error.to_string().contains(part), "{url} does not say '{part}': {error}");
    }
    error
}

#[test]
fn a_client_that_asks_for_tls_gets_it() {
    check(async {
        let (fixture, server) = encrypting().await;
        let trust = believing(server.1.path());
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
fn a_server_that_cannot_be_believed_is_not_spoken_to() {
    check(async {
        let (fixture, server) = encrypting().await;
        let (trust, stranger) = (believing(server.1.path()), stranger());
        let localhost = fixture.url_as("sealed", "localhost");
        let name_it = format!("{CA}=FILE");
        refused(
            &format!("{localhost}?{}", believing(stranger.path())),
            &["signed by an unknown authority", &name_it],
        )
        .await;
        // Both words for an encrypted line verify it, by those whom the system trusts.
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
fn a_server_that_does_not_encrypt_is_not_spoken_to_unless_that_is_meant() {
    check(async {
        let (fixture, folder) = (Fixture::new(), tempfile::tempdir().expect("a folder"));
        Authority::new("anybody").publish(folder.path(), "ca.pem");
        let url = fixture.url();
        for options in [ENCRYPTED.to_owned(), VERIFIED.to_owned(), believing(folder.path())] {
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
fn a_certificate_is_shown_to_a_server_that_wants_to_see_one() {
    check(async {
        let (fixture, server) = encrypting().await;
        let (ours, stranger) = (server.1.path(), stranger());
        let url = format!("{}?{}", fixture.url_as("client", "localhost"), believing(ours));
        let shown = palisade::connect(&format!("{url}&{}", showing(ours))).await.expect("it has one");
        take(&shown, "lock").await.release().await.expect("it is held");
        refused(&url, &[&format!("{CERTIFICATE}=FILE&{KEY}=FILE")]).await;
        refused(&format!("{url}&{}", showing(stranger.path())), &[&format!("{CERTIFICATE}=FILE&{KEY}=FILE")]).await;
        let (cert, ca) = (ours.join("client.pem").display().to_string(), ours.join("ca.pem").display().to_string());
        let keyless = refused(&format!("{url}&{CERTIFICATE}={cert}&{KEY}={ca}"), &[&ca, "no private key"]).await;
        assert!(!keyless.to_string().contains("BEGIN"), "{keyless}");
        refused(&format!("{url}&{CERTIFICATE}=/nowhere/a.pem&{KEY}={ca}"), &["/nowhere/a.pem"]).await;
    });
}
