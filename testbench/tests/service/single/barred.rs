//! Clients that are refused, or denied an operation. The error gives the reason and what to do.

use std::error::Error as _;
use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use palisade::engine::remote::SecurityError;
use palisade::{Error, ErrorKind, Options};
use palisade_testbench::credentials::{self, Authority, Credentials, Login};
use rcgen::date_time_ymd;

use super::fixture::{Fixture, check, take, token};
use super::guarded::Guarded;

/// Starts an encrypted service without users. `issue` writes its `server.pem`.
fn encrypted(issue: impl FnOnce(&Credentials, &Path)) -> (Fixture, Credentials) {
    let folder = tempfile::tempdir().expect("a folder");
    let credentials = Credentials::new(folder.path());
    issue(&credentials, folder.path());
    let (name, value) = credentials.tls();
    (Fixture::with_variables(folder, &[(name, &value)]), credentials)
}

/// Starts a plain service with these users.
fn with_users(users: &[&Login]) -> Fixture {
    let (name, value) = credentials::users(users);
    Fixture::with_variables(tempfile::tempdir().expect("a folder"), &[(name, &value)])
}

async fn refusal(url: &str) -> Error {
    palisade::connect(url).await.map(drop).expect_err("it is not let in")
}

/// Returns the message without the parts that differ in every run.
fn message(fixture: &Fixture, error: &Error) -> String {
    let address = fixture.service.address.to_string();
    let reply =
        error.to_string().replace(&address, "ADDRESS").replace(&fixture.folder().display().to_string(), "DIR");
    assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{reply}");
    reply
}

fn security_error(error: &Error) -> Option<&SecurityError> {
    error.source()?.downcast_ref()
}

#[test]
fn a_wrong_or_missing_secret_is_rejected() {
    check(async {
        let (alice, stranger) = (Login::new("alice", "admin", ""), Login::new("bob", "admin", ""));
        let fixture = with_users(&[&alice]);
        let place = fixture.service.address;
        palisade::connect(&format!("palisade://{}@{place}", alice.in_url())).await.expect("alice is let in");
        let mut told = Vec::new();
        for login in [format!("alice:{}@", stranger.secret()), format!("{}@", stranger.in_url()), String::new()] {
            let error = refusal(&format!("palisade://{login}{place}")).await;
            assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{error:?}");
            for shown in [error.to_string(), format!("{error:?}")] {
                assert!(!shown.contains(stranger.secret()), "{shown}");
            }
            told.push(message(&fixture, &error));
        }
        assert_snapshot!(told.join("\n"));
    });
}

#[test]
fn a_login_is_refused_by_a_service_without_users() {
    check(async {
        let fixture = Fixture::new();
        let error = refusal(&format!("palisade://ci:xyzzy@{}", fixture.service.address)).await;
        assert_snapshot!(message(&fixture, &error));
    });
}

#[test]
fn a_request_without_the_right_is_denied_and_changes_nothing() {
    check(async {
        let (alice, bob) = (Login::new("alice", "acquire", "a/"), Login::new("bob", "observe", "a/"));
        let fixture = with_users(&[&alice, &bob]);
        let url = |login: &Login| format!("palisade://{}@{}", login.in_url(), fixture.service.address);
        let alices = palisade::connect(&url(&alice)).await.expect("alice is let in");
        let bobs = Options::new().observer().connect(&url(&bob)).await.expect("bob is let in");
        let guard = take(&alices, "a/lock").await;
        let mut told = Vec::new();
        for error in [
            alices.lock("b/lock").acquire().await.map(drop).expect_err("not hers"),
            alices.lock("b/lock").try_acquire().await.map(drop).expect_err("not hers"),
            alices.inspect("a/lock").await.map(drop).expect_err("she may not look"),
            alices.watch("a/").await.map(drop).expect_err("she may not look"),
            bobs.force_release("a/lock", "a test").await.map(drop).expect_err("he may only look"),
            refusal(&url(&bob)).await,
        ] {
            assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{error:?}");
            told.push(message(&fixture, &error));
        }
        assert_snapshot!(told.join("\n"));
        let lock = bobs.inspect("a/lock").await.expect("he may look").expect("it is held");
        assert_eq!(lock.holders[0].token, token(&guard));
    });
}

#[test]
fn a_service_with_an_untrusted_certificate_gets_no_request() {
    check(async {
        let (fixture, _) = encrypted(|_, folder| Authority::new("theirs").publish(folder, "theirs.pem"));
        let (place, folder) = (fixture.service.address, fixture.folder().display().to_string());
        palisade::connect(&format!("palisades://{place}?ca={folder}/ca.pem")).await.expect("it can be believed");
        let error = refusal(&format!("palisades://{place}?ca={folder}/theirs.pem")).await;
        assert_eq!(security_error(&error), Some(&SecurityError::UnknownAuthority));
        let mut told = vec![message(&fixture, &error)];
        let error = refusal(&format!("palisades://{place}?ca={folder}/ca.pem&name=locks.example")).await;
        assert!(matches!(security_error(&error), Some(SecurityError::WrongName { .. })), "{error:?}");
        told.push(message(&fixture, &error));

        let (fixture, _) = encrypted(|credentials, folder| {
            credentials.authority.issue(folder, "server", &["127.0.0.1"], |params| {
                params.not_before = date_time_ymd(2001, 1, 1);
                params.not_after = date_time_ymd(2002, 1, 1);
            });
        });
        let url = format!("palisades://{}?ca={}/ca.pem", fixture.service.address, fixture.folder().display());
        let error = refusal(&url).await;
        let Some(SecurityError::Expired { why }) = security_error(&error) else { panic!("{error:?}") };
        told.push(message(&fixture, &error).replace(why, "WHEN"));
        assert!(why.starts_with("it ended ") && why.ends_with(" days ago"), "{why}");
        assert_snapshot!(told.join("\n"));
    });
}

#[test]
fn a_certificate_for_a_name_is_valid_at_an_address_if_the_url_names_it() {
    check(async {
        let issue = |credentials: &Credentials, folder: &Path| {
            credentials.authority.issue(folder, "server", &["locks.example"], |_| {})
        };
        let (fixture, _) = encrypted(issue);
        let url = format!("palisades://{}?ca={}/ca.pem", fixture.service.address, fixture.folder().display());
        assert!(matches!(security_error(&refusal(&url).await), Some(SecurityError::WrongName { .. })));
        palisade::connect(&format!("{url}&name=locks.example")).await.expect("that is its name");
    });
}

#[test]
fn an_encrypted_client_and_a_plain_service_refuse_each_other() {
    check(async {
        let (fixture, _) = encrypted(|_, _| {});
        let error = refusal(&fixture.service.url()).await;
        assert_eq!(security_error(&error), Some(&SecurityError::Encrypted), "{error:?}");
        let mut told = vec![message(&fixture, &error)];
        let plain = Fixture::new();
        let ca = fixture.folder().join("ca.pem");
        let error = refusal(&format!("palisades://{}?ca={}", plain.service.address, ca.display())).await;
        assert_eq!(security_error(&error), Some(&SecurityError::NotEncrypted), "{error:?}");
        told.push(message(&plain, &error));
        assert_snapshot!(told.join("\n"));
    });
}

/// With TLS 1.3 a client learns of the rejection after it has sent its first request. It gets the same error in each order of
/// events.
#[test]
fn a_wrong_or_missing_client_certificate_is_rejected() {
    check(async {
        let guarded = Guarded::new();
        let folder = guarded.fixture.folder();
        Authority::new("theirs").issue(folder, "theirs", &["client"], |_| {});
        guarded.credentials.authority.issue(folder, "expired", &["client"], |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        });
        let dir = folder.display();
        let shown = |name: &str| format!("&cert={dir}/{name}.pem&key={dir}/{name}.key");
        let mut told = Vec::new();
        for shown in [String::new(), shown("theirs"), shown("expired")] {
            let url = format!(
                "palisades://{}@{}?ca={dir}/ca.pem{shown}",
                guarded.login.in_url(),
                guarded.fixture.service.address
            );
            let first = message(&guarded.fixture, &refusal(&url).await);
            for _ in 0..20 {
                assert_eq!(message(&guarded.fixture, &refusal(&url).await), first);
            }
            told.push(first);
        }
        assert_snapshot!(told.join("\n"));
    });
}

#[test]
fn files_that_cannot_be_used_are_named() {
    check(async {
        let guarded = Guarded::new();
        let (folder, place) = (guarded.fixture.folder(), guarded.fixture.service.address);
        fs::write(folder.join("empty"), "\n").expect("the folder is ours");
        let dir = folder.display();
        let mut told = Vec::new();
        for options in [
            format!("ca={dir}/missing"),
            format!("ca={dir}/empty"),
            format!("ca={dir}/ca.pem&cert={dir}/client.pem&key={dir}/empty"),
            format!("ca={dir}/ca.pem&cert={dir}/client.pem&key={dir}/server.key"),
            format!("{}&secret_file={dir}/missing", credentials::options(folder)),
            format!("{}&secret_file={dir}/empty", credentials::options(folder)),
        ] {
            let user = if options.contains("secret_file") { "ci@" } else { "" };
            let error = refusal(&format!("palisades://{user}{place}?{options}")).await;
            assert!(matches!(security_error(&error), Some(SecurityError::Unreadable { .. })), "{error:?}");
            told.push(message(&guarded.fixture, &error));
        }
        assert_snapshot!(told.join("\n"));
    });
}

/// The first error is final: no keeper retries in the background.
#[test]
fn a_client_that_was_refused_does_not_retry_in_the_background() {
    check(async {
        let fixture = with_users(&[&Login::new("alice", "admin", "")]);
        drop(refusal(&format!("palisade://alice:xyzzy@{}", fixture.proxy.address)).await);
        fixture.proxy.until_ended(1).await;
        assert_eq!(fixture.proxy.accepted(), 1);
    });
}
