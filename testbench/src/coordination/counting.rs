//! The bytes that operations cost, and the keys that they leave.

use std::time::Duration;

use futures_util::future::join_all;

use super::Store;
use super::bench::Stores;
use crate::bounded::{until, until_some, within};
use crate::fixture::{LONG_TTL, retryable, take, taken, taking, until_idle, until_queued};
use crate::proxy::Towards;

const LOCKS: u64 = 10_000;
/// The locks that are acquired together, which takes fewer requests.
const TOGETHER: u64 = 25;

/// Fewer bytes than there are locks are sent for a keep-alive, and for a close: it is one request, or two, and not one for each
/// lock.
pub async fn ten_thousand_locks_cost_no_more_to_keep_and_go_at_once<S: Store>(stores: &Stores<S>) {
    let fixture = stores.alone();
    let (alice, bob) = (fixture.through_proxy(Duration::from_secs(30)).await, fixture.client(LONG_TTL).await);
    let mut held = Vec::new();
    let names = |set: u64| (0..TOGETHER).map(move |number| format!("many/{}", set * TOGETHER + number));
    let sets: Vec<u64> = (0..LOCKS / TOGETHER).collect();
    for some in sets.chunks(10) {
        let acquiring = some.iter().map(|set| {
            let all = alice.lock_all(names(*set));
            async move { all.acquire().await.expect("they are free") }
        });
        held.extend(within("all are granted", join_all(acquiring)).await);
    }
    let sent = || fixture.proxy.passed(Towards::Server);
    let mut confirmed = held[0].safe_until();
    let before = sent();
    for _ in 0..2 {
        confirmed = within("the session is renewed", held[0].renewed(confirmed)).await;
    }
    assert!(sent() - before < LOCKS, "two keep-alives are {} bytes", sent() - before);
    let before = sent();
    // The client waits two seconds for the answer.
    let is_closed = retryable(alice.close().await).is_some();
    assert!(sent() - before < LOCKS, "the close is {} bytes", sent() - before);
    if !is_closed {
        until("the locks are gone", async || bob.list("many/").await.is_ok_and(|locks| locks.is_empty())).await;
    }
    for set in [0, LOCKS / TOGETHER - 1] {
        let attempt = async || retryable(bob.lock_all(names(set)).try_acquire().await);
        let all = until_some("an answer", attempt).await.expect("they are free");
        all.release().await.expect("they are held");
    }
    let listed = until_some("a list", async || retryable(bob.list("many/").await)).await;
    assert_eq!(listed, []);
}

/// A lock that is idle, and a client that is closed, leave nothing behind. The TTL is an hour, so no session ends by itself.
pub async fn nothing_is_left_behind<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let client = fixture.client(LONG_TTL).await;
    for _ in 0..3 {
        let held = take(&client, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        let dropped = taking(&client, "lock");
        until_queued(&client, "lock", 2).await;
        dropped.abort();
        let late = client.lock("lock").acquire_within(Duration::from_millis(1)).await.expect("an answer");
        assert!(late.is_none());
        held.release().await.expect("it is held");
        taken(waiter).await.release().await.expect("it is held");
        let set = client.lock_all(["a", "b", "lock"]).acquire().await.expect("its turn comes");
        set.release().await.expect("they are held");
    }
    until_idle(&client, "lock").await;
    until("no more than the session is left", async || fixture.keys().await.len() <= 1).await;
    client.close().await.expect("closed");
    until("nothing is left", async || fixture.keys().await.is_empty()).await;
}

/// The claims of a set contain all its names. A store closes the connection after a request that is too large for it, so the
/// client must not send one.
pub async fn a_set_is_granted_or_refused_however_long_its_names_are<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let client = fixture.client(LONG_TTL).await;
    let mut refused = 0;
    for (locks, filler) in [(30, "x"), (30, "\""), (64, "x"), (64, "\"")] {
        for bytes in [60, 120, 180, 240, 250, 260, 320, 380, 440, 512] {
            let names = (0..locks).map(|number| format!("{number:02}{}", filler.repeat(bytes - 2)));
            let all = client.lock_all(names);
            match within("an answer", all.acquire_within(LONG_TTL)).await {
                Ok(all) => all.expect("they are free").release().await.expect("they are held"),
                Err(error) => {
                    refused += 1;
                    assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{locks} of {bytes}: {error}");
                    let is_count = error.to_string().contains("the number of locks");
                    assert!(is_count || error.to_string().contains("shorter names"), "{locks} of {bytes}: {error}");
                }
            }
        }
    }
    assert!(refused > 0, "the largest sets fit into no request");
    take(&client, "lock").await.release().await.expect("it is held");
    assert_eq!(client.list("").await.expect("a list"), []);
}
