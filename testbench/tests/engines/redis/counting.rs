//! Costs: round trips, and data that remain.

use std::time::Duration;

use futures_util::future::{join, join_all};
use palisade::engine::redis::Config;
use palisade::engine::{Acquired, Engine, Released};
use palisade_core::{Acquire, Caller, Label, LockName, Patience, Reentry, RequestNo, Token, Ttl};
use palisade_testbench::servers::Redis;
use tokio::task::LocalSet;

use super::fixture::{
    Fixture, LONG_TTL, check, check_many, connect, number_from_env, start_worker, take, take_by, take_unless_lost,
    taken, taking, until, until_queued, until_some,
};

const KEY: &str = "palisade:{palisade}:locks";

/// Returns the number of calls of the engine's functions so far.
fn calls(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "commandstats"]);
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls=")?.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

fn fields(redis: &Redis) -> u64 {
    redis.cli(&["HLEN", KEY]).parse().expect("a number")
}

#[test]
fn an_acquire_is_one_call_a_release_is_another_and_a_hand_over_needs_no_more() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let before = calls(&fixture.redis);
        for _ in 0..10 {
            take(&alice, "lock").await.release().await.expect("it is held");
        }
        assert_eq!(calls(&fixture.redis) - before, 20);
        // A client that waits also polls each second, which may come in between.
        until("a hand-over takes two calls of each client", async || {
            let before = calls(&fixture.redis);
            let held = take(&alice, "hot").await;
            let waiting = taking(&bob, "hot");
            until("bob is in the queue", async || calls(&fixture.redis) - before >= 2).await;
            held.release().await.expect("it is held");
            // The push contains the grant itself.
            taken(waiting).await.release().await.expect("it is held");
            calls(&fixture.redis) - before == 4
        })
        .await;
    });
}

/// Each request gets its own reply.
#[test]
fn concurrent_requests_share_one_call() {
    async fn ask(fixture: Fixture) -> bool {
        let place = Config::parse(&format!("//{}", fixture.redis.address)).expect("a place");
        let engine = palisade::engine::redis::Redis::connect(place).await.expect("it is there");
        let ttl = Ttl::from_ms(3_600_000).expect("a TTL");
        let opened = engine.open_session(ttl, Label::new("many")).await.expect("a session");
        let acquire = |number: u64, name: &str, patience| {
            let caller = Caller { session: opened.session, number: RequestNo::new(number).ok() };
            let lock = LockName::new(name).expect("a name");
            engine.acquire(Acquire { patience, reentry: Reentry::Queue, ..Acquire::exclusive(caller, lock) })
        };
        let before = calls(&fixture.redis);
        let granted =
            join_all((1..=100).map(|number| acquire(number, &format!("lock/{number}"), Patience::Wait))).await;
        let first = calls(&fixture.redis) - before;
        let tokens = granted.into_iter().map(|granted| match granted {
            Ok(Acquired::Granted { token }) => token,
            other => panic!("{other:?}"),
        });
        let tokens: Vec<_> = tokens.collect();
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");

        let names = ["free", "lock/7", "free", "also free"];
        let tried = join_all((101..).zip(names).map(|(number, name)| acquire(number, name, Patience::Try))).await;
        let is_granted: Vec<_> = tried.iter().map(|tried| matches!(tried, Ok(Acquired::Granted { .. }))).collect();
        assert_eq!(is_granted, [true, false, false, true], "{tried:?}");
        assert!(matches!(tried[1], Ok(Acquired::Busy)) && matches!(tried[2], Ok(Acquired::Busy)), "{tried:?}");
        let second = calls(&fixture.redis) - before;

        // One request waits. It is granted by the release in the same call, or comes after it.
        let waiting = acquire(105, "lock/1", Patience::Wait);
        let release = |(number, token): (usize, &Token)| {
            let lock = LockName::new(&format!("lock/{}", number + 1)).expect("a name");
            engine.release(opened.session, lock, *token)
        };
        let (waited, released) = join(waiting, join_all(tokens.iter().enumerate().map(release))).await;
        assert!(matches!(waited, Ok(Acquired::Granted { token }) if token > tokens[99]), "{waited:?}");
        assert!(released.iter().all(|released| matches!(released, Ok(Released::Now))), "{released:?}");
        (first, second, calls(&fixture.redis) - before) == (1, 2, 3)
    }
    // A client that waits also polls each second, which may come in between.
    let share = until("requests share one call", async || ask(Fixture::new()).await);
    check(async { LocalSet::new().run_until(share).await });
}

/// `PALISADE_NAMES` sets the number of names.
#[test]
#[ignore = "long: crowds"]
#[expect(clippy::print_stdout, reason = "how many are left is shown with --nocapture")]
fn names_that_are_used_once_leave_nothing_behind() {
    let names = number_from_env("PALISADE_NAMES", 20_000);
    check_many(names, Duration::from_millis(20), async {
        const TASKS: u64 = 64;
        let fixture = Fixture::new();
        let client = fixture.client(LONG_TTL).await;
        let use_some = |task| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..u64::from(names) / TASKS {
                    take(&client, &format!("name/{task}/{number}")).await.release().await.expect("it is held");
                }
            })
        };
        for task in (0..TASKS).map(use_some).collect::<Vec<_>>() {
            task.await.expect("it does not panic");
        }
        // The namespace, its last token, its format, a session, and perhaps the outcomes of its last requests.
        let left = fields(&fixture.redis);
        println!("{names} names that were used once leave {left} fields");
        assert!(left <= 4 + TASKS, "{left} fields are left");
        assert_eq!(fixture.redis.cli(&["DBSIZE"]), "2");
        client.close().await.expect("an answer");
        assert_eq!(fields(&fixture.redis), 3);
    });
}

#[test]
#[ignore = "long: several seconds"]
fn abandoned_sessions_are_swept_by_other_clients() {
    check(async {
        const TTL: Duration = Duration::from_secs(2);
        let fixture = Fixture::new();
        for number in 0..100 {
            // On a machine that stands still, the session may be lost before it is left.
            let leave = async || {
                let left = connect(&fixture.redis.url(), TTL).await;
                let held = take_unless_lost(&left, &format!("left/{number}")).await?;
                left.detach().await.expect("it is left");
                drop(held);
                Some(())
            };
            until_some("a session is left", leave).await;
        }
        let other = fixture.client(LONG_TTL).await;
        // The passing of time is what is tested: the TTL of the last session is over.
        tokio::time::sleep(TTL + Duration::from_millis(50)).await;
        for _ in 0..3 {
            other.inspect("anything").await.expect("an answer");
        }
        assert_eq!(fields(&fixture.redis), 4);
    });
}

/// Even if no client asks for the lock again.
#[test]
fn other_clients_remove_the_locks_of_a_killed_process() {
    check(async {
        let fixture = Fixture::new();
        let mut worker = start_worker(&fixture.redis.url(), Duration::from_millis(600));
        take_by(&mut worker, "forgotten");
        worker.kill();
        // Its next keep-alive comes after a third of its TTL.
        let _other = fixture.client(Duration::from_secs(15)).await;
        let is_removed = async || fixture.redis.cli(&["HEXISTS", KEY, "lforgotten"]) != "1";
        until("the lock is removed", is_removed).await;
        assert_eq!(fields(&fixture.redis), 4);
    });
}

/// One slot for everything, so that sets of locks and sessions work in a cluster.
#[test]
fn everything_of_a_namespace_is_in_one_hash_slot() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let all = alice.lock_all(["a", "b", "c"]).dangerous_accept_failover().acquire().await.expect("they are free");
        let waiting = taking(&bob, "b");
        until_queued(&alice, "b", 1).await;
        let keys = fixture.redis.cli(&["KEYS", "*"]);
        for key in keys.lines() {
            let (tag, _) = key.strip_prefix("palisade:{").and_then(|key| key.split_once('}')).expect("a tag");
            assert_eq!(tag, "palisade", "{key}");
        }
        assert_eq!(keys.lines().count(), 2, "{keys}");
        drop(all);
        drop(taken(waiting).await);
    });
}
