//! Contention, outage and misconfiguration are told apart, and each says what to do.

use std::time::Duration;

use palisade::engine::Level;
use palisade::engine::redlock::{NoMajority, NotIndependent};
use palisade::{Error, ErrorKind, Misuse, Options, Palisade};
use palisade_testbench::servers::Redis;

use super::servers::{Five, LONG, run, url};

fn source<T: std::error::Error + 'static>(error: &Error) -> &T {
    let ErrorKind::Outage { source: Some(source), .. } = error.kind() else { panic!("{error:?}") };
    source.downcast_ref().unwrap_or_else(|| panic!("{error:?}"))
}

/// Servers that have just started count, and a slow one is waited for.
const PATIENT: &str = "dangerous_count_restarted=yes&timeout=20s";

/// Connects to a URL that is refused.
async fn refused(url: &str) -> Error {
    Options::new().connect(url).await.map(drop).unwrap_err()
}

#[test]
fn a_token_is_refused_and_the_refusal_says_why_there_is_none() {
    run(async {
        let five = Five::start();
        let client: Palisade = five.client(LONG).await;
        assert_eq!(client.guarantees().level, Level::Advisory);
        let error = client.lock("job").acquire().await.map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("no token can exist") && text.contains(".efficiency()"), "{text}");
        assert_eq!(five.taken(0..5, "job"), [0; 0]);
    });
}

#[test]
fn nodes_that_cannot_be_a_majority_are_refused_by_name() {
    run(async {
        let five = Five::start();
        let error = refused("redlock://a,b").await;
        assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Url(_))), "{error}");
        assert!(error.to_string().contains("there are 2"), "{error}");
        assert!(!error.is_retryable(), "{error}");

        let [a, b, c] = [0, 1, 2].map(|place: usize| five.servers[place].address);
        let error = refused(&format!("redlock://{a},{b},localhost:{}?{PATIENT}", b.port())).await;
        assert!(matches!(source(&error), NotIndependent::SameServer(..)), "{error}");
        assert!(error.to_string().contains("vote twice") && !error.is_retryable(), "{error}");

        let folder = tempfile::tempdir().unwrap();
        let replica_of = ["--replicaof", "127.0.0.1", &c.port().to_string()];
        let replica = Redis::start_with(&folder.path().join("replica"), &replica_of).unwrap();
        let error = refused(&format!("redlock://{a},{b},{}?{PATIENT}", replica.address)).await;
        assert!(error.to_string().contains("is a replica"), "{error}");
        let (node, _) = Redis::start_cluster_node(&folder.path().join("cluster")).unwrap();
        let error = refused(&format!("redlock://{a},{b},{}?{PATIENT}", node.address)).await;
        assert!(error.to_string().contains("Redis Cluster"), "{error}");
    });
}

#[test]
fn nodes_that_deny_access_are_distinguished_from_nodes_that_are_down() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let start = |number: usize| {
            Redis::start_with(&folder.path().join(number.to_string()), &["--requirepass", "xyzzy"]).unwrap()
        };
        let mut three: Vec<_> = (0..3).map(start).collect();
        let error = refused(&url(&three, PATIENT)).await;
        assert!(!error.is_retryable() && error.to_string().contains("does not let this client in"), "{error}");
        assert_eq!(source::<NoMajority>(&error).absent.len(), 3);
        let with = |secret: &str| url(&three, PATIENT).replace("://", &format!("://default:{secret}@"));
        let (right, wrong) = (with("xyzzy"), with("plugh"));
        let error = refused(&wrong).await;
        assert!(!error.is_retryable() && !error.to_string().contains("plugh"), "{error}");
        let client = Options::new().connect(&right).await.unwrap();
        client.lock("job").efficiency().acquire().await.unwrap();
        three[0].kill();
        three[1].kill();
        let error = refused(&right).await;
        assert!(error.is_retryable() && error.to_string().contains("cannot be reached"), "{error}");
        assert!(!error.to_string().contains("xyzzy"), "{error}");
    });
}

#[test]
fn a_ttl_above_what_a_restarted_node_stays_out_for_is_refused() {
    run(async {
        let five = Five::start();
        let options = Options::new().ttl(Duration::from_secs(61));
        let error = options.connect(&five.url("")).await.map(drop).unwrap_err();
        assert!(error.to_string().contains("?max_ttl=61000ms"), "{error}");
        assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
    });
}
