//! The requests that operations cost, counted by the proxy. Queries that wait for a change do not count.

use std::time::Duration;

use palisade_testbench::bounded::until;

use super::fixture::{Fixture, LONG_TTL, check, take, taken, taking, until_queued};

/// One request each in an open session; a claim for several locks is marked by a second one.
#[test]
fn an_acquire_and_a_release_are_one_request_each() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.through_proxy(LONG_TTL).await;
        let before = fixture.requests().len();
        for _ in 0..10 {
            take(&client, "lock").await.release().await.expect("released");
        }
        assert_eq!(fixture.requests().len() - before, 20);
        let before = fixture.requests().len();
        for _ in 0..10 {
            let held = client.lock("lock").try_acquire().await.expect("an answer").expect("it is free");
            held.release().await.expect("released");
            let all = client.lock_all(["a", "b", "c"]).acquire().await.expect("they are free");
            all.release().await.expect("released");
        }
        assert_eq!(fixture.requests().len() - before, 50);
    });
}

/// A read asks the leader to confirm that it leads. The proxy shows it: no test can make a deposed leader answer each time.
#[test]
fn reads_are_linearizable() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.through_proxy(LONG_TTL).await;
        let held = take(&client, "lock").await;
        let before = fixture.requests().len();
        let since = || fixture.requests()[before..].to_vec();
        client.inspect("lock").await.expect("an answer");
        assert!(since().iter().all(|line| line.starts_with("PUT /v1/txn?consistent ")), "{:?}", since());
        client.list("").await.expect("a list");
        assert!(since().iter().all(|line| line.contains("consistent")), "{:?}", since());
        let direct = fixture.client(LONG_TTL).await;
        let waiter = taking(&client, "lock");
        until_queued(&direct, "lock", 1).await;
        let before = fixture.requests().len();
        held.release().await.expect("released");
        taken(waiter).await;
        let read = fixture.requests()[before..].iter().filter(|line| line.contains("txn?consistent")).count();
        assert_eq!(read, 1, "the waiter reads its place when it wakes up");
    });
}

/// A hand-over is a release, its record, and one read of the next waiter, however many others wait.
#[test]
fn a_hand_over_wakes_one_waiter_only() {
    check(async {
        let fixture = Fixture::shared();
        let (client, direct) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let mut held = take(&client, "lock").await;
        let mut waiters = Vec::new();
        for number in 1..=10 {
            waiters.push(taking(&client, "lock"));
            until_queued(&direct, "lock", number).await;
        }
        let before = fixture.requests().len();
        for waiter in waiters {
            held.release().await.expect("released");
            held = taken(waiter).await;
        }
        assert_eq!(fixture.requests().len() - before, 30, "{:?}", &fixture.requests()[before..]);
    });
}

/// A keep-alive is one request, whatever the session holds, and closing it another one.
#[test]
fn a_keep_alive_and_a_close_cost_the_same_with_many_locks() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.through_proxy(Duration::from_secs(18)).await;
        let mut held = Vec::new();
        for number in 0..200 {
            held.push(take(&client, &format!("many/{number}")).await);
        }
        let before = fixture.requests().len();
        until("the session is renewed", async || fixture.requests().len() > before).await;
        let renewals = &fixture.requests()[before..];
        assert!(renewals.iter().all(|line| line.starts_with("PUT /v1/session/renew/")), "{renewals:?}");
        client.close().await.expect("closed");
        let last = fixture.requests().pop().expect("a request");
        assert!(last.starts_with("PUT /v1/session/destroy/"), "{last}");
    });
}
