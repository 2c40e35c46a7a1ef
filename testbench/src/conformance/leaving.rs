//! Sessions that outlive their clients, and clients without a session.

use palisade::{BootInstant, Loss, Misuse, Options};

use super::bench::{
    Bench, Held, is_fenced, is_lost, is_misuse, is_unsupported, join, ok, short_ttls, take, take_unless_lost, taking,
    try_take,
};
use super::stalls::unless_lost;

/// A detached session keeps its locks and tokens after its client has ended.
pub async fn what_a_left_session_holds_outlives_its_client(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    if !alice.guarantees().offers.detach {
        return is_unsupported(alice.detach().await);
    }
    let held = take(&alice, &name).await;
    let token = is_fenced(alice.guarantees()).then(|| held.token());
    let session = ok(alice.detach().await);
    assert_eq!(held.lost().await, Loss::Detached);
    drop(held);
    assert!(try_take(&bob, &name).await.is_none(), "a guard that was dropped has released what was left");
    let lock = ok(bob.inspect(&name).await).expect("it is held");
    assert_eq!(lock.holders[0].session, Some(session));
    assert!(token.is_none_or(|token| lock.holders[0].token == token));
}

/// A detached session lives for its TTL, and for another TTL from each keep-alive of any client.
pub async fn a_left_session_ends_at_its_ttl_and_lives_on_if_it_is_kept_alive(bench: &Bench) {
    let (bob, name) = (bench.client().await, bench.name("lock"));
    if !bob.guarantees().offers.detach {
        return is_unsupported(bob.detach().await);
    }
    for ttl in short_ttls() {
        let opened_at = BootInstant::now();
        let alice = ok(bench.connect(Options::new().ttl(ttl)).await);
        drop(take_unless_lost(&alice, &bench.name("another")).await);
        let Some(held) = take_unless_lost(&alice, &name).await else { continue };
        let Some(session) = unless_lost(alice.detach().await) else { continue };
        if held.lost().await != Loss::Detached {
            ok(bob.detached_session(session).close().await);
            continue;
        }
        let waiter = taking(&bob, &name);
        // The passing of time is what is tested: half of the TTL is used up before the keep-alive.
        tokio::time::sleep(ttl / 2).await;
        let renewed_at = BootInstant::now();
        let kept = bob.detached_session(session).keep_alive().await;
        let granted = ok(join(waiter).await).expect("it is bob's turn in the end");
        let granted_at = BootInstant::now();
        if let Err(error) = kept {
            assert_eq!(error.loss(), Some(&Loss::Expired), "{error}");
            assert!(granted_at >= opened_at + ttl, "it ended before its TTL");
            ok(granted.release().await);
            continue;
        }
        assert!(granted_at >= renewed_at + ttl, "it ended before its TTL");
        assert_eq!(is_lost(bob.detached_session(session).keep_alive().await), Loss::Expired);
        drop(held);
        return;
    }
}

/// The token and the session's number together are needed and enough for a release.
pub async fn whoever_knows_a_left_session_can_release_what_it_holds(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    if !alice.guarantees().offers.detach {
        return is_unsupported(alice.detach().await);
    }
    let Held::Fenced(guard) = take(&alice, &name).await else { return };
    let token = ok(guard.token());
    let session = ok(alice.detach().await);
    let left = bob.detached_session(session);
    let other = token.get() - 1;
    if let Ok(other) = palisade::Token::new(other) {
        is_lost(left.release(&name, other).await);
    }
    is_lost(left.release(&bench.name("another"), token).await);
    is_misuse(left.release("", token).await);
    assert!(try_take(&bob, &name).await.is_none());
    ok(left.release(&name, token).await);
    let taken = try_take(&bob, &name).await.expect("it was released");
    is_lost(left.release(&name, token).await);
    assert!(taken.token() > token);
    ok(left.close().await);
}

/// Closing a detached session frees its locks at once, and can be repeated.
pub async fn whoever_knows_a_left_session_can_close_it(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    if !alice.guarantees().offers.detach {
        return is_unsupported(alice.detach().await);
    }
    let held = take(&alice, &name).await;
    let left = bob.detached_session(ok(alice.detach().await));
    ok(left.close().await);
    assert!(try_take(&bob, &name).await.is_some());
    ok(left.close().await);
    drop(held);
}

/// A client that detached its session can neither acquire nor detach again.
pub async fn a_client_that_has_left_does_nothing_more(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    if !alice.guarantees().offers.detach {
        return is_unsupported(alice.detach().await);
    }
    let held = take(&bob, &name).await;
    let waiter = taking(&alice, &name);
    bench.until_queued(&bob, &name, 1).await;
    let session = ok(alice.clone().detach().await);
    assert_eq!(is_lost(join(waiter).await), Loss::Detached);
    is_lost(alice.lock(&name).efficiency().try_acquire().await);
    is_lost(alice.detach().await);
    ok(bob.detached_session(session).close().await);
    ok(held.release().await);
    bench.until_idle(&bob, &name).await;
}

/// A client without a session can inspect, and is refused all that needs a session.
pub async fn an_observer_sees_and_holds_nothing(bench: &Bench) {
    let (alice, name) = (bench.client().await, bench.name("lock"));
    let observer = ok(bench.connect(Options::new().observer()).await);
    let held = take(&alice, &name).await;
    assert!(ok(observer.inspect(&name).await).is_some());
    if observer.guarantees().offers.list {
        assert_eq!(ok(observer.list(&name).await).len(), 1);
    }
    let refused = observer.lock(&name).efficiency().acquire().await;
    assert_eq!(is_misuse(refused), Misuse::Observer);
    assert_eq!(is_misuse(observer.clone().detach().await), Misuse::Observer);
    if observer.guarantees().offers.force_release {
        ok(observer.force_release(&name, "an observer may be an operator").await);
        assert!(matches!(held.lost().await, Loss::ForcedBy { .. }));
    }
    ok(observer.close().await);
}
