//! The requests that operations cost, as ZooKeeper counts them.

use std::time::{Duration, Instant};

use super::fixture::{LONG_TTL, alone, check, inspect, said, take, taken, taking, until, usual};

/// After a wait a transaction proves that the claim exists: a server that is behind would still list it. A hand-over is that
/// transaction and the release.
#[test]
fn a_waiter_confirms_its_claim_by_a_transaction() {
    check(async {
        let fixture = alone();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let last = || u64::from_str_radix(&said(fixture.server(), "Zxid: 0x"), 16).expect("a number");
        // On a slow server, sessions of the connections of both clients may end meanwhile, by further transactions.
        until("a hand-over is two transactions", async || {
            let guard = take(&alice, "lock").await;
            let waiting = taking(&bob, "lock");
            // Without a watch, whose session would end meanwhile by a transaction.
            let is_queued = async || inspect(&alice, "lock").await.is_some_and(|lock| lock.waiters.len() == 1);
            until("bob waits", is_queued).await;
            let before = last();
            guard.release().await.expect("it is held");
            let granted = taken(waiting).await;
            let transactions = last() - before;
            granted.release().await.expect("it is held");
            assert!(transactions >= 2, "{transactions}");
            transactions == 2
        })
        .await;
    });
}

/// An acquire of a free lock in an open session is one request, and a release is one.
#[test]
#[ignore = "long: several seconds"]
fn an_acquire_is_one_request_and_a_release_is_one() {
    const CYCLES: u64 = 50;
    check(async {
        // With ZooKeeper's own settings: the nodes of unused locks remain for a minute, and there are few pings.
        let fixture = usual();
        let alice = fixture.client(Duration::from_secs(20)).await;
        let received = || said(fixture.server(), "Received: ").parse::<u64>().expect("a number");
        take(&alice, "lock").await.release().await.expect("it is held");
        let (began, before) = (Instant::now(), received());
        for _ in 0..CYCLES {
            take(&alice, "lock").await.release().await.expect("it is held");
        }
        let requests = received() - before;
        // A few more are pings, keep-alives and the question itself: fewer than one in a second.
        let most = CYCLES * 2 + 10 + began.elapsed().as_secs();
        assert!((CYCLES * 2..=most).contains(&requests), "{requests} requests in {CYCLES} cycles");
    });
}
