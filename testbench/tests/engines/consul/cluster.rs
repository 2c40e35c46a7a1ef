//! Three servers: a session and the agent that it was opened at.

use std::time::{Duration, Instant};

use palisade::Options;
use palisade_testbench::bounded::{until, until_some};
use palisade_testbench::conformance::stalls::give_back;
use palisade_testbench::coordination::Store;
use palisade_testbench::servers::ConsulCluster;

use super::fixture::{LONG_TTL, check, inspect};

/// How long a client that connects waits for a leader. An election on a busy machine may take longer.
const ELECTION: Duration = Duration::from_secs(15);

/// A server without a leader leaves requests unanswered for longer than a client waits.
#[test]
#[ignore = "long: several seconds"]
fn a_cluster_without_a_leader_is_explained() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = ConsulCluster::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        cluster.members.drain(1..);
        let is_leaderless = async || cluster.members[0].http("GET /v1/status/leader").ends_with("\"\"");
        until("the leader is gone", is_leaderless).await;
        let url = format!("consul://{}", cluster.members[0].address);
        let error = palisade::connect(&url).await.expect_err("there is no leader");
        let text = error.to_string();
        assert!(text.contains("has no leader") && text.contains("majority") && error.is_retryable(), "{text}");
    });
}

#[test]
fn a_consul_that_cannot_be_reached_is_explained() {
    check(async {
        let error = palisade::connect("consul://nosuchhost.invalid").await.expect_err("there is no such host");
        assert!(error.to_string().contains("its name") && !error.to_string().contains("running"), "{error}");
    });
}

/// By default a session ends with the health check of the node of its agent. Ours have no checks: the session survives the
/// agent, and its client goes on with another one.
#[test]
fn a_session_survives_the_agent_that_it_was_opened_at() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = ConsulCluster::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        let leader = until_some("a leader", async || cluster.leader()).await;
        let first = (0..3).find(|member| *member != leader).expect("there are three");
        cluster.members.swap(0, first);
        let url = ConsulCluster::url(&cluster.addresses(), "palisade");
        let client = Options::new().ttl(LONG_TTL).connect(&url).await.expect("a client");
        let held = client.lock("lock").acquire().await.expect("it is free");
        cluster.members[0].kill();
        let is_critical = async || {
            let checks = cluster.members[1].http("GET /v1/health/state/critical");
            checks.contains("serfHealth")
        };
        until("the node's check fails", is_critical).await;
        client.lock("another").acquire().await.expect("another agent answers");
        held.token().expect("it is held");
        let seen = inspect(&client, "lock").await.expect("it is held");
        assert_eq!(seen.holders[0].token, held.token().expect("it is held"));
    });
}

/// The agents answer with errors until they have elected another leader. A client that connects meanwhile waits for it.
#[test]
fn a_client_connects_although_the_leader_has_just_died() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = ConsulCluster::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        let leader = until_some("a leader", async || cluster.leader()).await;
        let addresses: Vec<_> = (0..3).filter(|member| *member != leader).map(|at| cluster.addresses()[at]).collect();
        cluster.members[leader].kill();
        for addresses in [&addresses[..1], &addresses[1..], &addresses[..]] {
            let url = ConsulCluster::url(addresses, "palisade");
            let connect = async || {
                let began = Instant::now();
                let connected = Options::new().connect(&url).await;
                connected.inspect_err(|error| assert!(began.elapsed() >= ELECTION, "it did not wait: {error}")).ok()
            };
            let client = until_some("a client", connect).await;
            let held = client.lock("lock").acquire().await.expect("its turn comes");
            give_back(&held).await;
        }
    });
}

/// Without a majority there is no leader. The error says so, and that the client has tried again.
#[test]
#[ignore = "long: several seconds"]
fn a_cluster_without_a_leader_is_reported_as_such() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = ConsulCluster::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        cluster.members[1].kill();
        cluster.members[2].kill();
        let url = ConsulCluster::url(&cluster.addresses()[..1], "palisade");
        let error = Options::new().connect(&url).await.map(drop).expect_err("there is no leader");
        let text = error.to_string();
        assert!(text.contains("no leader") && text.contains("tried again"), "{text}");
        assert!(error.is_retryable() && !text.contains("rpc error"), "{text}");
    });
}
