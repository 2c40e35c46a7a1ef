//! Where the engine has no queue, the waiters of one client queue up here, and cost it one.

use palisade::Palisade;
use palisade::engine::{Guarantees, Order};
use palisade_testbench::faulty_engine::{Call, Stage};

use crate::fixture::{Fixture, check};

const WAITERS: usize = 10;

fn racing(guarantees: Guarantees) -> Guarantees {
    Guarantees { order: Order::Race, ..guarantees }
}

/// What was asked before is with the keeper when this is answered: it takes requests in order.
async fn until_asked(client: &Palisade) {
    tokio::task::yield_now().await;
    client.list("").await.expect("an answer");
}

#[test]
fn many_local_waiters_cost_a_racing_engine_one() {
    check(async {
        let (fixture, stage) = (Fixture::new(), Stage::declaring(racing));
        let (client, holder) = (fixture.on_stage(&stage).await, fixture.client().await);
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let waiters = [(); WAITERS].map(|()| tokio::spawn(client.lock("lock").acquire()));
        let beside = tokio::spawn(client.lock("beside").acquire());
        until_asked(&client).await;
        beside.await.expect("no panic").expect("another name waits for nobody");
        assert_eq!(stage.running(Call::Acquire), 1);
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
fn a_local_waiter_that_goes_lets_the_next_one_ask() {
    check(async {
        let (fixture, stage) = (Fixture::new(), Stage::declaring(racing));
        let (client, holder) = (fixture.on_stage(&stage).await, fixture.client().await);
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

#[test]
fn a_local_waiter_is_told_of_time_and_loss_while_it_queues() {
    check(async {
        let (fixture, stage) = (Fixture::new(), Stage::declaring(racing));
        let (client, holder) = (fixture.on_stage(&stage).await, fixture.client().await);
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
fn waiters_stand_in_the_engines_own_queue_where_it_has_one() {
    check(async {
        let (fixture, stage) = (Fixture::new(), Stage::default());
        let (client, holder) = (fixture.on_stage(&stage).await, fixture.client().await);
        let held = holder.lock("lock").acquire().await.expect("it is free");
        let waiters = [(); WAITERS].map(|()| tokio::spawn(client.lock("lock").acquire()));
        fixture.until_queued("lock", WAITERS).await;
        drop(held);
        for waiter in waiters {
            waiter.await.expect("no panic").expect("its turn comes");
        }
    });
}
