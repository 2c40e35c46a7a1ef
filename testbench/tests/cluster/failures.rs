//! Nodes that fail under load: no grant is lost, tokens rise, a lock has one holder, and every wait ends.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::{Options, Palisade, Token};
use palisade_testbench::bounded::{block_until, check, number_from_env};
use palisade_testbench::credentials::Credentials;
use palisade_testbench::faulty_disk::Rng;
use palisade_testbench::servers::ServiceCluster;

use crate::fixture::{BOUND, TTL, cluster, leader, start, until_another_leads};

const LOCKS: [&str; 2] = ["orders", "users"];

/// The holder of each lock, for all that the clients know, and the highest token of each.
#[derive(Default)]
struct Book {
    holders: BTreeMap<&'static str, usize>,
    tokens: BTreeMap<&'static str, Token>,
    grants: usize,
}

/// A client that takes one lock after the other, until it is told to stop.
async fn work(number: usize, client: Palisade, book: Arc<Mutex<Book>>) {
    for turn in 0.. {
        let lock = LOCKS[(number + turn) % LOCKS.len()];
        // What fails is tried again: another node leads soon.
        let Ok(guard) = client.lock(lock).acquire().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(token) = guard.token() else { continue };
        {
            let mut book = book.lock().unwrap();
            let last = book.tokens.insert(lock, token);
            assert!(last.is_none_or(|last| last < token), "{lock}: {token} follows {last:?}");
            let other = book.holders.insert(lock, number);
            assert!(other.is_none(), "{lock} has two holders: {number} and {other:?}");
            book.grants += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        // It relies on the lock no longer.
        book.lock().unwrap().holders.remove(lock);
        drop(guard.release().await);
    }
}

/// Runs clients while nodes fail, and returns how many grants there were after the last failure.
pub(crate) async fn under_load(cluster: &mut ServiceCluster, fail: impl AsyncFnOnce(&mut ServiceCluster)) -> usize {
    let book = Arc::new(Mutex::new(Book::default()));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..6 {
        let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        tasks.spawn(work(number, client, book.clone()));
    }
    let grants = |book: &Mutex<Book>| book.lock().unwrap().grants;
    let more = async |from: usize| {
        while grants(&book) < from + 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let failing = async {
        more(0).await;
        fail(cluster).await;
        let after = grants(&book);
        more(after).await;
        after
    };
    tokio::select! {
        after = failing => grants(&book) - after,
        Some(ended) = tasks.join_next() => panic!("a client has ended: {ended:?}"),
    }
}

#[test]
fn a_session_and_its_locks_outlive_the_leader() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        let other = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        let held = client.lock("orders").acquire().await.unwrap();
        let token = held.token().unwrap();
        let waiting =
            tokio::spawn(async move { other.lock("orders").acquire().await.map(|guard| guard.token().unwrap()) });
        for _ in 0..3 {
            let leader = cluster.leader().expect("a node leads");
            cluster.kill(leader);
            until_another_leads(&cluster, leader).await;
            assert!(client.inspect("orders").await.is_ok());
            assert_eq!(held.token().unwrap(), token);
            cluster.restart(leader).unwrap();
        }
        held.release().await.unwrap();
        assert!(waiting.await.unwrap().unwrap() > token);
    });
}

#[test]
#[ignore = "long: kills"]
fn killed_leaders_cost_no_grant() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let after = under_load(&mut cluster, async |cluster| {
            for _ in 0..4 {
                let Some(leader) = cluster.leader() else { continue };
                cluster.kill(leader);
                until_another_leads(cluster, leader).await;
                cluster.restart(leader).unwrap();
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        assert!(after.await > 0);
    });
}

#[test]
fn a_node_that_is_far_behind_gets_a_snapshot() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let leader = cluster.leader().expect("a node leads");
        let behind = (leader + 1) % cluster.len();
        let after = under_load(&mut cluster, async |cluster| {
            cluster.kill(behind);
            tokio::time::sleep(Duration::from_secs(2)).await;
            cluster.restart(behind).unwrap();
        });
        assert!(after.await > 0);
        // It can take over only if it has caught up.
        let has_snapshot = |cluster: &ServiceCluster| {
            let names = std::fs::read_dir(cluster.directory(behind)).unwrap();
            names.filter_map(Result::ok).any(|file| file.file_name().to_string_lossy().starts_with("snapshot-"))
        };
        while !has_snapshot(&cluster) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        let held = client.lock("kept").acquire().await.unwrap();
        (0..cluster.len()).filter(|at| *at != behind).for_each(|at| cluster.kill(at));
        let other = (behind + 1) % cluster.len();
        cluster.restart(other).unwrap();
        cluster.until_led().unwrap();
        held.release().await.unwrap();
    });
}

#[test]
#[ignore = "long: kills"]
fn all_nodes_killed_at_once_cost_no_grant() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let after = under_load(&mut cluster, async |cluster| {
            for _ in 0..2 {
                (0..cluster.len()).for_each(|at| cluster.kill(at));
                (0..cluster.len()).for_each(|at| cluster.restart(at).unwrap());
                cluster.until_led().unwrap();
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        assert!(after.await > 0);
    });
}

/// Kills one or two of three nodes at random moments. `PALISADE_KILLS` is how many times, `PALISADE_SEED` chooses the nodes and the moments.
#[test]
#[ignore = "long: kills"]
fn nodes_killed_at_random_cost_no_grant() {
    let seed = number_from_env("PALISADE_SEED", std::process::id());
    let kills = number_from_env("PALISADE_KILLS", 12);
    let mut rng = Rng::new(u64::from(seed));
    let (mut cluster, _folder) = cluster();
    let killing = async {
        under_load(&mut cluster, async |cluster| {
            for _ in 0..kills {
                let (first, count) = (rng.below(3), 1 + rng.below(2));
                let killed: Vec<_> = (first..first + count).map(|at| at % 3).collect();
                killed.iter().for_each(|at| cluster.kill(*at));
                tokio::time::sleep(Duration::from_millis(rng.below(300) as u64)).await;
                killed.iter().for_each(|at| cluster.restart(*at).unwrap());
                // Otherwise the next one is killed while they elect a leader, or catch up.
                if rng.below(2) == 0 {
                    leader(cluster).await;
                }
                tokio::time::sleep(Duration::from_millis(rng.below(300) as u64)).await;
            }
        })
        .await
    };
    let killing = catch_unwind(AssertUnwindSafe(|| check(BOUND * (1 + kills / 60), killing)));
    assert!(killing.is_ok_and(|after| after > 0), "PALISADE_SEED={seed}");
}

#[test]
fn a_leader_that_is_stopped_is_replaced_and_follows_when_it_goes_on() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let after = under_load(&mut cluster, async |cluster| {
            let leader = cluster.leader().expect("a node leads");
            cluster.stop(leader);
            until_another_leads(cluster, leader).await;
            cluster.go_on(leader);
        });
        assert!(after.await > 0);
    });
}

#[test]
fn every_node_serves_every_client() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let mut last = None;
        for round in 0..2 {
            for at in 0..cluster.len() {
                let client = palisade::connect(&format!("palisade://{}", cluster.address(at))).await.unwrap();
                let held = client.lock("orders").acquire().await.unwrap();
                let token = held.token().unwrap();
                assert!(last.is_none_or(|last| last < token), "{token} follows {last:?}");
                last = Some(token);
                held.release().await.unwrap();
                client.close().await.unwrap();
            }
            if round == 0 {
                let leader = cluster.leader().expect("a node leads");
                cluster.kill(leader);
                until_another_leads(&cluster, leader).await;
                cluster.restart(leader).unwrap();
                // A node that has just started knows the leader after its first heartbeat.
                while palisade::connect(&format!("palisade://{}", cluster.address(leader))).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    });
}

/// The leader accepts 256 connections of nodes. Those of relayed clients are not among them.
#[test]
#[ignore = "long: crowds"]
fn many_relayed_clients_keep_no_node_out() {
    let (mut cluster, _folder) = cluster();
    let leader = cluster.leader().expect("a node leads");
    let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let ping = |address: SocketAddr, request: &[u8], reply: &str| {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.write_all(request).ok()?;
        let mut bytes = vec![0; reply.len()];
        stream.read_exact(&mut bytes).ok()?;
        (bytes == reply.as_bytes()).then_some(stream)
    };
    let resp = |cluster: &ServiceCluster, at| ping(cluster.address(at), b"*1\r\n$4\r\nPING\r\n", "+PONG");
    let list = b"GET /v1/locks HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let http = |cluster: &ServiceCluster, at| ping(cluster.http(at), list, "HTTP/1.1 200");
    for is_http in [false, true] {
        let ask = |cluster: &ServiceCluster, at| if is_http { http(cluster, at) } else { resp(cluster, at) };
        let mut clients = Vec::new();
        for _ in 0..300 {
            block_until("the client is answered", || {
                ask(&cluster, follower).map(|client| clients.push(client)).is_some()
            });
        }
        // It connects to the leader again, and relays a client there.
        cluster.restart(other).unwrap();
        block_until("the node is back", || ask(&cluster, other).is_some());
    }
}

#[test]
#[ignore = "long: waits of several TTLs"]
fn nothing_is_answered_without_a_majority() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let leader = cluster.leader().expect("a node leads");
        let others: Vec<_> = (0..cluster.len()).filter(|at| *at != leader).collect();
        let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        let held = client.lock("orders").acquire().await.unwrap();
        others.iter().for_each(|at| cluster.kill(*at));
        let other = palisade::connect(&format!("palisade://{}", cluster.address(leader))).await;
        if let Ok(other) = other {
            let asked = tokio::time::timeout(Duration::from_secs(3), other.lock("users").acquire()).await;
            assert!(!matches!(asked, Ok(Ok(_))), "a lock was granted by one of three nodes");
        }
        others.iter().for_each(|at| cluster.restart(*at).unwrap());
        cluster.until_led().unwrap();
        held.release().await.unwrap();
    });
}

#[test]
fn nodes_encrypt_what_they_say_to_each_other() {
    let folder = tempfile::tempdir().unwrap();
    drop(Credentials::new(folder.path()));
    let files = folder.path().display().to_string();
    let mut cluster = start(&[("SERVE_PEER_TLS", &files)], folder.path());
    check(BOUND, async {
        let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        let held = client.lock("orders").acquire().await.unwrap();
        let leader = cluster.leader().expect("a node leads");
        cluster.kill(leader);
        until_another_leads(&cluster, leader).await;
        held.release().await.unwrap();
    });
}
