//! Dropping any future at any await point leaves nothing queued and nothing held (fault 15).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use palisade::Palisade;
use palisade_testbench::faulty_engine::{Call, EngineFaults};

use super::fixture::{Fixture, check};

const LONG: Duration = Duration::from_secs(3600);
/// An upper limit of the polls that any future here needs.
const MANY: usize = 20;

/// Polls a future at most this number of times, each time when it is woken, and then drops it.
async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops `ask` after no poll, one poll, two polls, until it is done; nothing may be left. Once with the lock free,
/// once with a holder that stays until `ask` is dropped, and once with a holder that goes meanwhile.
fn leaves_nothing(ask: impl AsyncFn(&Palisade, &str)) {
    check(async {
        let fixture = Fixture::new();
        let (client, holder) = (fixture.client().await, fixture.client().await);
        let mut done = false;
        for times in 0..MANY {
            let name = format!("free/{times}");
            done = polled(times, ask(&client, &name)).await.is_some();
            fixture.nothing_is_left(&name).await;
            if done {
                break;
            }
        }
        assert!(done, "it is never done");

        for times in 0..=1 {
            let name = format!("held/{times}");
            let held = holder.lock(&name).acquire().await.expect("it is free");
            polled(times, ask(&client, &name)).await;
            drop(held);
            fixture.nothing_is_left(&name).await;
        }

        for times in 0..MANY {
            let name = format!("passed on/{times}");
            let held = holder.lock(&name).acquire().await.expect("it is free");
            let (outcome, released) = tokio::join!(polled(times, ask(&client, &name)), held.release());
            released.expect("it is released");
            fixture.nothing_is_left(&name).await;
            if outcome.is_some() {
                return;
            }
        }
        panic!("it is never done");
    });
}

#[test]
fn an_acquire_can_be_dropped_anywhere() {
    leaves_nothing(async |client, name| drop(client.lock(name).acquire().await.expect("granted")));
}

#[test]
fn an_acquire_with_a_bound_can_be_dropped_anywhere() {
    leaves_nothing(async |client, name| drop(client.lock(name).acquire_within(LONG).await.expect("granted")));
}

#[test]
fn an_attempt_can_be_dropped_anywhere() {
    leaves_nothing(async |client, name| drop(client.lock(name).try_acquire().await.expect("an answer")));
}

#[test]
fn an_efficiency_lock_can_be_dropped_anywhere() {
    leaves_nothing(async |client, name| drop(client.lock(name).efficiency().acquire().await.expect("granted")));
}

#[test]
fn a_campaign_can_be_dropped_anywhere() {
    leaves_nothing(async |client, name| drop(client.election(name).campaign("me").await.expect("elected")));
}

#[test]
fn a_set_can_be_dropped_anywhere() {
    leaves_nothing(async |client, name| {
        let beside = format!("{name}/beside");
        drop(client.lock_all([beside.as_str(), name]).acquire().await.expect("granted"));
    });
}

#[test]
fn work_can_be_dropped_anywhere() {
    leaves_nothing(async |client, name| {
        let work = async |_: &palisade::LockGuard| tokio::task::yield_now().await;
        client.lock(name).run(work).await.expect("done");
    });
}

#[test]
fn a_release_completes_after_its_future_is_dropped() {
    check(async {
        let fixture = Fixture::new();
        let client = fixture.client().await;
        let guard = client.lock("lock").acquire().await.expect("it is free");
        assert!(polled(0, guard.release()).await.is_none());
        assert!(fixture.is_held_with("lock", guard.token().expect("it is held")).await);
        for times in 1..MANY {
            let guard = client.lock("other").acquire().await.expect("it is free");
            let done = polled(times, guard.release()).await;
            fixture.nothing_is_left("other").await;
            if let Some(done) = done {
                return done.expect("it is released");
            }
        }
        panic!("it is never done");
    });
}

/// The same futures, dropped at chosen moments of the keeper.
fn dropped_while(call: Call, is_request: bool, is_contended: bool, ask: impl AsyncFn(&Palisade, &str)) {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let held = match is_contended {
            true => Some(holder.lock("lock").acquire().await.expect("it is free")),
            false => None,
        };
        let gate = if is_request { faults.hold_request(call) } else { faults.hold_answer(call) };
        {
            let asking = ask(&client, "lock");
            let reached = async {
                if is_contended && !is_request {
                    fixture.until_queued("lock", 1).await;
                    held.as_ref().expect("it is contended").release().await.expect("it is released");
                }
                gate.reached().await;
            };
            tokio::select! {
                () = asking => panic!("it is not answered before the gate opens"),
                () = reached => {}
            }
        }
        // The keeper has noticed the drop before the reply has arrived.
        faults.until_begun(Call::Cancel, 1).await;
        gate.open();
        drop(held);
        fixture.nothing_is_left("lock").await;
        client.inspect("lock").await.expect("the client lives");
    });
}

#[test]
fn an_acquire_is_undone_when_it_is_dropped_before_it_reaches_the_engine() {
    dropped_while(Call::Acquire, true, false, async |client, name| drop(client.lock(name).acquire().await));
    dropped_while(Call::Acquire, true, true, async |client, name| drop(client.lock(name).acquire().await));
}

#[test]
fn an_acquire_is_undone_when_it_is_dropped_after_it_was_granted() {
    dropped_while(Call::Acquire, false, false, async |client, name| drop(client.lock(name).acquire().await));
    dropped_while(Call::Acquire, false, true, async |client, name| drop(client.lock(name).acquire().await));
}

#[test]
fn an_attempt_is_undone_when_it_is_dropped_on_either_way() {
    dropped_while(Call::Acquire, true, false, async |client, name| drop(client.lock(name).try_acquire().await));
    dropped_while(Call::Acquire, false, false, async |client, name| drop(client.lock(name).try_acquire().await));
}

#[test]
fn a_campaign_is_undone_when_it_is_dropped_on_either_way() {
    dropped_while(Call::Acquire, true, false, async |client, name| drop(client.election(name).campaign("me").await));
    dropped_while(Call::Acquire, false, true, async |client, name| drop(client.election(name).campaign("me").await));
}

#[test]
fn an_acquire_is_undone_however_much_the_session_was_granted_meanwhile() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let gate = faults.hold_answer(Call::Acquire);
        let mut others = Vec::new();
        {
            let mut acquire = async |number| {
                others.push(client.lock(format!("other/{number}")).acquire().await.expect("it is free"));
            };
            let asking = client.lock("lock").acquire();
            let meanwhile = async {
                fixture.until_queued("lock", 1).await;
                for number in 0..200 {
                    acquire(number).await;
                }
                held.release().await.expect("it is released");
                gate.reached().await;
                for number in 200..400 {
                    acquire(number).await;
                }
            };
            tokio::select! {
                _ = asking => panic!("it is not answered before the gate opens"),
                () = meanwhile => {}
            }
        }
        faults.until_begun(Call::Cancel, 1).await;
        gate.open();
        fixture.nothing_is_left("lock").await;
    });
}

#[test]
fn an_observer_misses_nothing_when_it_is_dropped_and_asked_again() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, leader) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let mut observer = client.election("boss").observe().await.expect("it can be observed");
        assert_eq!(observer.next().await.expect("an answer"), None);
        let _leadership = leader.election("boss").campaign("first").await.expect("elected");
        let gate = faults.hold_answer(Call::Inspect);
        tokio::select! {
            _ = observer.next() => panic!("it is not answered before the gate opens"),
            () = gate.reached() => {}
        }
        gate.open();
        let seen = observer.next().await.expect("an answer").expect("there is a leader");
        assert_eq!(seen.value, b"first");
    });
}
