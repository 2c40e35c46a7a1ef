//! Nodes that fail under load: no grant is lost, tokens rise, a lock has one holder, and every wait ends.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::{Palisade, Token};
use palisade_testbench::bounded::{block_until, check, number_from_env, until, until_some};
use palisade_testbench::credentials::Credentials;
use palisade_testbench::faulty_disk::Rng;
use palisade_testbench::fixture::{inspect, retryable};
use palisade_testbench::servers::ServiceCluster;

use crate::fixture::{BOUND, cluster, connect, leader, release, start, take, until_another_leads};
use crate::http_client::HttpClient;

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
        let client = connect(&cluster.url()).await;
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
        let (client, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
        let held = take(&client, "orders").await;
        let token = held.token().unwrap();
        let waiting = tokio::spawn(async move {
            loop {
                match other.lock("orders").acquire().await {
                    Ok(guard) => return guard.token().unwrap(),
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        for _ in 0..3 {
            let leader = leader(&cluster).await;
            cluster.kill(leader);
            until_another_leads(&cluster, leader).await;
            assert_eq!(inspect(&client, "orders").await.expect("it is held").holders[0].token, token);
            assert_eq!(held.token().unwrap(), token);
            cluster.restart(leader).unwrap();
        }
        release(&held).await;
        assert!(waiting.await.unwrap() > token);
    });
}

#[test]
#[ignore = "long: kills"]
fn killed_leaders_cost_no_grant() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let after = under_load(&mut cluster, async |cluster| {
            for _ in 0..4 {
                let leader = leader(cluster).await;
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
        let behind = (leader(&cluster).await + 1) % cluster.len();
        let others: Vec<_> = (0..cluster.len()).filter(|at| *at != behind).collect();
        let after = under_load(&mut cluster, async |cluster| {
            cluster.kill(behind);
            // The first new snapshot may have been begun before. With the second one, the log that the node lacks is gone.
            for _ in 0..2 {
                for at in &others {
                    let before = newest_snapshot(cluster, *at);
                    until("there is a newer snapshot", async || newest_snapshot(cluster, *at) > before).await;
                }
            }
            cluster.restart(behind).unwrap();
        });
        assert!(after.await > 0);
        until("the node has received a snapshot", async || has_received_a_snapshot(&cluster, behind)).await;
        // It can take over only if it has caught up.
        let client = connect(&cluster.url()).await;
        let held = take(&client, "kept").await;
        others.iter().for_each(|at| cluster.kill(*at));
        cluster.restart(others[0]).unwrap();
        leader(&cluster).await;
        release(&held).await;
    });
}

/// Returns the name of a node's newest snapshot, which has the number of its last entry.
fn newest_snapshot(cluster: &ServiceCluster, at: usize) -> Option<String> {
    let names = std::fs::read_dir(cluster.directory(at)).unwrap().filter_map(Result::ok);
    let names = names.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("snapshot-") && !name.contains('.')).max()
}

fn has_received_a_snapshot(cluster: &ServiceCluster, at: usize) -> bool {
    let metrics = HttpClient::attempt(cluster.http(at), "GET", "/metrics", None);
    metrics.is_some_and(|metrics| {
        let count = metrics.body.lines().find_map(|line| line.strip_prefix("palisade_snapshots_received_total "));
        count.is_some_and(|count| count != "0")
    })
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
                leader(cluster).await;
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
            let leader = leader(cluster).await;
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
                let client = connect(&format!("palisade://{}", cluster.address(at))).await;
                let held = take(&client, "orders").await;
                let token = held.token().unwrap();
                assert!(last.is_none_or(|last| last < token), "{token} follows {last:?}");
                last = Some(token);
                release(&held).await;
                until_some("the client is closed", async || retryable(client.clone().close().await)).await;
            }
            if round == 0 {
                let leader = leader(&cluster).await;
                cluster.kill(leader);
                until_another_leads(&cluster, leader).await;
                // It knows the new leader after its first heartbeat.
                cluster.restart(leader).unwrap();
            }
        }
    });
}

/// The leader accepts 256 connections of nodes. Those of relayed clients are not among them.
#[test]
#[ignore = "long: crowds"]
fn many_relayed_clients_keep_no_node_out() {
    let (mut cluster, _folder) = cluster();
    let leader = check(BOUND, leader(&cluster));
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
        let leader = leader(&cluster).await;
        let others: Vec<_> = (0..cluster.len()).filter(|at| *at != leader).collect();
        let client = connect(&cluster.url()).await;
        let held = take(&client, "orders").await;
        others.iter().for_each(|at| cluster.kill(*at));
        let other = palisade::connect(&format!("palisade://{}", cluster.address(leader))).await;
        if let Ok(other) = other {
            let asked = tokio::time::timeout(Duration::from_secs(3), other.lock("users").acquire()).await;
            assert!(!matches!(asked, Ok(Ok(_))), "a lock was granted by one of three nodes");
        }
        others.iter().for_each(|at| cluster.restart(*at).unwrap());
        release(&held).await;
    });
}

#[test]
fn nodes_encrypt_what_they_say_to_each_other() {
    let folder = tempfile::tempdir().unwrap();
    drop(Credentials::new(folder.path()));
    let files = folder.path().display().to_string();
    let mut cluster = start(&[("SERVE_PEER_TLS", &files)], folder.path());
    check(BOUND, async {
        let client = connect(&cluster.url()).await;
        let held = take(&client, "orders").await;
        let leader = leader(&cluster).await;
        cluster.kill(leader);
        until_another_leads(&cluster, leader).await;
        release(&held).await;
    });
}
