//! Nodes that are down, slow, or have forgotten.

use std::time::Duration;

use palisade::engine::redlock::{Absence, NoMajority};
use palisade::{ErrorKind, Loss, Standing};
use palisade_testbench::bounded::until_some;
use palisade_testbench::conformance::stalls::{short_ttls, unless_lost};
use palisade_testbench::fixture::retryable;
use redis::Commands;
use rustix::process::Signal;

use super::servers::{FRESH, Five, LONG, SHORT, connect, key, run, until};

#[test]
fn with_two_nodes_down_locks_are_granted_renewed_and_released() {
    run(async {
        let mut five = Five::start();
        let mut is_down = false;
        for ttl in short_ttls(Duration::from_millis(1500)) {
            let alice = five.client(ttl).await;
            if !is_down {
                five.servers[1].kill();
                five.servers[4].kill();
                is_down = true;
            }
            let bob = five.client(LONG).await;
            let Some(held) = unless_lost(alice.lock("job").efficiency().acquire().await) else { continue };
            let tried = bob.lock("job").efficiency().try_acquire().await.unwrap();
            if held.standing() != Standing::Held {
                continue;
            }
            assert!(tried.is_none());
            // Renewals keep it for longer than one TTL.
            let mut seen = held.safe_until();
            let own = seen + ttl;
            let is_kept = async {
                while seen <= own {
                    seen = held.renewed(seen).await;
                }
            };
            tokio::select! {
                biased;
                () = is_kept => {}
                _ = held.lost() => continue,
            }
            if unless_lost(held.release().await).is_none() {
                continue;
            }
            assert!(bob.lock("job").efficiency().try_acquire().await.unwrap().is_some());
            return;
        }
    });
}

#[test]
fn with_three_down_the_error_names_them_and_nothing_is_left_behind() {
    run(async {
        let mut five = Five::start();
        let client = five.client(LONG).await;
        for place in [0, 2, 3] {
            five.servers[place].kill();
        }
        let error = client.lock("job").efficiency().try_acquire().await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("2 of 5 nodes count, and 3 are needed"), "{text}");
        assert!(text.ends_with("(nothing has changed)"), "{text}");
        assert!(error.is_retryable() && !error.may_have_taken_effect(), "{text}");
        let ErrorKind::Outage { source: Some(source), .. } = error.kind() else { panic!("{error:?}") };
        let absent = &source.downcast_ref::<NoMajority>().unwrap().absent;
        let named: Vec<_> = absent.iter().map(|absent| absent.node.to_string()).collect();
        assert_eq!(named, [0, 2, 3].map(|place: usize| five.servers[place].address.to_string()));
        assert!(absent.iter().all(|absent| matches!(absent.why, Absence::NotReached(_))), "{text}");
        assert_eq!(five.taken([1, 4], "job"), [0; 0]);
    });
}

#[test]
fn a_wait_through_an_outage_is_granted_afterwards() {
    run(async {
        let mut five = Five::start();
        let client = five.client(LONG).await;
        for place in [0, 2, 3] {
            five.servers[place].kill();
        }
        let waiter = tokio::spawn({
            let client = client.clone();
            async move { client.lock("job").efficiency().acquire().await }
        });
        // It has tried and failed.
        let error = client.lock("other").efficiency().try_acquire().await.unwrap_err();
        assert!(error.is_retryable() && !waiter.is_finished());
        five.servers[2].restart().unwrap();
        waiter.await.unwrap().unwrap();
    });
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn a_node_that_is_stopped_counts_as_absent() {
    run(async {
        let five = Five::start();
        let client = connect(&five.url(&format!("{FRESH}&timeout=3s")), LONG).await;
        five.signal(3, Signal::STOP);
        let held = client.lock("job").efficiency().acquire().await.unwrap();
        // Fewer than three servers may answer in three seconds.
        until("the lock is released", async || retryable(held.release().await).is_some()).await;
        until("no live server has the lock", async || five.taken([0, 1, 2, 4], "job").is_empty()).await;
        // The stopped node executes the requests, and their undo, when it continues.
        five.signal(3, Signal::CONT);
        until("the stopped server has undone the lock", async || five.taken([3], "job").is_empty()).await;
        client.lock("job").efficiency().acquire().await.unwrap();
    });
}

#[test]
#[ignore = "long: several seconds"]
fn a_node_that_is_waited_for_uses_up_the_validity() {
    run(async {
        let five = Five::start();
        five.signal(3, Signal::STOP);
        // Waiting for the slow node takes longer than the TTL on the other four, so the lock must not be granted.
        let client = connect(&five.url(&format!("{FRESH}&timeout=1500ms")), Duration::from_millis(1400)).await;
        let is_over = async || {
            let error = client.lock("job").efficiency().try_acquire().await.unwrap_err();
            assert!(error.is_retryable(), "{error}");
            error.to_string().contains("nothing is left").then_some(error)
        };
        // Fewer than three servers may answer in 1.5 s.
        let error = until_some("the lock is granted too late", is_over).await;
        assert!(!error.may_have_taken_effect(), "{error}");
        until("no live server has the lock", async || five.taken([0, 1, 2, 4], "job").is_empty()).await;
        five.signal(3, Signal::CONT);
    });
}

#[test]
fn a_lock_that_a_majority_has_forgotten_is_lost_and_its_holder_is_told() {
    run(async {
        let five = Five::start();
        let client = five.client(SHORT).await;
        let held = client.lock("job").efficiency().acquire().await.unwrap();
        let other = client.lock("other").efficiency().acquire().await.unwrap();
        for place in [0, 1] {
            let _: () = five.at(place).flushall().unwrap();
        }
        // Two of five can forget.
        let seen = held.renewed(held.safe_until()).await;
        assert!(seen <= held.safe_until() && held.standing() == Standing::Held);
        let _: () = five.at(2).flushall().unwrap();
        assert_eq!(held.lost().await, Loss::Expired);
        // All locks of the session end with it, on the nodes too.
        assert_eq!(other.lost().await, Loss::Expired);
        until("no server has either lock", async || {
            five.taken(0..5, "job").is_empty() && five.taken(0..5, "other").is_empty()
        })
        .await;
        client.lock("job").efficiency().acquire().await.unwrap();
    });
}

#[test]
fn a_key_that_is_anothers_is_neither_freed_nor_extended() {
    run(async {
        let five = Five::start();
        let client = five.client(SHORT).await;
        let held = client.lock("job").efficiency().acquire().await.unwrap();
        for place in 0..5 {
            let _: () = five.at(place).set(key("job"), "another's").unwrap();
        }
        assert_eq!(held.lost().await, Loss::Expired);
        assert!(held.release().await.is_err());
        drop(held);
        client.close().await.unwrap();
        for place in 0..5 {
            let value: String = five.at(place).get(key("job")).unwrap();
            let ttl: i64 = five.at(place).pttl(key("job")).unwrap();
            assert_eq!((value.as_str(), ttl), ("another's", -1));
        }
    });
}

/// Another program has written to the key of a lock.
#[test]
fn a_key_of_another_kind_spoils_its_own_lock_only() {
    run(async {
        let five = Five::start();
        let client = five.client(LONG).await;
        let held = client.lock("good").efficiency().acquire().await.unwrap();
        for place in 0..5 {
            let _: () = five.at(place).hset(key("bad"), "field", "value").unwrap();
        }
        let listed = client.list("").await.unwrap();
        assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["good"]);
        assert!(client.lock("bad").efficiency().try_acquire().await.unwrap().is_none());
        let short = five.client(SHORT).await;
        let lost = short.lock("spoilt").efficiency().acquire().await.unwrap();
        for place in 0..5 {
            let _: () = five.at(place).del(key("spoilt")).unwrap();
            let _: () = five.at(place).hset(key("spoilt"), "field", "value").unwrap();
        }
        assert_eq!(lost.lost().await, Loss::Expired);
        held.release().await.unwrap();
    });
}
