//! Clients whose leader does not answer.

use std::time::{Duration, Instant};

use palisade::{Options, Palisade};
use palisade_testbench::bounded::{check, until, until_some};
use palisade_testbench::fixture::{inspect, retryable};
use palisade_testbench::proxy::{Proxy, Towards};
use palisade_testbench::servers::ServiceCluster;

use crate::fixture::{BOUND, calm, cluster, leader, release, take, until_another_leads};

/// Long enough that no keep-alive is due during a test: its time-out would be noticed, too.
const TTL: Duration = Duration::from_secs(3600);
/// How long a call waits for its reply, and is repeated.
const CALL: Duration = Duration::from_secs(5);
/// How often a client races against a time-out. On a busy machine it may need more than one attempt.
const ATTEMPTS: usize = 5;

/// A proxy in front of each node, and the URL of all proxies.
fn proxies(cluster: &ServiceCluster) -> (Vec<Proxy>, String) {
    let start = |at| Proxy::start(cluster.address(at)).expect("a proxy");
    let proxies: Vec<_> = (0..cluster.len()).map(start).collect();
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address.to_string()).collect();
    (proxies, format!("palisade://{}", addresses.join(",")))
}

async fn connect(url: &str) -> Palisade {
    Options::new().ttl(TTL).connect(url).await.unwrap()
}

/// Connects a client. Tries again while no node serves it.
async fn connect_again(url: &str) -> Palisade {
    until_some("a client is served", async || retryable(Options::new().ttl(TTL).connect(url).await)).await
}

/// A client that knows only the stopped node shows when a call times out.
#[test]
fn a_client_leaves_a_stopped_leader_before_its_call_times_out() {
    let (cluster, _folder) = cluster();
    check(BOUND, async {
        let client = connect_again(&cluster.url()).await;
        let held = take(&client, "orders").await;
        let token = held.token().unwrap();
        let mut is_first = false;
        for _ in 0..ATTEMPTS {
            let leader = leader(&cluster).await;
            let knows_one = connect_again(&format!("palisade://{}", cluster.address(leader))).await;
            cluster.stop(leader);
            until_another_leads(&cluster, leader).await;
            let calls = async {
                release(&take(&client, "users").await).await;
                inspect(&client, "orders").await.expect("it is held")
            };
            let lock = tokio::select! {
                biased;
                lock = calls => Some(lock),
                answer = knows_one.inspect("orders") => {
                    answer.expect_err("the only node that it knows is stopped");
                    None
                }
            };
            cluster.go_on(leader);
            if let Some(lock) = lock {
                assert_eq!(lock.holders[0].token, token);
                is_first = true;
                break;
            }
        }
        assert!(is_first, "the calls take longer than a call may");
        assert_eq!(held.token().unwrap(), token);
        release(&held).await;
    });
}

/// The other nodes relay to the leader of the same term, so the client waits on.
#[test]
fn a_client_keeps_a_slow_leader_that_still_leads() {
    calm(&[], |cluster| {
        check(BOUND, async {
            let leader = leader(cluster).await;
            let (proxies, url) = proxies(cluster);
            let client = connect(&url).await;
            client.lock("orders").acquire().await.unwrap().release().await.unwrap();
            let others: Vec<_> = (0..cluster.len()).filter(|at| *at != leader).collect();
            let before: Vec<_> = proxies.iter().map(Proxy::accepted).collect();
            proxies[leader].hold(Towards::Client);
            let waiting =
                tokio::spawn(async move { client.lock("users").acquire().await.map(|held| (held, client)) });
            for other in others {
                // The client has asked this node, and has asked again after its reply.
                proxies[other].until_accepted(before[other] + 2).await;
            }
            proxies[leader].pass();
            let (held, _client) = waiting.await.unwrap().unwrap();
            let sent = proxies[leader].passed(Towards::Server);
            held.release().await.unwrap();
            assert!(proxies[leader].passed(Towards::Server) > sent, "it uses another connection");
            assert_eq!(proxies[leader].accepted(), before[leader], "it has connected again");
        });
    });
}

/// The release took effect, and its reply was lost with the leader. A client repeats it for as long as a call may take, which an
/// election does not, except on a busy machine.
#[test]
fn a_release_is_repeated_at_the_next_leader() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let other = connect_again(&cluster.url()).await;
        for attempt in 1..=ATTEMPTS {
            let leader = leader(&cluster).await;
            let (proxies, url) = proxies(&cluster);
            let client = connect_again(&url).await;
            let held = take(&client, "orders").await;
            proxies[leader].hold(Towards::Client);
            let began = Instant::now();
            let releasing = tokio::spawn(async move { held.release().await });
            until("the lock is free", async || {
                inspect(&other, "orders").await.is_none_or(|lock| lock.holders.is_empty())
            })
            .await;
            cluster.kill(leader);
            until_another_leads(&cluster, leader).await;
            match releasing.await.unwrap() {
                Ok(()) => return,
                Err(error) => {
                    assert!(began.elapsed() >= CALL && attempt < ATTEMPTS, "the next leader knows: {error}")
                }
            }
            cluster.restart(leader).unwrap();
        }
    });
}

#[test]
fn the_opening_of_a_session_is_repeated() {
    calm(&[], |cluster| {
        check(BOUND, async {
            let (proxies, url) = proxies(cluster);
            let proxy = &proxies[leader(cluster).await];
            let replies = || proxy.passed(Towards::Client);
            let before = replies();
            let _first = connect(&url).await;
            // The reply to SESSION OPEN comes last, and has about 40 bytes.
            let until_opened = replies() - before - 20;
            let cut_at = replies() + until_opened;
            proxy.cut_after(Towards::Client, until_opened);
            let connecting = tokio::spawn(async move { connect(&url).await });
            until("its connection is cut", async || replies() >= cut_at).await;
            proxy.pass();
            drop(connecting.await.expect("another session is opened"));
        });
    });
}
