//! The keeper's thread keeps the session alive, and reports its loss before the engine can have ended it.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use palisade::{BootInstant, Loss, Options, Standing};
use palisade_testbench::bounded::until;
use palisade_testbench::faulty_engine::{Act, Call, Cut, EngineFaults};

use super::fixture::{Fixture, SHORT_TTL, check, not_kept_alive};

fn short() -> Options {
    Options::new().ttl(SHORT_TTL)
}

/// Fault 14. Blocking is the fault itself, so this test sleeps.
#[test]
#[ignore = "long: waits of several TTLs"]
fn an_application_that_blocks_its_runtime_for_three_ttls_keeps_its_lock() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, short()).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        let token = guard.token().expect("it is held");
        let before = faults.begun(Call::KeepAlive);
        std::thread::sleep(3 * SHORT_TTL);
        assert_eq!(guard.token().expect("it is still held"), token);
        assert!(faults.begun(Call::KeepAlive) > before + 2);
        assert!(fixture.is_held_with("lock", token).await);
        assert_eq!(faults.begun(Call::OpenSession), 1);
    });
}

/// Fault 12.
#[test]
#[ignore = "long: several seconds"]
fn one_failed_keep_alive_is_no_loss() {
    let fails_once = async |act: Act| {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, short()).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        let before = (faults.begun(Call::KeepAlive), guard.safe_until());
        faults.next(Call::KeepAlive, act);
        faults.until_begun(Call::KeepAlive, before.0 + 3).await;
        guard.token().expect("it is held");
        assert!(guard.safe_until() > before.1);
        assert_eq!(guard.lost().now_or_never(), None);
        assert_eq!(faults.begun(Call::OpenSession), 1);
    };
    check(async {
        join(fails_once(Act::Fail), fails_once(Act::LoseAnswer)).await;
    });
}

#[test]
#[ignore = "long: several seconds"]
fn a_keep_alive_without_an_answer_is_followed_by_another() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, short()).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        let before = faults.begun(Call::KeepAlive);
        let gate = faults.hold_request(Call::KeepAlive);
        gate.reached().await;
        faults.until_begun(Call::KeepAlive, before + 3).await;
        guard.token().expect("it is held");
        gate.open();
        faults.until_begun(Call::KeepAlive, before + 4).await;
        guard.token().expect("it is held");
        assert_eq!(faults.begun(Call::OpenSession), 1);
    });
}

/// Fault 12: a lock that is granted after an outage is delivered when a keep-alive has confirmed its session.
#[test]
#[ignore = "long: several seconds"]
fn a_lock_is_not_delivered_in_jeopardy() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(Duration::from_secs(30))).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        faults.always(Call::KeepAlive, Act::Fail);
        assert!(matches!(guard.jeopardy().await, Standing::Jeopardy { .. }));
        let acquire = client.lock("other").acquire();
        let acquiring = tokio::spawn(async move {
            let granted = acquire.await.expect("its session goes on");
            (granted.standing(), granted)
        });
        let other = fixture.client().await;
        until("it is granted", async || other.inspect("other").await.expect("an answer").is_some()).await;
        faults.mend();
        let (standing, _granted) = acquiring.await.expect("no panic");
        assert_eq!(standing, Standing::Held);
    });
}

/// Fault 13 and promise 5.
#[test]
#[ignore = "long: cut and slow connections"]
fn a_client_that_is_cut_off_is_in_jeopardy_and_then_lost_before_the_engine_ends_its_session() {
    let cut_off = async |cut: Cut| {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        // The session is in jeopardy for ten seconds.
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(Duration::from_secs(30))).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        let token = guard.token().expect("it is held");
        let other = fixture.client().await;
        let blocker = other.lock("blocked").acquire().await.expect("it is free");
        let waiter = tokio::spawn(client.lock("blocked").acquire());
        fixture.until_queued("blocked", 1).await;
        faults.cut(cut);

        let safe_until = match guard.jeopardy().await {
            // The machine may stand still until the loss.
            Standing::Jeopardy { safe_until } | Standing::Lost(Loss::Paused { safe_until, .. }) => safe_until,
            other => panic!("jeopardy comes first: {other:?}"),
        };
        let (held, lock) = (guard.token(), other.inspect("lock").await.expect("an answer"));
        let now = BootInstant::now();
        if now < safe_until {
            assert_eq!(held.expect("it is certainly held yet"), token);
            let left = lock.expect("the session lives").holders[0].time_left_ms.expect("this engine knows");
            let ends_at = now + Duration::from_millis(left + 1);
            assert!(safe_until < ends_at, "the engine could end the session before its client knows");
        }

        assert_eq!(not_kept_alive(&guard.lost().await), Some(safe_until));
        assert!(safe_until.has_passed());
        let error = guard.token().expect_err("it is lost");
        assert_eq!(error.loss().and_then(not_kept_alive), Some(safe_until));
        guard.ensure(Duration::ZERO).expect_err("it is lost");
        let error = waiter.await.expect("no panic").expect_err("it waits on a session that is lost");
        assert_eq!(error.loss().and_then(not_kept_alive), Some(safe_until));
        assert!(error.is_retryable() && !error.may_have_taken_effect());

        faults.mend();
        let again = client.lock("lock").acquire().await.expect("the client recovers");
        assert!(again.token().expect("it is held") > token);
        assert_ne!(again.session(), guard.session());
        assert_eq!(not_kept_alive(&guard.lost().await), Some(safe_until));
        drop(blocker);
        fixture.nothing_is_left("blocked").await;
    };
    check(async {
        join(cut_off(Cut::Failing), cut_off(Cut::Silent)).await;
    });
}

/// The lease counts from before the request was sent, so never from later than its arrival at the engine.
#[test]
#[ignore = "long: crowds"]
fn a_deadline_is_counted_from_before_the_keep_alive_was_sent() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, short()).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        for _ in 0..3 {
            let before = guard.safe_until();
            let gate = faults.hold_answer(Call::KeepAlive);
            gate.reached().await;
            let arrived_at = BootInstant::now();
            // A slow reply does not lengthen the lease.
            tokio::time::sleep(SHORT_TTL / 20).await;
            gate.open();
            let safe_until = guard.renewed(before).await;
            assert!(safe_until <= arrived_at + SHORT_TTL, "counted from the answer: {safe_until}, {arrived_at}");
        }
    });
}

/// The drift is half of the TTL here, so that it shows.
#[test]
#[ignore = "long: several seconds"]
fn the_drift_is_subtracted_at_the_beginning_and_at_every_renewal() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let ttl = Duration::from_secs(60);
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(ttl).drift_per_mille(500)).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        let opened_at = faults.opened_at()[0];
        let gate = faults.hold_answer(Call::KeepAlive);
        assert!(guard.safe_until() <= opened_at + ttl / 2, "all of the TTL is believed in from the start");
        gate.reached().await;
        let arrived_at = BootInstant::now();
        let before = guard.safe_until();
        gate.open();
        let safe_until = guard.renewed(before).await;
        assert!(safe_until <= arrived_at + ttl / 2, "all of the TTL is believed in after a renewal");
    });
}

/// The keeper's thread stops like that of a stopped process.
#[test]
#[ignore = "long: several seconds"]
fn a_client_that_was_paused_learns_of_it() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, short()).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        // It was to run again a third of its TTL after the keep-alive.
        faults.next(Call::KeepAlive, Act::Stop(SHORT_TTL * 4 / 3));
        let Loss::Paused { time, safe_until } = guard.lost().await else {
            panic!("it was paused: {:?}", guard.lost().await)
        };
        assert!(time >= SHORT_TTL * 2 / 3 && safe_until.has_passed(), "{time:?}");
        let error = guard.token().expect_err("it is lost");
        let Some(Loss::Paused { time, .. }) = error.loss() else { panic!("it was paused: {error}") };
        assert!(error.to_string().contains(&format!("was paused for {:.1} s", time.as_secs_f64())), "{error}");
        client.lock("lock").acquire().await.expect("the client recovers");
    });
}

#[test]
#[ignore = "long: several seconds"]
fn requests_made_while_there_is_no_session_wait_for_the_next_one() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, short()).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        faults.cut(Cut::Failing);
        guard.lost().await;
        faults.until_begun(Call::OpenSession, 2).await;
        let waiter = tokio::spawn(client.lock("other").acquire());
        faults.mend();
        waiter.await.expect("no panic").expect("it is granted on the new session");
    });
}

#[test]
fn a_client_that_is_closed_while_it_has_no_session_opens_none() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        faults.always(Call::OpenSession, Act::Fail);
        fixture.end_session(guard.session()).await;
        guard.lost().await;
        let gate = faults.hold_request(Call::OpenSession);
        gate.reached().await;
        client.clone().close().await.expect("there is nothing to close");
        faults.mend();
        gate.open();
        // The lost session is closed, and so is the one that was opened too late.
        faults.until_begun(Call::CloseSession, 2).await;
        assert_eq!(faults.ttls().len(), 2);
        client.lock("lock").acquire().await.expect_err("the client is closed");
    });
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn a_client_whose_closing_fails_stops_renewing() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, short()).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        faults.always(Call::CloseSession, Act::Fail);
        let error = client.close().await.expect_err("the engine cannot be told");
        assert!(error.is_retryable());
        assert_eq!(guard.lost().await, Loss::SessionClosed);
        // The session ends by its TTL, although its keeper still runs.
        fixture.nothing_is_left("lock").await;
        assert_eq!(guard.lost().await, Loss::SessionClosed);
    });
}

#[test]
fn a_dropped_client_opens_no_other_session() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let mut watch = client.watch("").await.expect("a watch");
        let gate = faults.hold_answer(Call::CloseSession);
        let dropped = tokio::task::spawn_blocking(move || drop(client));
        gate.reached().await;
        assert_eq!(watch.next().await, None);
        gate.open();
        dropped.await.expect("no panic");
        assert_eq!((faults.begun(Call::OpenSession), faults.begun(Call::CloseSession)), (1, 1));
    });
}

#[test]
fn fractions_of_a_millisecond_are_rounded_down() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let options = Options::new().ttl(Duration::from_nanos(60_000_999_999)).drift_per_mille(0);
        let client = fixture.faulty_client_with(&faults, options).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        let ttl = Duration::from_millis(faults.ttls()[0].as_ms());
        assert_eq!(ttl, Duration::from_secs(60));
        assert_eq!(faults.begun(Call::KeepAlive), 0);
        // The engine counts from the request, which was before it had opened the session.
        assert!(guard.safe_until() <= faults.opened_at()[0] + ttl);
    });
}
