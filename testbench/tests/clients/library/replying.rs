//! Replies that come late, or never.

use std::future::Future;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use palisade::recipe::Change;
use palisade::{Error, ErrorKind, LockGuard, Loss, Options, Palisade, Standing};
use palisade_testbench::faulty_engine::{Act, Call, Cut, EngineFaults};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::fixture::{Fixture, SHORT_TTL, SHORTEST_TTL, check, not_kept_alive, take};

/// Returns whether this is the loss of a session that was not kept alive.
fn is_not_kept_alive(error: &Error) -> bool {
    error.loss().and_then(not_kept_alive).is_some()
}

/// Fault 4.
#[test]
fn a_grant_that_is_answered_after_its_session_has_ended_is_not_delivered() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let session = client.lock("before").acquire().await.expect("it is free").session();
        let gate = faults.hold_answer(Call::Acquire);
        let late = tokio::spawn(client.lock("lock").acquire());
        gate.reached().await;
        fixture.end_session(session).await;
        let error = late.await.expect("no panic").expect_err("its session is over");
        assert_eq!(error.loss(), Some(&Loss::Expired));
        gate.open();
        fixture.nothing_is_left("lock").await;
        client.lock("lock").acquire().await.expect("the client has a new session");
    });
}

/// Fault 4, noticed by the clock.
#[test]
fn a_grant_that_is_answered_past_its_deadline_is_not_delivered() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(SHORTEST_TTL)).await;
        faults.always(Call::KeepAlive, Act::Fail);
        let gate = faults.hold_answer(Call::Acquire);
        let late = tokio::spawn(client.lock("lock").acquire());
        gate.reached().await;
        let error = late.await.expect("no panic").expect_err("its session is over");
        assert!(is_not_kept_alive(&error), "{error}");
        gate.open();
        faults.mend();
        fixture.nothing_is_left("lock").await;
    });
}

/// Fault 4, when the keeper was stopped and could not note the loss.
#[test]
fn a_grant_that_a_stopped_client_finds_when_it_wakes_is_not_delivered() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(SHORTEST_TTL)).await;
        faults.next(Call::Acquire, Act::Stop(2 * SHORTEST_TTL));
        let error = client.lock("lock").acquire().await.expect_err("its session can have ended meanwhile");
        assert!(is_not_kept_alive(&error) || error.loss() == Some(&Loss::Expired), "{error}");
        fixture.nothing_is_left("lock").await;
        // The client has a new session.
        take(&client, "lock").await;
    });
}

/// Fault 5.
#[test]
fn a_waiter_whose_session_ends_gets_an_error_at_once_and_never_a_grant() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let session = client.lock("before").acquire().await.expect("it is free").session();
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let waiters = [(); 3].map(|()| tokio::spawn(client.lock("lock").acquire()));
        fixture.until_queued("lock", 3).await;
        fixture.end_session(session).await;
        for waiter in waiters {
            let error = waiter.await.expect("no panic").expect_err("its session is over");
            assert_eq!(error.loss(), Some(&Loss::Expired));
            assert!(error.is_retryable() && !error.may_have_taken_effect());
        }
        assert!(held.token().is_ok());
        drop(held);
        fixture.nothing_is_left("lock").await;
    });
}

#[test]
fn a_grant_that_is_force_released_before_its_reply_is_lost_from_the_start() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, other) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let watched = client.lock("watched").acquire().await.expect("it is free");
        let gate = faults.hold_answer(Call::Acquire);
        let asked = tokio::spawn(client.lock("lock").acquire());
        gate.reached().await;
        other.force_release("lock", "a test").await.expect("it is held");
        // Notices come in order: after this one, the earlier one has arrived too.
        other.force_release("watched", "a test").await.expect("it is held");
        watched.lost().await;
        gate.open();
        let forced = |loss: Option<&Loss>| matches!(loss, Some(Loss::ForcedBy { .. }));
        match asked.await.expect("no panic") {
            Ok(guard) => assert!(forced(Some(&guard.lost().await))),
            Err(error) => assert!(forced(error.loss()), "{error}"),
        }
    });
}

/// Fault 10.
#[test]
fn an_attempt_whose_answer_is_lost_is_undone() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        faults.next(Call::Acquire, Act::LoseAnswer);
        faults.next(Call::Cancel, Act::Fail);
        faults.next(Call::Cancel, Act::LoseAnswer);
        let error = client.lock("lock").try_acquire().await.expect_err("there is no answer");
        assert!(matches!(error.kind(), ErrorKind::Outage { .. }), "{error}");
        assert!(error.is_retryable() && error.may_have_taken_effect());
        fixture.nothing_is_left("lock").await;
        assert!(client.lock("lock").try_acquire().await.expect("an answer").is_some());
    });
}

/// Fault 10: the failure of a repeat says nothing about the attempt before it.
#[test]
fn an_acquire_that_was_granted_unseen_is_undone_when_its_repeat_is_denied() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        faults.next(Call::Acquire, Act::LoseAnswer);
        faults.next(Call::Acquire, Act::Deny);
        let error = client.lock("lock").acquire().await.expect_err("the repeat is denied");
        assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{error}");
        fixture.nothing_is_left("lock").await;
    });
}

/// The same while the engine cannot be asked to undo it.
#[test]
fn a_denied_repeat_of_an_acquire_that_cannot_be_undone_yet_may_have_taken_effect() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        faults.next(Call::Acquire, Act::LoseAnswer);
        faults.next(Call::Acquire, Act::Deny);
        faults.always(Call::Cancel, Act::Fail);
        let error = client.lock("lock").acquire().await.expect_err("the repeat is denied");
        assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains("the right was withdrawn"), "{error}");
        faults.mend();
        fixture.nothing_is_left("lock").await;
    });
}

/// Fault 10, for waiters: they repeat the same request, and are granted once.
#[test]
fn an_acquire_whose_answer_is_lost_is_repeated_and_granted_once() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        faults.next(Call::Acquire, Act::LoseAnswer);
        faults.next(Call::Acquire, Act::Fail);
        faults.next(Call::Acquire, Act::LoseAnswer);
        let guard = client.lock("lock").acquire().await.expect("it is free");
        assert_eq!(faults.begun(Call::Acquire), 4);
        assert!(fixture.is_held_with("lock", guard.token().expect("it is held")).await);
        guard.release().await.expect("it is released");
        fixture.nothing_is_left("lock").await;
    });
}

/// Fault 10, at the end of a bounded wait: a grant that came meanwhile is handed out or released, never forgotten.
#[test]
fn a_wait_that_times_out_while_it_is_granted_leaves_nothing_held() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let gate = faults.hold_answer(Call::Acquire);
        let guard = client.lock("lock").acquire_within(Duration::from_millis(20)).await.expect("an answer");
        gate.open();
        if let Some(guard) = &guard {
            assert!(fixture.is_held_with("lock", guard.token().expect("it is held")).await);
        }
        drop(guard);
        fixture.nothing_is_left("lock").await;
    });
}

/// Fault 8.
#[test]
fn a_release_that_is_repeated_after_a_re_acquire_frees_nothing() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let first = client.lock("lock").acquire().await.expect("it is free");
        faults.next(Call::Release, Act::LoseAnswer);
        let error = first.release().await.expect_err("there is no answer");
        assert!(error.may_have_taken_effect() && error.is_retryable(), "{error}");
        let second = client.lock("lock").acquire().await.expect("it was released");
        faults.until_begun(Call::Release, 2).await;
        faults.until_running(Call::Release, 0).await;
        assert!(fixture.is_held_with("lock", second.token().expect("it is held")).await);
        first.release().await.expect("it was released in the end");
        assert_eq!(first.lost().await, Loss::Released);
        drop(first);
        assert!(client.lock("lock").try_acquire().await.expect("an answer").is_none());
        second.release().await.expect("it is released");
    });
}

/// Another client may get the lock as soon as the release has arrived.
#[test]
fn a_lock_has_no_token_while_its_release_is_in_flight() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, other) = (fixture.faulty_client(&faults).await, fixture.client().await);
        for is_request in [true, false] {
            let guard = client.lock("lock").acquire().await.expect("it is free");
            let gate = match is_request {
                true => faults.hold_request(Call::Release),
                false => faults.hold_answer(Call::Release),
            };
            let (released, ()) = tokio::join!(guard.release(), async {
                gate.reached().await;
                let next = other.lock("lock").try_acquire().await.expect("an answer");
                assert_eq!(next.is_some(), !is_request);
                assert_given_up(&guard);
                gate.open();
            });
            released.expect("it is released");
            fixture.nothing_is_left("lock").await;
        }
    });
}

/// The keeper repeats the release, and until then only the engine knows whether it was carried out.
#[test]
fn a_lock_has_no_token_after_the_answer_to_its_release_was_lost() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        for act in [Act::LoseAnswer, Act::Fail] {
            let guard = client.lock("lock").acquire().await.expect("it is free");
            faults.next(Call::Release, act);
            let gate = faults.hold_request(Call::Release);
            guard.release().await.expect_err("there is no answer");
            gate.reached().await;
            assert_given_up(&guard);
            gate.open();
            fixture.nothing_is_left("lock").await;
        }
    });
}

fn assert_given_up(guard: &LockGuard) {
    let error = guard.token().expect_err("the application has released it");
    assert_eq!(error.loss(), Some(&Loss::Released));
    assert_eq!(guard.standing(), Standing::Lost(Loss::Released));
}

/// Fault 9.
#[test]
fn a_release_that_arrives_when_another_holds_the_lock_frees_nothing() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, other) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let old = client.lock("lock").acquire().await.expect("it is free");
        let gate = faults.hold_request(Call::Release);
        let (released, new) = tokio::join!(old.release(), async {
            gate.reached().await;
            other.force_release("lock", "a test").await.expect("it is held");
            let new = other.lock("lock").acquire().await.expect("it was taken away");
            gate.open();
            new
        });
        let error = released.expect_err("it was taken away");
        assert!(matches!(error.loss(), Some(Loss::ForcedBy { .. })), "{error}");
        assert!(fixture.is_held_with("lock", new.token().expect("it is held")).await);
    });
}

/// Fault 11.
#[test]
#[ignore = "long: waits of several TTLs"]
fn a_release_and_a_keep_alive_may_overtake_each_other() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(SHORT_TTL)).await;
        let held = client.lock("held").acquire().await.expect("it is free");
        for is_request in [true, false] {
            let guard = client.lock("lock").acquire().await.expect("it is free");
            let gate = match is_request {
                true => faults.hold_request(Call::KeepAlive),
                false => faults.hold_answer(Call::KeepAlive),
            };
            gate.reached().await;
            guard.release().await.expect("it is released");
            gate.open();
            fixture.nothing_is_left("lock").await;
            held.token().expect("the session lives");
        }
        assert_eq!(faults.begun(Call::OpenSession), 1);
    });
}

#[test]
fn a_dropped_guard_is_released_as_soon_as_the_engine_is_reachable() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        faults.next(Call::Release, Act::Fail);
        faults.next(Call::Release, Act::Fail);
        drop(guard);
        fixture.nothing_is_left("lock").await;
        assert_eq!(faults.begun(Call::Release), 3);
        client.inspect("lock").await.expect("the client lives");
    });
}

#[test]
#[ignore = "long: cut and slow connections"]
fn a_waiter_at_a_silent_engine_learns_of_the_lost_session() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(SHORT_TTL)).await;
        let held = client.lock("held").acquire().await.expect("it is free");
        faults.cut(Cut::Silent);
        let (released, waited, tried) =
            tokio::join!(held.release(), client.lock("one").acquire(), client.lock("two").try_acquire(),);
        assert!(is_not_kept_alive(&released.expect_err("nothing is answered")));
        assert!(is_not_kept_alive(&waited.expect_err("nothing is answered")));
        assert!(is_not_kept_alive(&tried.expect_err("nothing is answered")));
        faults.mend();
        for name in ["held", "one", "two"] {
            fixture.nothing_is_left(name).await;
        }
    });
}

/// The partition can go to its next owner while the reply to the release is on its way.
#[test]
fn a_partition_that_is_lost_has_no_token() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, other) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let mut slow =
            client.partitions("orders", 2).grace(Duration::from_millis(50)).join(2).await.expect("a member");
        let mut owned = Vec::new();
        while owned.len() < 2 {
            if let Change::Gained(ownership) = slow.next().await.expect("a change") {
                owned.push(ownership);
            }
        }
        let gate = faults.hold_answer(Call::Release);
        let _other = other.partitions("orders", 2).join(2).await.expect("a member");
        let lost = loop {
            if let Change::Lost { partition, .. } = slow.next().await.expect("a change") {
                break partition;
            }
        };
        let ownership = owned.iter().find(|ownership| ownership.partition() == lost).expect("it was owned");
        assert!(ownership.token().is_err());
        gate.open();
    });
}

/// The session is over, and the engine is still gone.
#[test]
fn without_a_session_an_attempt_fails_instead_of_waiting_for_the_engine() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(SHORTEST_TTL)).await;
        let held = take(&client, "held").await;
        faults.cut(Cut::Failing);
        // A standstill may have ended that session before. The next one is opened only after it.
        let begun = faults.begun(Call::OpenSession);
        held.lost().await;
        faults.until_begun(Call::OpenSession, begun + 1).await;
        let lock = || client.lock("orders/42");
        let tried = lock().try_acquire().await.expect_err("the engine is gone");
        let waited = lock().acquire_within(Duration::from_millis(20)).await.expect_err("it is gone");
        for error in [tried, waited] {
            assert!(error.is_retryable() && !error.may_have_taken_effect(), "{error}");
            assert!(error.to_string().contains("orders/42"), "{error}");
        }
        // An acquire without a limit waits for the engine.
        let waiting = tokio::spawn(lock().acquire());
        faults.until_begun(Call::OpenSession, faults.begun(Call::OpenSession) + 2).await;
        faults.mend();
        if let Err(error) = waiting.await.expect("no panic") {
            // The engine is back, and a standstill has ended the next session, too.
            assert!(is_not_kept_alive(&error) || error.loss() == Some(&Loss::Expired), "{error}");
        }
    });
}

#[test]
fn a_bounded_wait_ends_even_if_the_engine_is_silent() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let gate = faults.hold_answer(Call::Acquire);
        let cancel = faults.hold_request(Call::Cancel);
        let late = client.lock("lock").acquire_within(Duration::from_millis(20)).await;
        assert!(late.expect("no answer is no error here").is_none());
        cancel.reached().await;
        cancel.open();
        gate.open();
        fixture.nothing_is_left("lock").await;
        client.inspect("lock").await.expect("the client lives");
    });
}

#[test]
fn a_client_can_be_closed_even_if_the_engine_is_silent() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        faults.cut(Cut::Silent);
        let error = client.close().await.expect_err("nothing is answered");
        assert!(error.may_have_taken_effect(), "{error}");
    });
}

#[test]
fn one_stuck_task_does_not_delay_the_replies_of_the_batch() {
    check(async {
        let client = Fixture::new().client().await;
        let mut stuck: Vec<_> = (0..20).map(|n| Box::pin(client.lock(format!("stuck/{n}")).acquire())).collect();
        // They have sent their requests, and never run again.
        for future in &mut stuck {
            assert!(future.now_or_never().is_none_or(|acquired| acquired.is_ok()));
        }
        let guard = client.lock("running").acquire().await.expect("it is free");
        guard.release().await.expect("it is released");
    });
}

#[test]
fn replies_reach_every_runtime_that_shares_a_client() {
    check(async {
        let client = Fixture::new().client().await;
        let answered: Vec<_> =
            (1..=3).map(|workers| on_another_runtime(workers, many_cycles(client.clone(), workers))).collect();
        for all_were in answered {
            all_were.await.expect("all were answered");
        }
    });
}

/// Runs it on a runtime with this number of threads. The channel closes when it is done.
fn on_another_runtime(workers: usize, work: impl Future<Output = ()> + Send + 'static) -> oneshot::Receiver<()> {
    let (done, is_done) = oneshot::channel();
    thread::spawn(move || {
        let runtime = match workers {
            1 => Builder::new_current_thread().enable_all().build(),
            _ => Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
        };
        runtime.expect("a runtime").block_on(work);
        done.send(())
    });
    is_done
}

/// Runs many tasks on separate locks. Half of their requests are dropped after they were sent.
async fn many_cycles(client: Palisade, place: usize) {
    let cycle = |task: usize| {
        let lock = client.lock(format!("{place}/{task}"));
        async move {
            for _ in 0..50 {
                drop(lock.clone().acquire().now_or_never());
                let guard = lock.clone().acquire().await.expect("its turn comes");
                guard.release().await.expect("it is released");
            }
        }
    };
    let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(cycle(task))).collect();
    for task in tasks {
        task.await.expect("all were answered");
    }
}
