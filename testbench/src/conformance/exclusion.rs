//! A lock has one holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::bench::{Bench, Wait, ask, join, ok, take, taking, try_take};

/// While one client holds a lock no other gets it; when it is released, the next one does.
pub async fn an_exclusive_lock_has_one_holder_at_a_time(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let held = take(&alice, &name).await;
    let waiter = taking(&bob, &name);
    bench.until_queued(&alice, &name, 1).await;
    assert!(!waiter.is_finished());
    assert_eq!(ok(alice.inspect(&name).await).map(|lock| lock.holders.len()), Some(1));
    ok(held.release().await);
    let held = ok(join(waiter).await).expect("it is bob's turn");
    assert!(try_take(&alice, &name).await.is_none());
    ok(held.release().await);
    assert!(try_take(&alice, &name).await.is_some());
}

/// A lock that is not available is `Ok(None)`, and the attempt has changed nothing.
pub async fn contention_is_a_value_and_not_an_error(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let held = take(&alice, &name).await;
    assert!(try_take(&bob, &name).await.is_none());
    let lock = ok(bob.inspect(&name).await).expect("alice holds it");
    assert_eq!((lock.holders.len(), lock.waiters.len()), (1, 0));
    assert!(ok(ask(&bob, &name, Wait::Within(Duration::ZERO)).await).is_none());
    // The keeper answers first if the engine takes long to cancel the request.
    bench.until_queued(&alice, &name, 0).await;
    ok(held.release().await);
    bench.until_idle(&alice, &name).await;
}

/// Tasks of one client share its session, and still wait for each other.
pub async fn tasks_of_one_client_exclude_each_other(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let held = take(&client, &name).await;
    assert!(try_take(&client, &name).await.is_none());
    let waiter = taking(&client, &name);
    bench.until_queued(&client, &name, 1).await;
    assert!(!waiter.is_finished());
    ok(held.release().await);
    assert!(ok(join(waiter).await).is_some());
}

/// With many tasks, never two hold the lock.
pub async fn many_tasks_of_many_clients_never_overlap(bench: &Bench) {
    const ROUNDS: u64 = 5;
    let name = bench.name("lock");
    let (inside, visits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let client = bench.client().await;
        for _ in 0..4 {
            let (client, name) = (client.clone(), name.clone());
            let (inside, visits) = (inside.clone(), visits.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let held = take(&client, &name).await;
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    tokio::task::yield_now().await;
                    visits.fetch_add(1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    ok(held.release().await);
                }
            }));
        }
    }
    let count = tasks.len() as u64;
    for task in tasks {
        join(task).await;
    }
    assert_eq!(visits.load(Ordering::SeqCst), count * ROUNDS);
    bench.until_idle(&bench.client().await, &name).await;
}

/// A wait with a bound ends with `None`, and leaves no waiter.
pub async fn a_wait_that_times_out_is_none_and_leaves_nothing_queued(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let held = take(&alice, &name).await;
    assert!(ok(ask(&bob, &name, Wait::Within(Duration::from_millis(20))).await).is_none());
    bench.until_queued(&alice, &name, 0).await;
    ok(held.release().await);
    bench.until_idle(&alice, &name).await;
    assert!(try_take(&bob, &name).await.is_some());
}

/// A wait with a bound is granted when its turn comes before.
pub async fn a_wait_that_ends_in_time_is_granted(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let held = take(&alice, &name).await;
    let waiter = {
        let (bob, name) = (bob.clone(), name.clone());
        tokio::spawn(async move { ask(&bob, &name, Wait::Within(Duration::from_secs(3600))).await })
    };
    bench.until_queued(&alice, &name, 1).await;
    ok(held.release().await);
    assert!(ok(join(waiter).await).is_some());
}
