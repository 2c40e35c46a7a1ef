//! Requests and replies that arrive after the client has given up their connection.

use std::time::Duration;

use palisade_testbench::proxy::Towards;

use super::fixture::{
    Fixture, LONG_TTL, SHORT_TTL, check, inspect, is_not_kept_alive, take, taken, taking, token, until_idle,
    until_queued,
};

/// Long enough that the session outlives a silent connection, which is given up when a call has waited for five seconds.
const TTL: Duration = Duration::from_secs(60);

/// Fault 4.
#[test]
#[ignore = "long: requests and replies that come late"]
fn a_grant_whose_reply_comes_after_the_ttl_is_not_handed_out() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(SHORT_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        let waiting = taking(&alice, "lock");
        until_queued(&bob, "lock", 1).await;
        fixture.proxy.black_hole();
        held.release().await.expect("it is held");
        let error = waiting.await.expect("no panic").expect_err("the answer cannot have come in time");
        assert!(error.loss().is_some_and(is_not_kept_alive), "{error}");
        // The session that holds the lock ends by its TTL.
        drop(take(&bob, "lock").await);
        fixture.proxy.pass();
        take(&alice, "lock").await.release().await.expect("a new session holds it");
        until_idle(&bob, "lock").await;
    });
}

/// Fault 10, with a request or a reply that is delayed for long.
#[test]
#[ignore = "long: requests and replies that come late"]
fn an_acquire_that_times_out_here_and_is_granted_there_is_undone() {
    let hold = async |towards| {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
        let accepted = fixture.proxy.accepted();
        fixture.proxy.hold(towards);
        let outcome = alice.lock("lock").acquire_within(Duration::from_millis(50)).await;
        assert!(outcome.is_ok_and(|guard| guard.is_none()), "it cannot have been heard of");
        fixture.proxy.until_accepted(accepted + 1).await;
        // Alice's new connection works; the old one may deliver its bytes at any time.
        drop(take(&alice, "lock").await);
        fixture.proxy.pass();
        drop(take(&bob, "lock").await);
        drop(take(&alice, "lock").await);
        until_idle(&bob, "lock").await;
    };
    check(async {
        tokio::join!(hold(Towards::Server), hold(Towards::Client));
    });
}

/// Faults 8 and 9: a release that arrives when another client holds the lock, or the same client again.
#[test]
#[ignore = "long: requests and replies that come late"]
fn a_release_that_arrives_late_frees_nothing_else() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
        let guard = take(&alice, "lock").await;
        let first = token(&guard);
        let accepted = fixture.proxy.accepted();
        fixture.proxy.hold(Towards::Server);
        let error = guard.release().await.expect_err("it cannot have been heard");
        assert!(error.is_retryable() && error.may_have_taken_effect(), "{error}");
        fixture.proxy.until_accepted(accepted + 1).await;
        // The release is repeated on the new connection; then bob has the lock, and then alice again.
        let other = take(&bob, "lock").await;
        let waiting = taking(&alice, "lock");
        until_queued(&bob, "lock", 1).await;
        other.release().await.expect("it is held");
        let again = taken(waiting).await;
        let ended = fixture.proxy.ended();
        fixture.proxy.pass();
        // The old connection ends when its release has arrived.
        fixture.proxy.until_ended(ended + 1).await;
        let lock = inspect(&alice, "lock").await.expect("it is held");
        assert_eq!(lock.holders[0].token, token(&again));
        assert!(token(&again) > first);
        assert!(bob.lock("lock").try_acquire().await.expect("an answer").is_none());
        again.release().await.expect("it is held");
        until_idle(&bob, "lock").await;
    });
}

/// The old connection delivers the request once more when the new one is already in the queue.
#[test]
#[ignore = "long: requests and replies that come late"]
fn a_request_that_arrives_again_on_the_old_connection_does_not_end_the_grant() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        let accepted = fixture.proxy.accepted();
        fixture.proxy.hold(Towards::Server);
        let waiting = taking(&alice, "lock");
        fixture.proxy.until_accepted(accepted + 1).await;
        until_queued(&bob, "lock", 1).await;
        let ended = fixture.proxy.ended();
        fixture.proxy.pass();
        // The old connection ends when its request has arrived.
        fixture.proxy.until_ended(ended + 1).await;
        until_queued(&bob, "lock", 1).await;
        held.release().await.expect("it is held");
        let guard = taken(waiting).await;
        guard.release().await.expect("it is held");
        until_idle(&bob, "lock").await;
    });
}

/// A slow connection is not a broken one.
#[test]
#[ignore = "long: requests and replies that come late"]
fn a_slow_connection_loses_nothing() {
    check(async {
        let fixture = Fixture::new();
        // A keep-alive, like any other call, may then take five seconds.
        let ttl = Duration::from_secs(15);
        let (alice, bob) = (fixture.through_proxy(ttl).await, fixture.client(LONG_TTL).await);
        let accepted = fixture.proxy.accepted();
        fixture.proxy.delay(Duration::from_millis(100));
        let guard = take(&alice, "lock").await;
        let first = token(&guard);
        // Each renewal comes a third of the TTL after the one before.
        for _ in 0..4 {
            let confirmed = guard.safe_until();
            guard.renewed(confirmed).await;
        }
        assert_eq!(token(&guard), first);
        guard.release().await.expect("it is held");
        until_idle(&bob, "lock").await;
        assert_eq!(fixture.proxy.accepted(), accepted, "the line was given up");
    });
}
