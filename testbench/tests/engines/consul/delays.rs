//! Lock-delays. A session of Consul is ended as an expiry ends it, so that no test waits for a TTL.

use std::time::{Duration, Instant};

use palisade::engine::Watched;
use palisade::{ErrorKind, Event, Loss, Misuse, Refusal, Watch};
use palisade_core::Limit;
use palisade_testbench::bounded::{until, within};
use palisade_testbench::conformance::stalls::{is_renewed, short_ttls, unless_lost};

use super::fixture::{Fixture, LONG_TTL, check, inspect, take, taken, taking, token, until_idle, until_queued};

/// Long enough for a watcher to see that the lock is withheld: Consul merges what happens between two answers.
const SHORT: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);

/// Returns the next event of a watch.
async fn next_event(watch: &mut Watch) -> Event {
    match within("an event", watch.next()).await {
        Some(Watched::Event(event)) => event,
        other => panic!("instead of an event: {other:?}"),
    }
}

/// A waiter gets the lock when the delay is over, and not before.
#[test]
fn a_waiter_gets_the_lock_when_the_delay_is_over() {
    check(async {
        let fixture = Fixture::shared();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = alice.lock("lock").delay(SHORT).acquire().await.expect("it is free");
        let first = token(&held);
        let second = taking(&bob, "lock");
        until_queued(&bob, "lock", 1).await;
        let third = taking(&bob, "lock");
        until_queued(&bob, "lock", 2).await;
        let ended = Instant::now();
        fixture.expire(&held);
        assert_eq!(held.lost().await, Loss::Expired);
        let shown = inspect(&bob, "lock").await.expect("it is withheld");
        if ended.elapsed() < SHORT {
            assert_eq!((shown.holders[0].session, shown.holders[0].token, shown.waiters.len()), (None, first, 2));
        }
        let second = taken(second).await;
        assert!(ended.elapsed() >= SHORT, "after {:?}", ended.elapsed());
        assert!(token(&second) > first);
        second.release().await.expect("released");
        taken(third).await;
    });
}

/// The delay is over and no client has waited: the next acquire gets the lock, also one that does not wait, or that uses the name
/// for another kind of lock.
#[test]
fn a_lock_is_free_after_its_delay_although_no_client_waited() {
    check(async {
        let fixture = Fixture::shared();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = alice.lock("lock").delay(SHORT).acquire().await.expect("it is free");
        let set = alice.lock_all(["a", "b"]).delay(SHORT).acquire().await.expect("they are free");
        fixture.expire(&held);
        set.lost().await;
        let is_free = async || bob.lock("b").try_acquire().await.expect("an answer").is_some();
        until("the set is free", is_free).await;
        let error = bob.semaphore("lock", 2).acquire().await.err();
        assert!(error.is_none_or(|error| matches!(error.kind(), ErrorKind::Misuse(Misuse::Refused(_)))));
        let is_free = async || bob.semaphore("lock", 2).try_acquire().await.is_ok_and(|permit| permit.is_some());
        until("the lock is free", is_free).await;
        until_idle(&bob, "lock").await;
        until("no claim is left", async || fixture.keys("lock/").is_empty()).await;
    });
}

/// The delay is over and no client asks for the lock: a watcher is told, and it is not shown any more.
#[test]
fn a_delay_that_is_over_is_not_shown() {
    check(async {
        let fixture = Fixture::shared();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let shown = alice.lock("shown").delay(SHORT).acquire().await.expect("it is free");
        let mut watch = bob.watch("watched").await.expect("a watch");
        let watched = alice.lock_all(["listed", "watched"]).delay(SHORT).acquire().await.expect("they are free");
        fixture.expire(&shown);
        watched.lost().await;
        while !matches!(next_event(&mut watch).await, Event::DelayEnded { force: None, .. }) {}
        drop(watch);
        until("it is not shown", async || inspect(&bob, "shown").await.is_none()).await;
        until("nothing is listed", async || bob.list("").await.expect("a list").is_empty()).await;
        until("no claim is left", async || fixture.keys("lock/").is_empty()).await;
    });
}

/// A longer delay than Consul has is refused with the limit.
#[test]
fn a_delay_above_the_limit_is_refused_with_the_limit() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let error = client.lock("lock").delay(LONG + Duration::from_millis(1)).acquire().await.expect_err("too long");
        let most = Refusal::OverLimit { limit: Limit::DelayMaxMs, max: 60_000, value: 60_001 };
        assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Refused(refusal)) if *refusal == most), "{error}");
        client.lock("lock").delay(LONG).acquire().await.expect("it is free");
    });
}

/// A waiter that has asked for a delay and dies in the queue withholds nothing.
#[test]
fn a_waiter_that_dies_withholds_nothing() {
    check(async {
        let fixture = Fixture::shared();
        let [alice, bob, carol] =
            [fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await];
        let held = take(&alice, "lock").await;
        let other = bob.lock("other").delay(LONG).acquire().await.expect("it is free");
        let dead = {
            let bob = bob.clone();
            tokio::spawn(async move { bob.lock("lock").delay(LONG).acquire().await })
        };
        until_queued(&alice, "lock", 1).await;
        let waiter = taking(&carol, "lock");
        until_queued(&alice, "lock", 2).await;
        fixture.expire(&other);
        within("its wait ends", dead).await.expect("no panic").expect_err("its session is over");
        until_queued(&alice, "lock", 1).await;
        held.release().await.expect("released");
        taken(waiter).await;
    });
}

/// An operator ends a delay, and a watcher is told that it was the operator.
#[test]
fn a_forced_release_ends_a_delay() {
    check(async {
        let fixture = Fixture::shared();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = alice.lock("lock").delay(LONG).acquire().await.expect("it is free");
        let mut watch = bob.watch("lock").await.expect("a watch");
        fixture.expire(&held);
        held.lost().await;
        // Consul merges what happens between two answers, so the watch must have seen it before it ends.
        let ended = next_event(&mut watch).await;
        assert!(matches!(&ended, Event::GrantEnded { .. }), "{ended:?}");
        let withheld = next_event(&mut watch).await;
        assert!(matches!(&withheld, Event::Withheld { delay, .. } if delay.as_ms() == 60_000), "{withheld:?}");
        bob.force_release("lock", "a test").await.expect("it is withheld");
        assert!(bob.lock("lock").try_acquire().await.expect("an answer").is_some());
        let over = next_event(&mut watch).await;
        let Event::DelayEnded { force: Some(force), .. } = &over else { panic!("{over:?}") };
        assert_eq!(force.reason.as_str(), "a test");
    });
}

/// A grant with a delay that is released by force is free at once, and its holder is told.
#[test]
fn a_forced_release_does_not_withhold() {
    check(async {
        let fixture = Fixture::shared();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = alice.lock("lock").delay(LONG).acquire().await.expect("it is free");
        bob.force_release("lock", "a test").await.expect("it is held");
        assert!(matches!(within("it is told", held.lost()).await, Loss::ForcedBy { .. }));
        assert!(bob.lock("lock").try_acquire().await.expect("an answer").is_some());
    });
}

/// A close frees more locks with delays than a transaction has operations, and leaves neither keys nor sessions.
#[test]
fn a_close_frees_locks_with_delays_and_leaves_nothing() {
    check(async {
        let fixture = Fixture::alone();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let mut held = Vec::new();
        for number in 0..70 {
            let delay = if number % 2 == 0 { LONG } else { SHORT };
            held.push(alice.lock(format!("many/{number}")).delay(delay).acquire().await.expect("it is free"));
        }
        let set = alice.lock_all(["a", "b", "c"]).delay(LONG).acquire().await.expect("they are free");
        alice.close().await.expect("closed");
        assert_eq!(fixture.keys("lock/"), [""; 0]);
        bob.close().await.expect("closed");
        assert_eq!(fixture.keys(""), [""; 0]);
        let sessions = fixture.consul().http("GET /v1/session/list");
        assert!(sessions.ends_with("[]"), "{sessions}");
        drop((held, set));
    });
}

/// A keep-alive renews the session of each delay too, and is one request without delays.
#[test]
fn a_keep_alive_is_one_request_more_for_each_delay() {
    check(async {
        for ttl in short_ttls(Duration::from_millis(1500)) {
            let fixture = Fixture::shared();
            let client = fixture.through_proxy(ttl).await;
            let Some(plain) = unless_lost(client.lock("plain").acquire().await) else { continue };
            // Returns how many requests renew the session. `None` if the session is lost, or a connection was replaced whose request
            // was not answered in time.
            let renewed = async || {
                let (before, connections) = (fixture.requests().len(), fixture.proxy.accepted());
                let is_kept = is_renewed(&plain).await && is_renewed(&plain).await;
                let mut requests = fixture.requests()[before..].to_vec();
                requests.sort_unstable();
                requests.dedup();
                let are_renewals = requests.iter().all(|line| line.starts_with("PUT /v1/session/renew/"));
                if !is_kept || (!are_renewals && fixture.proxy.accepted() != connections) {
                    return None;
                }
                assert!(are_renewals, "{requests:?}");
                Some(requests.len())
            };
            let Some(of_plain) = renewed().await else { continue };
            assert_eq!(of_plain, 1);
            let delayed = client.lock("delayed").delay(LONG).acquire().await;
            let Some(delayed) = unless_lost(delayed) else { continue };
            let Some(of_delayed) = renewed().await else { continue };
            assert_eq!(of_delayed, 2);
            // Longer than Consul keeps a session that is not renewed.
            let mut is_kept = true;
            for _ in 0..8 {
                is_kept = is_kept && is_renewed(&delayed).await;
            }
            if !is_kept || unless_lost(delayed.release().await).is_none() {
                continue;
            }
            take(&fixture.client(LONG_TTL).await, "delayed").await;
            return;
        }
    });
}

/// The session of a delay has ended, and its client does not know yet. Neither its release nor its close ends the delay.
#[test]
fn a_late_release_and_a_late_close_do_not_end_the_delay() {
    check(async {
        let fixture = Fixture::shared();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let released = alice.lock("released").delay(LONG).acquire().await.expect("it is free");
        let closed = alice.lock("closed").delay(LONG).acquire().await.expect("it is free");
        fixture.destroy_delayed(&released);
        drop(released.release().await);
        alice.close().await.expect("closed");
        for name in ["released", "closed"] {
            let shown = inspect(&bob, name).await.expect("it is withheld");
            assert_eq!(shown.holders[0].session, None);
            assert!(bob.lock(name).try_acquire().await.expect("an answer").is_none());
        }
        drop(closed);
    });
}

/// A waiter whose session of a delay has ended is told when it would be granted.
#[test]
fn a_waiter_whose_claim_was_left_behind_is_not_granted() {
    check(async {
        let fixture = Fixture::shared();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        let other = alice.lock("other").delay(LONG).acquire().await.expect("it is free");
        let waiting = {
            let alice = alice.clone();
            tokio::spawn(async move { alice.lock("lock").delay(LONG).acquire().await })
        };
        until_queued(&bob, "lock", 1).await;
        fixture.destroy_delayed(&other);
        held.release().await.expect("released");
        within("its wait ends", waiting).await.expect("no panic").expect_err("its session is over");
    });
}

/// Another program ends only the session that holds the claims with a delay: their holder is told at its next keep-alive.
#[test]
fn a_holder_is_told_if_only_the_session_of_its_delay_is_destroyed() {
    check(async {
        let fixture = Fixture::shared();
        // The next keep-alive comes after a third of it.
        let client = fixture.client(Duration::from_secs(18)).await;
        let held = client.lock("lock").delay(LONG).acquire().await.expect("it is free");
        fixture.destroy_delayed(&held);
        assert_eq!(within("it is told", held.lost()).await, Loss::Expired);
        let again = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        assert!(!again.is_finished(), "the lock is withheld");
    });
}
