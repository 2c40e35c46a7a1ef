//! A service that is stopped for longer than its clients' sessions live.

use std::fs;
use std::time::Duration;

use palisade::BootInstant;
use palisade_testbench::bounded::block_until;

use super::fixture::{
    Fixture, LONG_TTL, SHORT_TTL, check, give_back, holder, is_not_kept_alive, jeopardy, take, taken, taking, token,
    until_queued,
};

/// Stops the service, and waits until the system has done that.
fn stop(fixture: &Fixture) {
    fixture.service.stop();
    let stat = format!("/proc/{}/stat", fixture.service.pid());
    block_until("the service stands still", || {
        fs::read_to_string(&stat).is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    });
}

#[test]
#[ignore = "long: stopped processes"]
fn guards_are_in_jeopardy_and_lost_before_a_stopped_service_can_have_ended_their_session() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(SHORT_TTL).await, fixture.client(LONG_TTL).await);
        let guard = take(&alice, "lock").await;
        let (before, session) = (token(&guard), holder(&bob, "lock").await);
        let waiting = taking(&bob, "lock");
        until_queued(&bob, "lock", 1).await;
        stop(&fixture);
        let stopped_at = BootInstant::now();
        let safe_until = jeopardy(&guard).await;
        assert!(guard.token().is_ok() || safe_until.has_passed());
        assert!(is_not_kept_alive(&guard.lost().await));
        // The last confirmed keep-alive is older than the stop.
        assert!(safe_until <= stopped_at + SHORT_TTL, "it believed in its session for too long");
        assert!(guard.token().is_err());
        fixture.service.go_on();
        let next = taken(waiting).await;
        assert!(token(&next) > before);
        drop(next);
        let again = take(&alice, "lock").await;
        assert_ne!(holder(&bob, "lock").await, session);
        give_back(&again).await;
    });
}

#[test]
#[ignore = "long: stopped processes"]
fn a_service_that_is_stopped_for_less_than_the_ttl_is_not_noticed_by_holders_and_waiters() {
    check(async {
        // A keep-alive is sent after ten seconds, and waited for five.
        const TTL: Duration = Duration::from_secs(30);
        const STANDSTILL: Duration = Duration::from_secs(16);
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(TTL).await, fixture.client(TTL).await);
        let guard = take(&alice, "lock").await;
        let before = token(&guard);
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        stop(&fixture);
        // The standstill is the fault: longer than a keep-alive is waited for.
        tokio::time::sleep(STANDSTILL).await;
        fixture.service.go_on();
        let session = holder(&bob, "lock").await;
        assert!(session.is_some());
        assert_eq!(token(&guard), before);
        give_back(&guard).await;
        assert!(token(&taken(waiting).await) > before);
    });
}
