//! How a grant ends: released, dropped, closed, force-released. A lost grant stays lost, and its late release frees no
//! newer one.

use std::time::Duration;

use palisade::{BootInstant, Loss, Misuse, Refusal, Standing};

use super::bench::{
    Bench, Held, Wait, ask, close, is_fenced, is_lost, is_misuse, is_unsupported, join, ok, take, take_closed,
    taking, try_take,
};

/// How long the last drop of a client waits for the end of its session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The second release of a guard is no error, and neither is one at the same time.
pub async fn a_release_can_be_repeated(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let held = take(&client, &name).await;
    let (one, two) = tokio::join!(held.release(), held.release());
    ok(one);
    ok(two);
    ok(held.release().await);
    assert_eq!(held.lost().await, Loss::Released);
    bench.until_idle(&client, &name).await;
}

/// An explicit release is not needed.
pub async fn dropping_a_guard_releases_it(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    drop(take(&alice, &name).await);
    drop(take(&bob, &name).await);
    bench.until_idle(&alice, &name).await;
}

/// A guard that was released and is dropped later does nothing.
pub async fn dropping_a_released_guard_frees_nobody_else(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let first = take(&client, &name).await;
    ok(first.release().await);
    let second = take(&client, &name).await;
    drop(first);
    // Another request of the same client arrives after the release that the drop may have sent.
    assert!(try_take(&client, &name).await.is_none());
    ok(second.release().await);
}

/// The release of a force-released grant fails, and does not affect the next holder.
pub async fn a_release_that_comes_late_frees_nobody_else(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let old = take(&alice, &name).await;
    if !alice.guarantees().offers.force_release {
        return is_unsupported(bob.force_release(&name, "a test").await);
    }
    ok(bob.force_release(&name, "a test").await);
    let new = take(&bob, &name).await;
    // The keeper does not wait for long for the notice that says why.
    assert!(matches!(is_lost(old.release().await), Loss::ForcedBy { .. } | Loss::Expired));
    drop(old);
    assert!(try_take(&alice, &name).await.is_none());
    ok(new.release().await);
}

/// Closing a client frees all that it holds at once.
pub async fn closing_loses_every_guard_and_frees_every_lock(bench: &Bench) {
    let (alice, bob) = (bench.client().await, bench.client().await);
    let (one, two) = (bench.name("one"), bench.name("two"));
    let (first, second) = (take(&alice, &one).await, take(&alice, &two).await);
    let is_closed = close(alice).await;
    for (held, name) in [(&first, &one), (&second, &two)] {
        assert_eq!(held.lost().await, Loss::SessionClosed);
        assert_eq!(is_lost(held.release().await), Loss::SessionClosed);
        if let Held::Fenced(guard) = held {
            assert_eq!(is_lost(guard.token()), Loss::SessionClosed);
            assert_eq!(guard.standing(), Standing::Lost(Loss::SessionClosed));
        }
        take_closed(&bob, name, is_closed).await;
    }
}

/// The waits of a closed client fail, and leave the queue.
pub async fn closing_ends_what_still_waits(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let held = take(&alice, &name).await;
    let waiter = taking(&bob, &name);
    bench.until_queued(&alice, &name, 1).await;
    close(bob).await;
    assert_eq!(is_lost(join(waiter).await), Loss::SessionClosed);
    bench.until_queued(&alice, &name, 0).await;
    ok(held.release().await);
    bench.until_idle(&alice, &name).await;
}

/// The remaining handles report that the session was closed.
pub async fn a_closed_client_does_nothing_more(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let left = client.clone();
    close(client).await;
    for wait in [Wait::Not, Wait::Within(Duration::from_secs(3600)), Wait::Long] {
        assert_eq!(is_lost(ask(&left, &name, wait).await), Loss::SessionClosed);
    }
    assert_eq!(is_lost(left.inspect(&name).await), Loss::SessionClosed);
    if left.guarantees().offers.list {
        assert_eq!(is_lost(left.list(&name).await), Loss::SessionClosed);
    }
    if left.guarantees().offers.force_release {
        assert_eq!(is_lost(left.force_release(&name, "a test").await), Loss::SessionClosed);
    }
    if left.guarantees().offers.watch {
        assert_eq!(is_lost(left.watch(&name).await.map(drop)), Loss::SessionClosed);
    }
    ok(left.close().await);
}

/// A client without handles holds nothing as soon as the last drop returns.
pub async fn dropping_the_last_handle_closes_the_session(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let clone = alice.clone();
    let held = take(&alice, &name).await;
    drop(alice);
    drop(clone);
    assert!(try_take(&bob, &name).await.is_none());
    let dropped_at = BootInstant::now();
    drop(held);
    if BootInstant::now() >= dropped_at + CLOSE_TIMEOUT {
        // The drop has given up: its session ends by its TTL, or before.
        bench.until_idle(&bob, &name).await;
    }
    assert_eq!(ok(bob.inspect(&name).await), None);
}

/// A guard keeps its client alive.
pub async fn a_guard_keeps_its_client_alive(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let held = take(&alice, &name).await;
    drop(alice);
    assert!(try_take(&bob, &name).await.is_none());
    ok(held.release().await);
    assert!(try_take(&bob, &name).await.is_some());
}

/// The holder learns which client force-released its lock, and why; so does every other client.
pub async fn a_forced_release_tells_the_holder_who_and_why(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client_called("bob").await, bench.name("lock"));
    let held = take(&alice, &name).await;
    if !alice.guarantees().offers.force_release {
        return is_unsupported(bob.force_release(&name, "it hangs").await);
    }
    let waiter = taking(&alice, &name);
    bench.until_queued(&alice, &name, 1).await;
    for empty in ["", " "] {
        let misuse = is_misuse(bob.force_release(&name, empty).await);
        assert!(matches!(misuse, Misuse::Refused(Refusal::NoReason { .. })), "{misuse:?}");
    }
    let forced = ok(bob.force_release(&name, "it hangs").await);
    assert_eq!(forced.grants, 1);
    let why = Loss::ForcedBy { by: bench.seen("bob"), reason: "it hangs".to_owned() };
    assert_eq!(held.lost().await, why);
    assert_eq!(is_lost(held.release().await), why);
    if let Held::Fenced(guard) = &held {
        assert_eq!(is_lost(guard.token()), why);
    }
    let next = ok(join(waiter).await).expect("it is the waiter's turn");
    let lock = ok(alice.inspect(&name).await).expect("it is held again");
    let how = format!("forced by {}: it hangs", bench.seen("bob"));
    assert_eq!(lock.history.last().map(|ended| &ended.how), Some(&how));
    ok(next.release().await);
}

/// A force-release with an old token ends no newer grant.
pub async fn a_forced_release_of_one_grant_spares_a_newer_one(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let old = take(&alice, &name).await;
    let seen = ok(bob.inspect(&name).await).expect("alice holds it").holders[0].token;
    if !alice.guarantees().offers.force_release {
        return is_unsupported(bob.force_release_only(&name, seen, "a test").await);
    }
    ok(old.release().await);
    let new = take(&alice, &name).await;
    let misuse = is_misuse(bob.force_release_only(&name, seen, "a test").await);
    assert!(matches!(misuse, Misuse::Refused(Refusal::NotHeld { .. })), "{misuse:?}");
    assert!(try_take(&bob, &name).await.is_none());
    let now = ok(bob.inspect(&name).await).expect("alice holds it").holders[0].token;
    ok(bob.force_release_only(&name, now, "a test").await);
    assert!(matches!(new.lost().await, Loss::ForcedBy { .. }));
}

/// A lock without a holder cannot be force-released.
pub async fn a_forced_release_of_what_nobody_holds_is_refused(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let forced = client.force_release(&name, "a test").await;
    if !client.guarantees().offers.force_release {
        return is_unsupported(forced);
    }
    let misuse = is_misuse(forced);
    let refused = matches!(misuse, Misuse::Refused(Refusal::NoHolder { .. } | Refusal::NoSuchLock { .. }));
    assert!(refused, "{misuse:?}");
}

/// A lost guard always reports the same loss, whatever comes after.
pub async fn a_lost_guard_stays_lost_for_its_first_reason(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client_called("bob").await, bench.name("lock"));
    let held = take(&alice, &name).await;
    let first = if alice.guarantees().offers.force_release {
        ok(bob.force_release(&name, "a test").await);
        Loss::ForcedBy { by: bench.seen("bob"), reason: "a test".to_owned() }
    } else {
        close(alice.clone()).await;
        Loss::SessionClosed
    };
    assert_eq!(held.lost().await, first);
    assert_eq!(is_lost(held.release().await), first);
    assert_eq!(is_lost(held.release().await), first);
    close(alice).await;
    assert_eq!(held.lost().await, first);
    assert_eq!(is_lost(held.release().await), first);
}

/// Work under a lock is dropped when the lock is lost.
pub async fn work_is_dropped_when_its_lock_is_lost(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let endless = async |_: &palisade::LockGuard| std::future::pending::<()>().await;
    if !is_fenced(alice.guarantees()) {
        return is_unsupported(alice.lock(&name).run(endless).await);
    }
    let work = tokio::spawn({
        let alice = alice.clone();
        let name = name.clone();
        async move { alice.lock(&name).run(async |_| std::future::pending::<()>().await).await }
    });
    bench.until(&bob, &name, "is held", |lock| lock.is_some_and(|lock| !lock.holders.is_empty())).await;
    if alice.guarantees().offers.force_release {
        ok(bob.force_release(&name, "a test").await);
        assert!(matches!(is_lost(join(work).await), Loss::ForcedBy { .. }));
    } else {
        close(alice).await;
        assert_eq!(is_lost(join(work).await), Loss::SessionClosed);
    }
}

/// Work under a lock ends with its result, and the lock is free again.
pub async fn work_is_done_and_the_lock_is_released(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let work = client.lock(&name).run(async |guard| ok(guard.token()));
    if !is_fenced(client.guarantees()) {
        return is_unsupported(work.await);
    }
    let token = ok(work.await);
    assert_eq!(ok(client.inspect(&name).await), None);
    assert!(ok(client.lock(&name).run(async |guard| ok(guard.token())).await) > token);
}
