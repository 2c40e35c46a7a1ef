//! Futures that are dropped at any moment leave nothing queued and nothing held (fault 15), on a connection that is cut at
//! any moment too.

use std::time::Duration;

use futures_util::future::join_all;
use palisade_testbench::proxy::Towards;

use super::fixture::{Fixture, LONG_TTL, check, take, until_idle, until_queued};

#[test]
#[ignore = "long: acquires dropped at any time"]
fn an_acquire_that_is_dropped_at_any_time_leaves_nothing() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        for round in 0..60u32 {
            let name = format!("lock/{round}");
            let held = take(&bob, &name).await;
            let lock = alice.lock(&name);
            // The moment of the drop moves over that of the grant.
            let asking = tokio::time::timeout(Duration::from_micros(100) * round, lock.acquire());
            let (asked, released) = tokio::join!(asking, held.release());
            released.expect("it is held");
            drop(asked.ok().transpose().expect("its turn comes"));
            until_idle(&bob, &name).await;
        }
    });
}

#[test]
#[ignore = "long: acquires dropped at any time"]
fn an_acquire_that_is_dropped_while_its_connection_is_cut_leaves_nothing() {
    // A client mostly waits before it reconnects, so several run at once.
    const LANES: u64 = 5;
    let cut_in = async |lane| {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        for round in (lane..40).step_by(LANES as usize) {
            let towards = if round % 2 == 0 { Towards::Server } else { Towards::Client };
            let name = format!("lock/{round}");
            let held = take(&bob, &name).await;
            fixture.proxy.cut_after(towards, round * 3);
            let lock = alice.lock(&name);
            let queued = async {
                until_queued(&bob, &name, 1).await;
                held.release().await.expect("it is held");
            };
            tokio::select! {
                biased;
                guard = lock.acquire() => drop(guard.expect("its turn comes")),
                () = queued => {}
            }
            until_idle(&bob, &name).await;
            fixture.proxy.pass();
        }
    };
    check(async { drop(join_all((0..LANES).map(cut_in)).await) });
}
