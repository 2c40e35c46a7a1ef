//! Connections that are cut at any moment.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use palisade::engine::Watched;
use palisade::{Loss, Palisade};
use palisade_testbench::bounded::until_some;
use palisade_testbench::fixture::retryable;
use palisade_testbench::proxy::{Proxy, Towards};

use super::fixture::{
    Fixture, LONG_TTL, SHORT_TTL, check, give_back, grants_until_end_of, holder, inspect, is_not_kept_alive,
    jeopardy, take, taken, taking, token, until, until_idle, until_queued,
};

const BOTH_WAYS: [Towards; 2] = [Towards::Server, Towards::Client];

/// Cuts all connections, and waits until nothing passes them any more.
async fn shut(fixture: &Fixture) {
    let accepted = fixture.proxy.accepted();
    fixture.proxy.shut();
    fixture.proxy.until_ended(accepted).await;
}

/// Fault 12.
#[test]
#[ignore = "long: connections cut at any byte"]
fn a_connection_that_is_cut_again_and_again_loses_nothing() {
    check(async {
        const TTL: Duration = Duration::from_secs(30);
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
        let guard = take(&alice, "lock").await;
        let (before, session) = (token(&guard), holder(&bob, "lock").await);
        let waiting = taking(&bob, "lock");
        until_queued(&bob, "lock", 1).await;
        for cuts in 1..=8 {
            let confirmed = guard.safe_until();
            let accepted = fixture.proxy.accepted();
            fixture.proxy.cut();
            fixture.proxy.until_accepted(accepted + 1).await;
            inspect(&alice, "lock").await.expect("it is held");
            // A keep-alive is due only every ten seconds.
            if cuts % 4 == 0 {
                guard.renewed(confirmed).await;
            }
            assert_eq!(token(&guard), before);
        }
        assert_eq!(guard.lost().now_or_never(), None);
        assert_eq!(holder(&alice, "lock").await, session);
        give_back(&guard).await;
        assert!(token(&taken(waiting).await) > before);
    });
}

/// Returns the bytes that a waiter's connection carries from its request to the end of its grant, measured without a cut.
async fn lengths(fixture: &Fixture, alice: &Palisade, bob: &Palisade) -> [u64; 2] {
    let before = BOTH_WAYS.map(|towards| fixture.proxy.passed(towards));
    wait_and_release(alice, bob, "measured").await;
    let after = BOTH_WAYS.map(|towards| fixture.proxy.passed(towards));
    [after[0] - before[0], after[1] - before[1]]
}

/// A client mostly waits before it reconnects, so several lanes run at once, each with its own fixture.
const LANES: usize = 5;

/// Returns the bytes after which one lane cuts its connections. All lanes together cut after every byte, or nearly.
fn places(lane: usize, length: u64) -> impl Iterator<Item = u64> {
    (0..=length).step_by((length as usize / 60).max(5)).skip(lane).step_by(LANES)
}

/// Alice waits for bob, is granted, and releases. Whatever happens to her connection: one grant, and nothing left.
async fn wait_and_release(alice: &Palisade, bob: &Palisade, name: &str) {
    let held = take(bob, name).await;
    let mut watch = bob.watch(name).await.expect("a watch");
    let waiting = taking(alice, name);
    until_queued(bob, name, 1).await;
    held.release().await.expect("it is held");
    let guard = taken(waiting).await;
    let granted = token(&guard);
    assert!(granted > palisade::Token::new(1).expect("a token"));
    match guard.release().await {
        Ok(()) => {}
        // The release is retried in the background.
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }
    assert_eq!(grants_until_end_of(&mut watch, granted).await, [granted], "it was granted more than once");
    until_idle(bob, name).await;
    guard.lost().await;
    assert!(guard.token().is_err());
}

#[test]
#[ignore = "long: connections cut at any byte"]
fn a_waiter_whose_connection_is_cut_anywhere_is_granted_once_and_leaves_nothing() {
    let cut_in = async |lane| {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let lengths = lengths(&fixture, &alice, &bob).await;
        for (towards, length) in BOTH_WAYS.into_iter().zip(lengths) {
            for at in places(lane, length) {
                fixture.proxy.cut_after(towards, at);
                wait_and_release(&alice, &bob, &format!("{towards:?}/{at}")).await;
                fixture.proxy.pass();
            }
        }
        fixture.proxy.accepted()
    };
    check(async {
        let accepted: u64 = join_all((0..LANES).map(cut_in)).await.into_iter().sum();
        assert!(accepted > 20 + LANES as u64, "hardly any line was cut");
    });
}

/// Fault 10: the reply is lost and the grant is made. The client must undo it.
#[test]
#[ignore = "long: connections cut at any byte"]
fn an_attempt_whose_connection_is_cut_anywhere_leaves_nothing() {
    let cut_in = async |lane| {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let attempt = async |name: String| {
            let answer = match alice.lock(&name).try_acquire().await {
                Ok(Some(guard)) => Some(token(&guard)),
                Ok(None) => panic!("no other client is there"),
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    None
                }
            };
            // Bob gets it, though alice's session lives for an hour.
            let guard = take(&bob, &name).await;
            assert!(answer.is_none_or(|answer| token(&guard) > answer));
            drop(guard);
            until_idle(&bob, &name).await;
        };
        let before = BOTH_WAYS.map(|towards| fixture.proxy.passed(towards));
        attempt("measured".to_owned()).await;
        let lengths = [0, 1].map(|way| fixture.proxy.passed(BOTH_WAYS[way]) - before[way]);
        for (towards, length) in BOTH_WAYS.into_iter().zip(lengths) {
            for at in places(lane, length) {
                fixture.proxy.cut_after(towards, at);
                attempt(format!("{towards:?}/{at}")).await;
                fixture.proxy.pass();
            }
        }
    };
    check(async { drop(join_all((0..LANES).map(cut_in)).await) });
}

/// Fault 13 and promise 5, on a real connection.
#[test]
#[ignore = "long: connections cut at any byte"]
fn a_client_that_is_cut_off_is_in_jeopardy_and_then_lost_before_another_is_granted() {
    let cut_off = async |cut: fn(&Proxy)| {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(SHORT_TTL).await, fixture.client(LONG_TTL).await);
        let guard = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&bob, "lock", 1).await;
        cut(&fixture.proxy);
        let safe_until = jeopardy(&guard).await;
        assert!(guard.token().is_ok() || safe_until.has_passed(), "it is in jeopardy, and held");
        let next = taken(waiting).await;
        assert!(safe_until.has_passed() && guard.token().is_err());
        assert!(is_not_kept_alive(&guard.lost().await));
        // After the cut the same client opens a new session, and the release of its old grant frees no newer one.
        fixture.proxy.pass();
        let tried = async || retryable(alice.lock("lock").try_acquire().await);
        assert!(until_some("an attempt is answered again", &tried).await.is_none());
        drop(guard);
        assert!(until_some("another attempt is answered", &tried).await.is_none());
        drop(next);
        give_back(&take(&alice, "lock").await).await;
    };
    check(async {
        tokio::join!(cut_off(Proxy::black_hole), cut_off(Proxy::shut));
    });
}

/// Fault 5.
#[test]
#[ignore = "long: connections cut at any byte"]
fn a_waiter_that_is_cut_off_for_longer_than_its_ttl_is_told_and_never_granted() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(SHORT_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        let waiting = taking(&alice, "lock");
        until_queued(&bob, "lock", 1).await;
        fixture.proxy.black_hole();
        let error = waiting.await.expect("no panic").expect_err("its session is over");
        assert!(error.loss().is_some_and(is_not_kept_alive), "{error}");
        until_queued(&bob, "lock", 0).await;
        fixture.proxy.pass();
        held.release().await.expect("it is held");
        until_idle(&bob, "lock").await;
    });
}

#[test]
#[ignore = "long: connections cut at any byte"]
fn a_lock_that_is_taken_away_while_the_connection_is_cut_is_reported_when_it_is_back() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let (kept, lost) = (take(&alice, "kept").await, take(&alice, "lost").await);
        shut(&fixture).await;
        bob.force_release("lost", "a test").await.expect("it is held");
        assert!(lost.token().is_ok(), "the loss cannot be known yet");
        fixture.proxy.pass();
        assert!(matches!(lost.lost().await, Loss::ForcedBy { .. }));
        assert!(kept.token().is_ok());
        assert_eq!(kept.lost().now_or_never(), None);
    });
}

/// The lock is granted and force-released before its client can learn of either.
#[test]
#[ignore = "long: connections cut at any byte"]
fn a_grant_that_was_taken_away_before_it_was_known_is_never_held() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        let waiting = taking(&alice, "lock");
        until_queued(&bob, "lock", 1).await;
        shut(&fixture).await;
        held.release().await.expect("it is held");
        let waiter = holder(&bob, "lock").await;
        assert!(waiter.is_some(), "alice has it, and does not know");
        bob.force_release("lock", "a test").await.expect("it is held");
        fixture.proxy.pass();
        match waiting.await.expect("no panic") {
            Ok(guard) => assert!(matches!(guard.lost().await, Loss::ForcedBy { .. })),
            Err(error) => assert!(matches!(error.loss(), Some(Loss::ForcedBy { .. })), "{error}"),
        }
        until_idle(&bob, "lock").await;
    });
}

#[test]
#[ignore = "long: connections cut at any byte"]
fn a_session_that_ended_while_the_connection_was_cut_is_lost_when_it_is_back() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let (guard, held) = (take(&alice, "lock").await, take(&bob, "other").await);
        let waiting = taking(&alice, "other");
        until_queued(&bob, "other", 1).await;
        let session = holder(&bob, "lock").await.expect("alice holds it");
        shut(&fixture).await;
        bob.detached_session(session).close().await.expect("it is open");
        fixture.proxy.pass();
        assert_eq!(guard.lost().await, Loss::Expired);
        let error = waiting.await.expect("no panic").expect_err("its session is over");
        assert_eq!(error.loss(), Some(&Loss::Expired));
        drop(held);
        take(&alice, "lock").await.release().await.expect("a new session holds it");
    });
}

#[test]
#[ignore = "long: connections cut at any byte"]
fn a_watch_goes_on_over_a_cut_and_says_that_something_may_be_missing() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        // Two watches of the same locks: each gets an event once.
        let mut watches = [alice.watch("a").await.expect("a watch"), alice.watch("a/b").await.expect("a watch")];
        let seen = async |watches: &mut [palisade::Watch; 2], name: &str| {
            let guard = take(&bob, name).await;
            for watch in watches {
                let event = watch.next().await;
                let is_grant = matches!(&event, Some(Watched::Event(palisade::Event::Granted { token: its, .. }))
                    if *its == token(&guard));
                assert!(is_grant, "{event:?}");
            }
            guard
        };
        let first = seen(&mut watches, "a/b/1").await;
        shut(&fixture).await;
        drop(first);
        until_idle(&bob, "a/b/1").await;
        fixture.proxy.pass();
        for watch in &mut watches {
            assert_eq!(watch.next().await, Some(Watched::Missed));
        }
        drop(seen(&mut watches, "a/b/2").await);
    });
}

/// No reply comes and no connection is closed, so only a time-out can end the call.
#[test]
#[ignore = "long: connections cut at any byte"]
fn calls_to_a_silent_service_fail_in_bounded_time_and_say_what_is_known() {
    check(async {
        let fixture = Fixture::new();
        let alice = fixture.through_proxy(LONG_TTL).await;
        fixture.proxy.black_hole();
        let error = alice.force_release("lock", "a test").await.expect_err("no reply comes");
        assert!(error.is_retryable() && error.may_have_taken_effect(), "{error}");
        let error = alice.inspect("lock").await.expect_err("there is no line");
        assert!(error.is_retryable() && !error.may_have_taken_effect(), "{error}");
        fixture.proxy.pass();
        // The current attempt to connect may still fail.
        until("the client has a connection again", async || alice.inspect("lock").await.is_ok()).await;
    });
}
