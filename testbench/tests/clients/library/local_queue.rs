//! Without a queue in the engine, the waiters of one client queue in the keeper, and only the first one asks the engine.

use palisade::Palisade;
use palisade::engine::{Guarantees, Order};
use palisade_core::Limits;
use palisade_testbench::faulty_engine::{Call, EngineFaults};

use super::fixture::{Fixture, check};

const WAITERS: usize = 10;

fn racing(guarantees: Guarantees) -> Guarantees {
    Guarantees { order: Order::Race, ..guarantees }
}

/// Waits until the keeper has all earlier requests: it takes them in order, so a reply to a later one is enough.
async fn until_asked(client: &Palisade) {
    tokio::task::yield_now().await;
    client.list("").await.expect("an answer");
}

#[test]
fn many_local_waiters_cost_a_racing_engine_one() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::declaring(racing));
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let waiters = [(); WAITERS].map(|()| tokio::spawn(client.lock("lock").acquire()));
        let beside = tokio::spawn(client.lock("beside").acquire());
        until_asked(&client).await;
        beside.await.expect("no panic").expect("another name does not wait");
        assert_eq!(faults.running(Call::Acquire), 1);
        fixture.until_queued("lock", 1).await;
        drop(held);
        for waiter in waiters {
            let guard = waiter.await.expect("no panic").expect("its turn comes, in order");
            guard.release().await.expect("it is released");
        }
        fixture.nothing_is_left("lock").await;
    });
}

#[test]
fn the_next_local_waiter_asks_when_the_first_one_is_dropped() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::declaring(racing));
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let [first, second, third] = [(); 3].map(|()| tokio::spawn(client.lock("lock").acquire()));
        until_asked(&client).await;
        fixture.until_queued("lock", 1).await;
        second.abort();
        first.abort();
        drop(first.await);
        drop(second.await);
        drop(held);
        third.await.expect("no panic").expect("its turn comes");
        fixture.nothing_is_left("lock").await;
    });
}

/// A session remembers the outcomes of its last requests only. The engine refuses to cancel an older one that never arrived, and
/// would refuse it again.
#[test]
fn a_cancel_of_a_forgotten_request_is_not_repeated_and_the_next_local_waiter_asks() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::declaring(racing));
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let _held = holder.lock("other").acquire().await.expect("it is free");
        let gate = faults.hold_request(Call::Acquire);
        let first = tokio::spawn(client.lock("lock").acquire());
        gate.reached().await;
        for _ in 0..=Limits::default().answers_per_session {
            assert!(client.lock("other").try_acquire().await.expect("an answer").is_none());
        }
        let second = tokio::spawn(client.lock("lock").acquire());
        until_asked(&client).await;
        first.abort();
        tokio::select! {
            granted = second => drop(granted.expect("no panic").expect("its turn comes")),
            () = faults.until_begun(Call::Cancel, 2) => panic!("the cancel is repeated"),
        }
        assert_eq!(faults.begun(Call::Cancel), 1);
        fixture.nothing_is_left("lock").await;
    });
}

#[test]
fn a_local_waiter_gets_time_outs_and_losses_while_it_queues() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::declaring(racing));
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let session = client.lock("before").acquire().await.expect("it is free").session();
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let waiters = [(); 2].map(|()| tokio::spawn(client.lock("lock").acquire()));
        until_asked(&client).await;
        let bounded = client.lock("lock").acquire_within(std::time::Duration::from_millis(20));
        assert!(bounded.await.expect("an answer").is_none());
        assert!(client.lock("lock").try_acquire().await.expect("an answer").is_none());
        fixture.end_session(session).await;
        for waiter in waiters {
            waiter.await.expect("no panic").expect_err("its session is over");
        }
        drop(held);
        fixture.nothing_is_left("lock").await;
    });
}

#[test]
fn waiters_join_the_engines_queue_if_it_has_one() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let (client, holder) = (fixture.faulty_client(&faults).await, fixture.client().await);
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let waiters = [(); WAITERS].map(|()| tokio::spawn(client.lock("lock").acquire()));
        fixture.until_queued("lock", WAITERS).await;
        drop(held);
        for waiter in waiters {
            waiter.await.expect("no panic").expect("its turn comes");
        }
    });
}
