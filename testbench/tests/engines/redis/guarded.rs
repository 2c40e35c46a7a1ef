//! Encrypted connections, and users with exactly the rights that docs/engines/redis.md lists.

use std::error::Error as _;

use palisade::engine::redis::{Config, survey};
use palisade::engine::remote::SecurityError;
use palisade::{ErrorKind, Palisade};
use palisade_testbench::credentials::{self, Authority, Credentials};
use palisade_testbench::servers::free_port;
use tempfile::TempDir;

use super::fixture::{Fixture, LONG_TTL, check, connect, take, taken, taking, until_queued};

/// The rights of docs/engines/redis.md.
const RIGHTS: &str = "+@connection +@scripting +@hash +@sortedset +@pubsub +time +wait +role +info";

/// Starts a server with TLS and client certificates on one port, and neither on the other.
fn encrypted() -> (Fixture, u16) {
    let folder = tempfile::tempdir().expect("a folder");
    drop(Credentials::new(folder.path()));
    let port = free_port().expect("a port").port();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key, ca, number) = (file("server.pem"), file("server.key"), file("ca.pem"), port.to_string());
    let options =
        ["--tls-port", &number, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    (Fixture::inside(folder, &options, &[]), port)
}

async fn refused(url: &str) -> palisade::Error {
    palisade::connect(url).await.map(|_: Palisade| ()).expect_err("it is not let in")
}

fn stranger() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    Authority::new("a stranger").publish(folder.path(), "ca.pem");
    folder
}

#[test]
#[ignore = "long: several seconds"]
fn an_encrypted_connection_is_used_and_verified() {
    check(async {
        let (fixture, port) = encrypted();
        let credentials = credentials::options(fixture.folder.path());
        let alice = connect(&format!("rediss://localhost:{port}?{credentials}"), LONG_TTL).await;
        let bob = connect(&format!("rediss://127.0.0.1:{port}?{credentials}"), LONG_TTL).await;
        let held = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        held.release().await.expect("it is held");
        drop(taken(waiting).await);
        let place = format!("//localhost:{port}?{credentials}");
        let seen = survey(&Config::parse_encrypted(&place).expect("a URL")).await.expect("it can be looked at");
        assert_eq!((seen.appendonly.as_deref(), seen.maxmemory), (Some("no"), Some(0)));

        // An unknown authority; missing files; a server without a certificate.
        let stranger = stranger();
        for (url, problem, remedy) in [
            (
                format!("rediss://127.0.0.1:{port}?ca={}/ca.pem", stranger.path().display()),
                SecurityError::UnknownAuthority.to_string(),
                "?ca=FILE",
            ),
            (
                format!("rediss://127.0.0.1:{port}?ca=/nowhere/ca.pem"),
                "/nowhere/ca.pem cannot be used".to_owned(),
                "",
            ),
        ] {
            let error = refused(&url).await;
            assert!(
                !error.is_retryable() && error.source().is_some_and(|source| source.is::<SecurityError>()),
                "{error}"
            );
            assert!(error.to_string().contains(&problem) && error.to_string().contains(remedy), "{error}");
        }
        refused(&format!("rediss://{}?{credentials}", fixture.redis.address)).await;
    });
}

#[test]
fn a_user_with_the_rights_of_the_page_can_do_everything_and_others_are_told() {
    check(async {
        let fixture = Fixture::new();
        let set_user = |name: &str, rights: &str| {
            let words = format!("ACL SETUSER {name} on >xyzzy {rights}");
            assert_eq!(fixture.redis.cli(&words.split(' ').collect::<Vec<_>>()), "OK");
        };
        set_user("locks", &format!("~palisade:* &palisade:* {RIGHTS}"));
        set_user("keyless", &format!("~other:* &palisade:* {RIGHTS}"));
        set_user("powerless", "~palisade:* &palisade:* +@connection");
        let url = |login: &str| format!("redis://{login}@{}", fixture.redis.address);
        let (alice, bob) =
            (connect(&url("locks:xyzzy"), LONG_TTL).await, connect(&url("locks:xyzzy"), LONG_TTL).await);
        let held = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        assert_eq!(alice.list("").await.expect("an answer").len(), 1);
        held.release().await.expect("it is held");
        drop(taken(waiting).await);

        for login in ["keyless:xyzzy", "powerless:xyzzy", "locks:wrong", "nobody:xyzzy"] {
            let error = refused(&url(login)).await;
            assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{login}: {error}");
            assert!(!error.to_string().contains("xyzzy"), "{error}");
        }
    });
}
