//! A service that is stopped for longer than its clients' sessions live.

use std::time::Duration;

use palisade::{BootInstant, Loss};

use super::fixture::{Fixture, LONG_TTL, check, holder, jeopardy, take, taken, taking, token, until_queued};

#[test]
#[ignore = "long: stopped processes"]
fn guards_are_in_jeopardy_and_lost_before_a_stopped_service_can_have_ended_their_session() {
    check(async {
        const TTL: Duration = Duration::from_secs(3);
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(TTL).await, fixture.client(LONG_TTL).await);
        let guard = take(&alice, "lock").await;
        let (before, session) = (token(&guard), holder(&bob, "lock").await);
        let waiting = taking(&bob, "lock");
        until_queued(&bob, "lock", 1).await;
        let stopped_at = BootInstant::now();
        fixture.service.stop();
        let safe_until = jeopardy(&guard).await;
        assert!(guard.token().is_ok() || safe_until.has_passed());
        assert!(matches!(guard.lost().await, Loss::Unreachable { .. }));
        // The last confirmed keep-alive is older than the stop.
        assert!(safe_until <= stopped_at + TTL, "it believed in its session for too long");
        assert!(guard.token().is_err());
        fixture.service.go_on();
        let next = taken(waiting).await;
        assert!(token(&next) > before);
        drop(next);
        let again = take(&alice, "lock").await;
        assert_ne!(holder(&bob, "lock").await, session);
        again.release().await.expect("a new session holds it");
    });
}

#[test]
#[ignore = "long: stopped processes"]
fn a_service_that_is_stopped_for_less_than_the_ttl_is_not_noticed_by_holders_and_waiters() {
    check(async {
        const TTL: Duration = Duration::from_secs(6);
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(TTL).await, fixture.client(TTL).await);
        let guard = take(&alice, "lock").await;
        let before = token(&guard);
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        fixture.service.stop();
        // The standstill is the fault: longer than a keep-alive is waited for.
        tokio::time::sleep(TTL * 3 / 4).await;
        fixture.service.go_on();
        let session = holder(&bob, "lock").await;
        assert!(session.is_some());
        assert_eq!(token(&guard), before);
        guard.release().await.expect("it is held");
        assert!(token(&taken(waiting).await) > before);
    });
}
