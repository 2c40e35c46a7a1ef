//! Nodes that do not receive what the others send, and are heard by them.

use palisade::Options;
use palisade_testbench::bounded::check;
use palisade_testbench::proxy::Proxy;
use palisade_testbench::servers::ServiceCluster;

use crate::failures::under_load;
use crate::fixture::{BOUND, TTL, leader, until_another_leads};

/// Starts a cluster whose nodes reach each other through proxies.
fn behind_proxies(folder: &std::path::Path) -> (ServiceCluster, Vec<Proxy>) {
    let mut proxies = Vec::new();
    let variables = [("SERVE_COMPACT_AFTER", "20000")];
    let through = |peer| {
        let proxy = Proxy::start(peer).unwrap();
        let address = proxy.address;
        proxies.push(proxy);
        address
    };
    let cluster = ServiceCluster::start_through(env!("CARGO_BIN_EXE_serve"), folder, 3, &variables, through);
    (cluster.unwrap_or_else(|absent| panic!("{absent}")), proxies)
}

/// A leader that hears nothing does not know whether it still leads: it steps down, confirms nothing meanwhile, and follows again.
#[test]
fn a_leader_that_hears_nothing_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cluster, proxies) = behind_proxies(folder.path());
    check(BOUND, async {
        let grants = under_load(&mut cluster, async |cluster: &mut ServiceCluster| {
            for _ in 0..2 {
                let leader = leader(cluster).await;
                proxies[leader].black_hole();
                until_another_leads(cluster, leader).await;
                proxies[leader].cut();
                proxies[leader].pass();
            }
        })
        .await;
        assert!(grants >= 100);
    });
}

/// A follower that hears nothing asks for votes again and again. The work of the others goes on.
#[test]
fn a_follower_that_hears_nothing_stops_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, proxies) = behind_proxies(folder.path());
    check(BOUND, async {
        let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        let leader = leader(&cluster).await;
        let follower = (leader + 1) % 3;
        proxies[follower].black_hole();
        // Longer than its election time-out, in which it asks several times.
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
        let mut last = None;
        while tokio::time::Instant::now() < until {
            let guard = client.lock("orders").acquire().await.unwrap();
            let token = guard.token().unwrap();
            assert!(last.is_none_or(|last| last < token), "{token} follows {last:?}");
            last = Some(token);
            guard.release().await.unwrap();
            // `leader` returns `None` while the leader is slow to answer.
            assert_ne!(cluster.leader(), Some(follower));
        }
        proxies[follower].cut();
        proxies[follower].pass();
        drop(client.lock("orders").acquire().await.unwrap());
    });
}
