//! Servers that cannot be used: the message says why.

use std::net::TcpListener;

use palisade_testbench::servers::{ZooKeeperEnsemble, free_port};

use super::fixture::check;

async fn refused(url: &str) -> String {
    let error = palisade::connect(url).await.expect_err("it cannot be used");
    assert!(error.is_retryable(), "{error}");
    error.to_string()
}

/// The driver does not say why.
#[test]
#[ignore = "long: several seconds"]
fn the_cause_is_named_for_each_server() {
    check(async {
        let unused = free_port().expect("a port");
        // The system accepts connections for it, and nothing answers them.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a listener");
        for (url, cause) in [
            ("zookeeper://nosuchhost.invalid".to_owned(), "its name"),
            (format!("zookeeper://{unused}"), "Connection refused"),
            (
                format!("zookeeper://{}", silent.local_addr().expect("an address")),
                "accepts connections, and does not serve",
            ),
        ] {
            let text = refused(&url).await;
            assert!(text.contains(cause), "{url}: {text}");
        }
    });
}

/// Two of three servers are down. The third one runs.
#[test]
#[ignore = "long: several seconds"]
fn an_ensemble_without_a_majority_is_explained() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ensemble = ZooKeeperEnsemble::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        let addresses: Vec<_> = ensemble.servers.iter().map(|server| server.address.to_string()).collect();
        ensemble.servers.drain(1..);
        let text = refused(&format!("zookeeper://{}", addresses.join(","))).await;
        assert!(text.contains(&format!("{} accepts connections, and does not serve", addresses[0])), "{text}");
        for down in &addresses[1..] {
            assert!(text.contains(&format!("{down} cannot be reached: Connection refused")), "{text}");
        }
    });
}
