//! The requests that operations cost, as ZooKeeper counts them.

use std::time::Duration;

use super::fixture::{LONG_TTL, alone, check, inspect, take, taken, taking, until, usual};

/// After a wait a transaction proves that the claim exists: a server that is behind would still list it. A hand-over is that
/// transaction and the release.
#[test]
fn a_waiter_confirms_its_claim_by_a_transaction() {
    check(async {
        let fixture = alone();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let last = || -> u64 {
            let state = fixture.server().ask("srvr").expect("an answer");
            let last = state.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
            last.and_then(|number| u64::from_str_radix(number, 16).ok()).expect("a number")
        };
        let guard = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        // Without a watch, whose session would end meanwhile by a transaction.
        let is_queued = async || inspect(&alice, "lock").await.is_some_and(|lock| lock.waiters.len() == 1);
        until("bob waits", is_queued).await;
        let before = last();
        guard.release().await.expect("it is held");
        let granted = taken(waiting).await;
        assert_eq!(last() - before, 2);
        granted.release().await.expect("it is held");
    });
}

/// An acquire of a free lock in an open session is one request, and a release is one.
#[test]
#[ignore = "long: several seconds on a real server"]
fn an_acquire_is_one_request_and_a_release_is_one() {
    const CYCLES: u64 = 50;
    check(async {
        // With ZooKeeper's own settings: the nodes of unused locks remain for a minute, and there are few pings.
        let fixture = usual();
        let alice = fixture.client(Duration::from_secs(20)).await;
        let received = || -> u64 {
            let state = fixture.server().ask("srvr").expect("an answer");
            let received = state.lines().find_map(|line| line.strip_prefix("Received: "));
            received.and_then(|number| number.parse().ok()).expect("a number")
        };
        take(&alice, "lock").await.release().await.expect("it is held");
        let before = received();
        for _ in 0..CYCLES {
            take(&alice, "lock").await.release().await.expect("it is held");
        }
        let requests = received() - before;
        // A few more are pings, keep-alives and the question itself.
        assert!((CYCLES * 2..=CYCLES * 2 + 10).contains(&requests), "{requests} requests in {CYCLES} cycles");
    });
}
