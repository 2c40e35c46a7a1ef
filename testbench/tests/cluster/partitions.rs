//! Nodes that do not receive what others send: cut off, heard and not hearing, hearing and not heard.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use palisade_cli::harness::network::Network;
use palisade_testbench::bounded::{check, until};
use palisade_testbench::servers::ServiceCluster;
use serde_json::json;

use crate::failures::under_load;
use crate::fixture::{
    BOUND, ELECTION, connect, leader, on_network, release, take, take_again_and_again, until_another_leads,
};
use crate::http_client::HttpClient;

/// Longer than the election time-out of nodes that hear no leader.
const PAUSE: Duration = Duration::from_secs(3);

/// Asks a node that is cut off for a lock, and for its holder, and waits for the answers. It may close the connections instead.
async fn ask_in_vain(node: SocketAddr, lock: &str) {
    let (ask, show) = (json!({ "locks": [lock], "ttl_ms": 60_000 }), format!("/v1/locks/show?name={lock}"));
    let asking = tokio::task::spawn_blocking(move || {
        let [mut acquiring, mut reading] = [(); 2].map(|()| HttpClient::connect(node));
        acquiring.send("POST", "/v1/locks/acquire", Some(&ask));
        reading.send("GET", &show, None);
        [acquiring.answer().ok(), reading.answer().ok()]
    });
    for answer in asking.await.unwrap().into_iter().flatten() {
        assert!(answer.status >= 500, "a node that is cut off answers {answer:?}");
    }
}

/// Waits until a node knows the leader again, and answers.
async fn until_back(cluster: &ServiceCluster, at: usize) {
    let url = format!("palisade://{}", cluster.address(at));
    until("the node is back", async || palisade::connect(&url).await.is_ok()).await;
}

/// Cuts the leader off, with this many other nodes, and lets it back in.
async fn cut_leader_off(cluster: &ServiceCluster, network: &Network, others: usize) {
    let old = leader(cluster).await;
    let size = cluster.len();
    let minority: Vec<_> = (old..=old + others).map(|at| at % size).collect();
    network.separate(&minority);
    for at in &minority {
        ask_in_vain(cluster.http(*at), "minority").await;
    }
    until("the others elect a leader", async || cluster.leader().is_some_and(|at| !minority.contains(&at))).await;
    take_again_and_again(cluster, "majority", 5).await;
    network.heal();
    until_back(cluster, old).await;
}

/// Checks that the clients of this many nodes go on while parts of the network fail, and after that.
fn go_on(nodes: usize, fail: impl AsyncFnOnce(&mut ServiceCluster, &Network)) {
    let folder = tempfile::tempdir().unwrap();
    let (mut cluster, network) = on_network(nodes, &[], folder.path());
    check(BOUND, async {
        let grants = under_load(&mut cluster, async |cluster| fail(cluster, &network).await);
        assert!(grants.await >= 100);
    });
}

#[test]
fn a_leader_that_is_cut_off_alone_confirms_nothing() {
    go_on(3, async |cluster, network| {
        for _ in 0..2 {
            cut_leader_off(cluster, network, 0).await;
        }
    });
}

#[test]
fn a_minority_of_five_confirms_nothing() {
    go_on(5, async |cluster, network| {
        cut_leader_off(cluster, network, 1).await;
        // Two nodes that do not lead.
        let leader = leader(cluster).await;
        let minority = [(leader + 2) % 5, (leader + 3) % 5];
        network.separate(&minority);
        until("they know no leader", async || {
            let url = format!("palisade://{}", cluster.address(minority[0]));
            palisade::connect(&url).await.is_err()
        })
        .await;
        ask_in_vain(cluster.http(minority[0]), "minority").await;
        take_again_and_again(cluster, "majority", 5).await;
        network.heal();
        until_back(cluster, minority[0]).await;
    });
}

/// The leader reaches a majority, its two neighbours. The other two hear only them and each other, and must not disturb them.
#[test]
#[ignore = "long: several seconds"]
fn five_nodes_in_a_ring_go_on() {
    go_on(5, async |cluster, network| {
        // The neighbours of a node in the second ring are those that it did not reach in the first.
        for distance in [1, 2] {
            let is_neighbour = |(from, to): (usize, usize)| [distance, 5 - distance].contains(&((to + 5 - from) % 5));
            network.lose(network.ways().filter(|way| !is_neighbour(*way)));
            tokio::time::sleep(PAUSE).await;
            take_again_and_again(cluster, "ring", 20).await;
        }
        network.heal();
    });
}

/// A leader that hears nothing does not know whether it still leads: it steps down, confirms nothing meanwhile, and follows again.
#[test]
#[ignore = "long: several seconds"]
fn a_leader_that_hears_nothing_is_replaced() {
    go_on(3, async |cluster, network| {
        for _ in 0..2 {
            let leader = leader(cluster).await;
            network.lose(network.ways().filter(|(_, to)| *to == leader));
            ask_in_vain(cluster.http(leader), "deaf").await;
            until_another_leads(cluster, leader).await;
            network.heal();
        }
    });
}

/// It hears that another node leads.
#[test]
fn a_leader_that_is_not_heard_is_replaced() {
    go_on(3, async |cluster, network| {
        for _ in 0..2 {
            let leader = leader(cluster).await;
            network.lose(network.ways().filter(|(from, _)| *from == leader));
            until_another_leads(cluster, leader).await;
            take_again_and_again(cluster, "heard", 5).await;
            network.heal();
        }
    });
}

/// A follower that hears nothing, or not the leader, asks for votes again and again. The work of the others goes on.
#[test]
#[ignore = "long: killed and stopped processes"]
fn a_follower_that_does_not_hear_the_leader_stops_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, network) = on_network(3, &[], folder.path());
    check(BOUND, async {
        let client = connect(&cluster.url()).await;
        let mut last = None;
        let mut parts = vec![false, true];
        while let Some(hears_the_other) = parts.pop() {
            let old = leader(&cluster).await;
            let follower = (old + 1) % 3;
            let is_lost = |(from, to): &(usize, usize)| *to == follower && (*from == old || !hears_the_other);
            network.lose(network.ways().filter(is_lost));
            // It has everything that the others have, and they must deny it their votes nevertheless.
            let is_right = leader(&cluster).await == old;
            let (began, mut slowest) = (Instant::now(), if is_right { Duration::ZERO } else { ELECTION });
            while began.elapsed() < 2 * PAUSE && slowest < ELECTION {
                let asked = Instant::now();
                let guard = take(&client, "orders").await;
                let token = guard.token().unwrap();
                assert!(last.is_none_or(|last| last < token), "{token} follows {last:?}");
                last = Some(token);
                release(&guard).await;
                // `leader` returns `None` while the leader is slow to answer.
                let leads = cluster.leader();
                slowest = slowest.max(asked.elapsed());
                assert!(
                    leads != Some(follower) || slowest >= ELECTION,
                    "it leads, and the leader was there all the time"
                );
            }
            network.heal();
            until_back(&cluster, follower).await;
            if slowest >= ELECTION {
                // On a machine that stands still the others may have missed the leader, too. That proves nothing.
                parts.push(hears_the_other);
            }
        }
    });
}
