//! Encrypted connections, and ACL tokens with exactly the rules that docs/engines/consul.md lists.

use std::error::Error as _;

use palisade::engine::consul::{Config, survey};
use palisade::engine::remote::SecurityError;
use palisade::{Error, ErrorKind, Options, Palisade};
use palisade_testbench::credentials::{self, Authority, Credentials};
use palisade_testbench::servers::{Consul, free_port};
use tempfile::TempDir;

use super::fixture::{check, inspect, take, taken, taking, until_queued};

/// Starts a server with TLS and client certificates on one port, and neither on the other.
fn encrypted() -> (Consul, u16, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    drop(Credentials::new(folder.path()));
    let port = free_port().expect("a port").port();
    let at = folder.path().display();
    let settings = format!(
        "session_ttl_min = \"100ms\" ports {{ https = {port} }} verify_incoming_https = true ca_file = \"{at}/ca.pem\" \
         cert_file = \"{at}/server.pem\" key_file = \"{at}/server.key\""
    );
    let consul = Consul::start_with(folder.path(), &settings).unwrap_or_else(|absent| panic!("{absent}"));
    (consul, port, folder)
}

async fn refused(url: &str) -> Error {
    palisade::connect(url).await.map(|_: Palisade| ()).expect_err("it is not let in")
}

#[test]
fn an_encrypted_connection_is_used_and_verified() {
    let (_consul, port, folder) = encrypted();
    check(async {
        let credentials = credentials::options(folder.path());
        let connect = async |host: &str| {
            let url = format!("consuls://{host}:{port}?{credentials}");
            Options::new().connect(&url).await.expect("a client")
        };
        let (alice, bob) = (connect("localhost").await, connect("127.0.0.1").await);
        let held = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        held.release().await.expect("it is held");
        drop(taken(waiting).await);
        let config = Config::parse_encrypted(&format!("//localhost:{port}?{credentials}")).expect("a URL");
        let seen = survey(&config).await.expect("it can be looked at");
        assert_eq!((seen.has_leader, seen.voters), (Some(true), Some(1)));
    });
}

/// Each message names the problem, and the option or the scheme that solves it.
#[test]
fn a_connection_that_is_not_trusted_is_refused_with_advice() {
    let (consul, port, folder) = encrypted();
    check(async {
        let stranger = tempfile::tempdir().expect("a folder");
        let strange = Authority::new("a stranger");
        strange.publish(stranger.path(), "ca.pem");
        strange.issue(stranger.path(), "client", &["client"], |_| {});
        let (ours, theirs) = (folder.path().display(), stranger.path().display());
        let credentials = credentials::options(folder.path());
        for (url, problem, remedy) in [
            (
                format!("consuls://127.0.0.1:{port}?ca={theirs}/ca.pem"),
                SecurityError::UnknownAuthority.to_string(),
                "?ca=FILE",
            ),
            (
                format!("consuls://127.0.0.1:{port}?ca=/nowhere/ca.pem"),
                "/nowhere/ca.pem cannot be used".to_owned(),
                "",
            ),
            (
                format!("consuls://127.0.0.1:{port}?ca={ours}/ca.pem"),
                SecurityError::CertificateNeeded.to_string(),
                "?cert=FILE&key=FILE",
            ),
            (
                format!(
                    "consuls://127.0.0.1:{port}?ca={ours}/ca.pem&cert={theirs}/client.pem&key={theirs}/client.key"
                ),
                "does not accept this client's certificate".to_owned(),
                "?cert=FILE&key=FILE",
            ),
            (
                format!("consuls://{}?{credentials}", consul.address),
                SecurityError::NotEncrypted.to_string(),
                "consul://",
            ),
            (format!("consul://127.0.0.1:{port}"), SecurityError::Encrypted.to_string(), "consuls://"),
        ] {
            let error = refused(&url).await;
            let text = error.to_string();
            assert!(text.contains(&problem) && text.contains(remedy), "{url}: {text}");
            assert!(!error.is_retryable() && error.source().is_some_and(|its| its.is::<SecurityError>()), "{text}");
        }
    });
}

/// A token protects nothing if Consul gives all rights to clients without one.
#[test]
fn a_survey_says_whether_clients_need_a_token() {
    check(async {
        for (policy, is_open) in [("allow", true), ("deny", false)] {
            let folder = tempfile::tempdir().expect("a folder");
            let consul = with_acls(&folder, policy);
            let config = Config::parse(&format!("//:{MASTER}@{}", consul.address)).expect("a URL");
            assert_eq!(survey(&config).await.expect("it answers").is_open, Some(is_open), "{policy}");
        }
    });
}

const MASTER: &str = "9a1c7b4e-0000-4000-8000-000000000001";
const KEYS: &str = "key_prefix \"palisade/\" { policy = \"write\" }";
const SESSIONS: &str = "session_prefix \"\" { policy = \"write\" }";

/// Starts a server that checks ACL tokens.
fn with_acls(folder: &TempDir, default_policy: &str) -> Consul {
    Consul::start_with_acls(folder.path(), default_policy, MASTER).unwrap_or_else(|absent| panic!("{absent}"))
}

/// Creates an ACL token with these rules.
async fn token_with(consul: &Consul, name: &str, rules: &str) -> String {
    let (master, rules, policy) =
        (format!("-token={MASTER}"), format!("-rules={rules}"), format!("-policy-name={name}"));
    consul.ctl(&["acl", "policy", "create", &master, &format!("-name={name}"), &rules]);
    let shown = consul.ctl(&["acl", "token", "create", &master, &policy, "-format=json"]);
    let secret = shown.split("\"SecretID\": \"").nth(1).and_then(|rest| rest.split('"').next());
    secret.expect("a token").to_owned()
}

/// The rules of the page are enough. A message names the rule that is missing, and no token.
#[test]
fn a_token_needs_the_rules_of_the_page_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let consul = with_acls(&folder, "deny");
    check(async {
        let good = token_with(&consul, "good", &format!("{KEYS} {SESSIONS}")).await;
        let reading = token_with(&consul, "reading", &format!("{} {SESSIONS}", KEYS.replace("write", "read"))).await;
        let keys = token_with(&consul, "keys", KEYS).await;
        let sessions = token_with(&consul, "sessions", SESSIONS).await;
        let wrong = "9a1c7b4e-0000-4000-8000-00000000beef".to_owned();
        let url = |token: &str, prefix: &str| match token {
            "" => format!("consul://{}/{prefix}", consul.address),
            token => format!("consul://:{token}@{}/{prefix}", consul.address),
        };
        // Nothing else is needed, whatever the operation.
        let client = Options::new().connect(&url(&good, "")).await.expect("a client");
        let held = client.lock("lock").delay(std::time::Duration::from_secs(1)).acquire().await.expect("it is free");
        let waiter = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        held.release().await.expect("released");
        let second = taken(waiter).await;
        client.force_release("lock", "a test").await.expect("it is held");
        second.lost().await;
        client.list("").await.expect("a list");
        client.raise_tokens(palisade::Token::new(1 << 40).expect("a token")).await.expect("raised");

        for (token, prefix, rule, what) in [
            (&wrong, "", KEYS.to_owned(), "does not know this ACL token"),
            (&String::new(), "", KEYS.to_owned(), "does not let this client in"),
            (&good, "other", KEYS.replace("palisade", "other"), "does not let this client in"),
            (&sessions, "", KEYS.to_owned(), "does not let this client in"),
            (&keys, "", SESSIONS.to_owned(), "does not let this client in"),
            (&reading, "", KEYS.to_owned(), "does not let this client in"),
        ] {
            let error = match Options::new().connect(&url(token, prefix)).await {
                Err(error) => error,
                Ok(client) => client.lock("lock").acquire().await.expect_err("it is not allowed"),
            };
            let text = error.to_string();
            assert!(
                text.contains(what) && text.contains(&rule) && text.contains("PALISADE_SECRET"),
                "{rule}: {text}"
            );
            assert!(matches!(error.kind(), ErrorKind::Denied { .. }) && !error.is_retryable(), "{error:?}");
            for secret in [&wrong, &good, &reading, &keys, &sessions] {
                assert!(!text.contains(secret) && !format!("{error:?}").contains(secret), "{text}");
            }
        }
        // A token that may read only sees the locks. Viewing needs no session.
        let viewer = Config::parse(url(&reading, "").trim_start_matches("consul:"));
        assert!(!format!("{viewer:?}").contains(&reading));
        assert_eq!(inspect(&client, "lock").await, None);
    });
}
