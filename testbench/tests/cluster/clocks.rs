//! Nodes whose wall clocks jump by hours: sessions end by the time that passes, which no wall clock shows.

use std::time::Duration;

use palisade_cli::harness::wall_clock::WallClock;
use palisade_testbench::bounded::{check, until};
use palisade_testbench::fixture::inspect;
use serde_json::json;

use crate::failures::under_load;
use crate::fixture::{BOUND, cluster, connect, leader, release, take, until_another_leads};
use crate::http_client::HttpClient;

#[test]
#[ignore = "long: clocks that jump"]
fn wall_clocks_that_jump_end_no_session_and_keep_none_alive() {
    let (mut cluster, folder) = cluster();
    let clock = |at: usize| {
        WallClock::new(&folder.path().join(format!("time{at}"))).expect("faketime is installed: scripts/setup")
    };
    let clocks: Vec<_> = (0..cluster.len()).map(clock).collect();
    for (at, clock) in clocks.iter().enumerate() {
        clock.variables().iter().for_each(|(name, value)| cluster.set_variable(at, name, Some(value)));
        cluster.restart(at).unwrap();
        check(BOUND, leader(&cluster));
    }
    check(BOUND, async {
        let client = connect(&cluster.url()).await;
        let held = take(&client, "held").await;
        let token = held.token().unwrap();
        let after = under_load(&mut cluster, async |cluster| {
            for offset in ["+5h", "-5h", "+100d", "+0"] {
                // Each node has another time for a while.
                for clock in &clocks {
                    clock.jump(offset).expect("the time can be set");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                let lock = inspect(&client, "held").await.expect("it is held");
                assert_eq!(lock.holders[0].token, token, "after {offset}");
            }
            // The next leader has another time than the one before, on which a session that is left ends no later.
            let old = leader(cluster).await;
            let left = json!({ "locks": ["left"], "ttl_ms": 1_000 });
            let granted = async || {
                let answer = HttpClient::attempt(cluster.http(old), "POST", "/v1/locks/acquire", Some(&left));
                answer.is_some_and(|answer| answer.status == 200)
            };
            until("the lock is granted that is left", granted).await;
            (0..cluster.len()).filter(|at| *at != old).for_each(|at| clocks[at].jump("-5h").unwrap());
            cluster.kill(old);
            until_another_leads(cluster, old).await;
            cluster.restart(old).unwrap();
            until("the session that was left ends", async || {
                client.inspect("left").await.is_ok_and(|lock| lock.is_none_or(|lock| lock.holders.is_empty()))
            })
            .await;
        });
        assert!(after.await >= 100);
        assert_eq!(held.token().unwrap(), token);
        release(&held).await;
    });
}
