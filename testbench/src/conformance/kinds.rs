//! Readers and writers, permits, several locks at once, elections. An engine refuses the kinds that it does not offer.

use std::time::Duration;

use palisade::engine::Order;
use palisade::{Misuse, Palisade, Refusal};

use super::bench::{Bench, is_fenced, is_lost, is_misuse, is_unsupported, join, ok, short_ttls};
use super::stalls::unless_lost;
use crate::faulty_engine::{Cut, EngineFaults};

/// Returns whether the engine offers shared locks; if not, checks that it refuses them.
async fn has_shared(bench: &Bench, client: &Palisade) -> bool {
    let (name, offers) = (bench.name("not offered"), client.guarantees().offers);
    if offers.shared {
        return has_tokens(client);
    }
    is_unsupported(client.rw_lock(&name).read().try_acquire().await);
    is_unsupported(client.rw_lock(&name).read().efficiency().try_acquire().await);
    assert_eq!(ok(client.inspect(&name).await), None);
    false
}

async fn has_permits(bench: &Bench, client: &Palisade) -> bool {
    let (name, offers) = (bench.name("not offered"), client.guarantees().offers);
    if offers.permits {
        return has_tokens(client);
    }
    is_unsupported(client.semaphore(&name, 2).try_acquire().await);
    is_unsupported(client.semaphore(&name, 2).many(2).efficiency().try_acquire().await);
    is_unsupported(client.resize(&name, 3).await);
    assert_eq!(ok(client.inspect(&name).await), None);
    false
}

async fn has_several(bench: &Bench, client: &Palisade) -> bool {
    let (one, two, offers) = (bench.name("one"), bench.name("two"), client.guarantees().offers);
    if offers.several {
        return has_tokens(client);
    }
    is_unsupported(client.lock_all([&one, &two]).try_acquire().await);
    is_unsupported(client.lock_all([&one, &two]).efficiency().try_acquire().await);
    assert_eq!(ok(client.inspect(&one).await), None);
    false
}

async fn has_elections(bench: &Bench, client: &Palisade) -> bool {
    let (name, offers) = (bench.name("not offered"), client.guarantees().offers);
    if !offers.watch {
        is_unsupported(client.election(&name).observe().await.map(drop));
    }
    if offers.values {
        return has_tokens(client);
    }
    is_unsupported(client.election(&name).campaign("me").await);
    is_unsupported(client.election(&name).campaign_within("me", Duration::ZERO).await);
    assert_eq!(ok(client.inspect(&name).await), None);
    false
}

/// These kinds are checked with tokens. Another promise checks that an engine without tokens refuses.
fn has_tokens(client: &Palisade) -> bool {
    is_fenced(client.guarantees())
}

/// Readers share a lock; a writer has it alone.
pub async fn readers_share_and_a_writer_is_alone(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("table"));
    if !has_shared(bench, &alice).await {
        return;
    }
    let one = ok(alice.rw_lock(&name).read().acquire().await);
    let two = ok(bob.rw_lock(&name).read().acquire().await);
    assert_ne!(ok(one.token()), ok(two.token()));
    assert!(ok(bob.rw_lock(&name).write().try_acquire().await).is_none());
    ok(one.release().await);
    assert!(ok(alice.rw_lock(&name).write().try_acquire().await).is_none());
    ok(two.release().await);
    let writer = ok(alice.rw_lock(&name).write().try_acquire().await).expect("there is no reader");
    assert!(ok(bob.rw_lock(&name).read().try_acquire().await).is_none());
    assert!(ok(bob.rw_lock(&name).write().try_acquire().await).is_none());
    ok(writer.release().await);
    assert!(ok(bob.rw_lock(&name).read().try_acquire().await).is_some());
}

/// A reader that comes after a waiting writer waits behind it.
pub async fn a_writer_is_not_starved_by_readers(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("table"));
    if !has_shared(bench, &alice).await {
        return;
    }
    let first = ok(alice.rw_lock(&name).read().acquire().await);
    let writer = tokio::spawn(bob.rw_lock(&name).write().acquire());
    bench.until_queued(&alice, &name, 1).await;
    if alice.guarantees().order == Order::Fair {
        assert!(ok(alice.rw_lock(&name).read().try_acquire().await).is_none());
    }
    let late = tokio::spawn(alice.rw_lock(&name).read().acquire());
    bench.until_queued(&alice, &name, 2).await;
    ok(first.release().await);
    let writer = ok(join(writer).await);
    if alice.guarantees().order == Order::Fair {
        assert!(!late.is_finished());
    }
    ok(writer.release().await);
    ok(ok(join(late).await).release().await);
}

/// Permits are taken one by one or several at once, but never more than there are.
pub async fn permits_are_taken_up_to_the_limit(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("gpu"));
    if !has_permits(bench, &alice).await {
        return;
    }
    let three = ok(alice.semaphore(&name, 4).acquire_many(3).await);
    assert!(ok(bob.semaphore(&name, 4).many(2).try_acquire().await).is_none());
    let one = ok(bob.semaphore(&name, 4).acquire().await);
    assert!(ok(alice.semaphore(&name, 4).try_acquire().await).is_none());
    ok(three.release().await);
    let three = ok(bob.semaphore(&name, 4).many(3).try_acquire().await).expect("three are free");
    assert!(ok(alice.semaphore(&name, 4).try_acquire().await).is_none());
    ok(one.release().await);
    assert!(ok(alice.semaphore(&name, 4).try_acquire().await).is_some());
    drop(three);
}

/// A waiter for many permits is not overtaken by waiters for few.
pub async fn a_request_for_many_permits_is_not_starved_by_small_ones(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("gpu"));
    if !has_permits(bench, &alice).await {
        return;
    }
    let first = ok(alice.semaphore(&name, 3).acquire().await);
    let many = tokio::spawn(bob.semaphore(&name, 3).acquire_many(3));
    bench.until_queued(&alice, &name, 1).await;
    if alice.guarantees().order == Order::Fair {
        assert!(ok(alice.semaphore(&name, 3).try_acquire().await).is_none());
    }
    let few = tokio::spawn(alice.semaphore(&name, 3).acquire());
    bench.until_queued(&alice, &name, 2).await;
    ok(first.release().await);
    let many = ok(join(many).await);
    if alice.guarantees().order == Order::Fair {
        assert!(!few.is_finished());
    }
    ok(many.release().await);
    ok(ok(join(few).await).release().await);
}

/// All users of a semaphore must name the same number of permits.
pub async fn a_semaphore_with_another_limit_is_refused(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("gpu"));
    if !has_permits(bench, &alice).await {
        return;
    }
    let held = ok(alice.semaphore(&name, 2).acquire().await);
    for wrong in [1, 3] {
        let misuse = is_misuse(bob.semaphore(&name, wrong).acquire().await);
        let Misuse::Refused(Refusal::LimitDiffers { limit, asked, .. }) = misuse else { panic!("{misuse:?}") };
        assert_eq!((limit, asked), (2, wrong));
    }
    assert!(ok(bob.semaphore(&name, 2).try_acquire().await).is_some());
    ok(held.release().await);
}

/// With more permits, waiters are granted; with fewer, waiters that can never be granted are refused.
pub async fn a_semaphore_can_be_resized(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("gpu"));
    if !has_permits(bench, &alice).await {
        return;
    }
    if !alice.guarantees().offers.resize {
        return is_unsupported(alice.resize(&name, 3).await);
    }
    is_misuse(alice.resize(&name, 3).await);
    let both = ok(alice.semaphore(&name, 2).acquire_many(2).await);
    let waiter = tokio::spawn(bob.semaphore(&name, 2).acquire());
    bench.until_queued(&alice, &name, 1).await;
    ok(alice.resize(&name, 3).await);
    let third = ok(join(waiter).await);
    assert_eq!(ok(bob.inspect(&name).await).and_then(|lock| lock.limit), Some(3));

    let waiter = tokio::spawn(bob.semaphore(&name, 3).acquire_many(3));
    bench.until_queued(&alice, &name, 1).await;
    ok(bob.resize(&name, 1).await);
    let misuse = is_misuse(join(waiter).await);
    assert!(matches!(misuse, Misuse::Refused(Refusal::ResizedBelow { limit: 1, .. })), "{misuse:?}");
    ok(both.token());
    ok(third.release().await);
    assert!(ok(bob.semaphore(&name, 1).try_acquire().await).is_none());
    ok(both.release().await);
    assert!(ok(bob.semaphore(&name, 1).try_acquire().await).is_some());
}

/// A name in use as a lock cannot be used as a semaphore, nor the reverse.
pub async fn a_lock_is_no_semaphore(bench: &Bench) {
    let (client, lock, semaphore) = (bench.client().await, bench.name("lock"), bench.name("semaphore"));
    if !has_permits(bench, &client).await {
        return;
    }
    let held = ok(client.lock(&lock).acquire().await);
    let misuse = is_misuse(client.semaphore(&lock, 2).acquire().await);
    assert!(matches!(misuse, Misuse::Refused(Refusal::WrongKind { .. })), "{misuse:?}");
    if client.guarantees().offers.resize {
        is_misuse(client.resize(&lock, 2).await);
    }
    ok(held.token());
    let permit = ok(client.semaphore(&semaphore, 2).acquire().await);
    let misuse = is_misuse(client.lock(&semaphore).acquire().await);
    assert!(matches!(misuse, Misuse::Refused(Refusal::WrongKind { .. })), "{misuse:?}");
    ok(permit.token());
}

/// Several locks are granted together, with one token, and end together. A waiter for them holds none of them.
pub async fn several_locks_are_had_all_or_nothing(bench: &Bench) {
    let (alice, bob) = (bench.client().await, bench.client().await);
    if !has_several(bench, &alice).await {
        return;
    }
    let names = ["a", "b", "c"].map(|name| bench.name(name));
    let held = ok(alice.lock(&names[1]).acquire().await);
    assert!(ok(bob.lock_all(&names).try_acquire().await).is_none());
    assert_eq!(ok(bob.inspect(&names[0]).await), None);
    let waiter = tokio::spawn(bob.lock_all(&names).acquire());
    bench.until_queued(&alice, &names[0], 1).await;
    let lock = ok(alice.inspect(&names[0]).await).expect("bob waits for it");
    assert_eq!(lock.holders, []);
    ok(held.release().await);
    let all = ok(join(waiter).await);
    assert_eq!(all.locks().iter().map(|lock| lock.as_str()).collect::<Vec<_>>(), names);
    for name in &names {
        let lock = ok(alice.inspect(name).await).expect("bob holds it");
        assert_eq!(lock.holders[0].token, ok(all.token()));
        assert!(ok(alice.lock(name).try_acquire().await).is_none());
    }
    ok(all.release().await);
    for name in &names {
        assert!(ok(alice.lock(name).try_acquire().await).is_some());
    }
}

/// Two sets that name the same locks the other way round never wait for each other in a circle.
pub async fn sets_in_opposite_orders_do_not_deadlock(bench: &Bench) {
    let clients = [bench.client().await, bench.client().await];
    if !has_several(bench, &clients[0]).await {
        return;
    }
    let orders = [["a", "b"], ["b", "a"]].map(|order| order.map(|name| bench.name(name)));
    let mut tasks = Vec::new();
    for (client, names) in clients.iter().zip(orders) {
        for _ in 0..4 {
            let (client, names) = (client.clone(), names.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let both = ok(client.lock_all(&names).acquire().await);
                    tokio::task::yield_now().await;
                    ok(both.release().await);
                }
            }));
        }
    }
    for task in tasks {
        join(task).await;
    }
}

/// Every client sees the leader, with the value it published last and the token of its leadership.
pub async fn a_leader_is_seen_with_what_it_publishes(bench: &Bench) {
    let (alice, bob, name) = (bench.client_called("alice").await, bench.client().await, bench.name("boss"));
    if !has_elections(bench, &alice).await {
        return;
    }
    assert_eq!(ok(bob.election(&name).leader().await), None);
    let leadership = ok(alice.election(&name).campaign([0xff, 0, 7]).await);
    let leader = ok(bob.election(&name).leader().await).expect("alice leads");
    assert_eq!((leader.value, leader.token), (vec![0xff, 0, 7], ok(leadership.token())));
    assert_eq!(leader.label, bench.seen("alice"));
    ok(leadership.publish("ready").await);
    let leader = ok(bob.election(&name).leader().await).expect("alice leads");
    assert_eq!((leader.value.as_slice(), leader.token), (&b"ready"[..], ok(leadership.token())));
    ok(leadership.release().await);
    assert_eq!(ok(bob.election(&name).leader().await), None);
    is_lost(leadership.publish("too late").await);
    assert_eq!(ok(bob.election(&name).leader().await), None);
}

/// An observer sees every leader that stays long enough.
pub async fn an_observer_follows_from_leader_to_leader(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("boss"));
    let offers = alice.guarantees().offers;
    if !has_elections(bench, &alice).await || !offers.watch {
        return;
    }
    let mut observer = ok(bob.election(&name).observe().await);
    assert_eq!(ok(observer.next().await), None);
    let first = ok(alice.election(&name).campaign("first").await);
    assert_eq!(ok(observer.next().await).map(|leader| leader.value), Some(b"first".to_vec()));
    ok(first.publish("still first").await);
    assert_eq!(ok(observer.next().await).map(|leader| leader.value), Some(b"still first".to_vec()));
    let second = tokio::spawn(bob.election(&name).campaign("second"));
    bench.until_queued(&alice, &name, 1).await;
    ok(first.release().await);
    let second = ok(join(second).await);
    let mut seen = ok(observer.next().await);
    if seen.is_none() {
        seen = ok(observer.next().await);
    }
    let leader = seen.expect("bob leads");
    assert_eq!((leader.value.as_slice(), leader.token), (&b"second"[..], ok(second.token())));
    drop(second);
    assert_eq!(ok(observer.next().await), None);
}

/// A candidacy with a bound ends with `None`, and leaves no waiter.
pub async fn a_candidacy_that_times_out_is_none(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("boss"));
    if !has_elections(bench, &alice).await {
        return;
    }
    let leadership = ok(alice.election(&name).campaign("alice").await);
    assert!(ok(bob.election(&name).campaign_within("bob", Duration::from_millis(20)).await).is_none());
    bench.until_queued(&alice, &name, 0).await;
    ok(leadership.release().await);
    assert!(ok(bob.election(&name).campaign_within("bob", Duration::from_secs(3600)).await).is_some());
}

/// A leader that does not keep its session alive is replaced.
pub async fn a_candidate_takes_over_from_a_leader_that_is_cut_off(bench: &Bench) {
    let (bob, name) = (bench.client().await, bench.name("boss"));
    if !has_elections(bench, &bob).await {
        return;
    }
    for ttl in short_ttls() {
        let faults = EngineFaults::default();
        let alice = bench.faulty_client(&faults, ttl).await;
        let Some(old) = unless_lost(alice.election(&name).campaign("alice").await) else { continue };
        let Ok(token) = old.token() else { continue };
        faults.cut(Cut::Failing);
        let new = ok(bob.election(&name).campaign("bob").await);
        assert!(ok(new.token()) > token);
        assert!(old.token().is_err());
        assert_eq!(ok(bob.election(&name).leader().await).map(|leader| leader.value), Some(b"bob".to_vec()));
        faults.mend();
        return;
    }
}
