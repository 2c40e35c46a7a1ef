//! The engine as a Redis function: loading it, losing it, and servers without functions.

use palisade::Palisade;
use palisade_testbench::servers::Redis;

use super::fixture::{Fixture, LONG_TTL, check, connect, take, taken, taking, token, try_take, until_queued};

const KEY: &str = "palisade:{palisade}:locks";

/// Returns how often this command was executed.
fn calls(redis: &Redis, command: &str) -> u64 {
    let info = redis.cli(&["INFO", "commandstats"]);
    let line = format!("cmdstat_{command}:");
    let Some(stats) = info.lines().find_map(|stats| stats.strip_prefix(&line)) else { return 0 };
    let number = |name: &str| -> u64 {
        let found = stats.split(',').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
        found.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {stats}"))
    };
    number("calls") - number("failed_calls")
}

/// Returns the names of the engine's libraries.
fn libraries(redis: &Redis) -> Vec<String> {
    let listed = redis.cli(&["FUNCTION", "LIST", "LIBRARYNAME", "palisade_engine_*"]);
    let lines: Vec<_> = listed.lines().collect();
    lines.windows(2).filter(|pair| pair[0] == "library_name").map(|pair| pair[1].to_owned()).collect()
}

/// Hands a lock over from one client to the other.
async fn hand_over(alice: &Palisade, bob: &Palisade) {
    let held = take(alice, "lock").await;
    let before = token(&held);
    let waiting = taking(bob, "lock");
    until_queued(alice, "lock", 1).await;
    held.release().await.expect("it is held");
    let next = taken(waiting).await;
    assert!(token(&next) > before);
    next.release().await.expect("it is held");
}

#[test]
fn the_function_is_loaded_once_and_again_when_the_server_has_forgotten_it() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        hand_over(&alice, &bob).await;
        assert_eq!(libraries(&fixture.redis).len(), 1);
        assert_eq!(calls(&fixture.redis, "function|load"), 1);
        let held = take(&alice, "kept").await;
        fixture.redis.cli(&["FUNCTION", "FLUSH"]);
        hand_over(&bob, &alice).await;
        assert!(try_take(&bob, "kept").await.is_none());
        held.release().await.expect("it is held");
        assert_eq!(libraries(&fixture.redis).len(), 1);
        assert_eq!((calls(&fixture.redis, "function|load"), calls(&fixture.redis, "evalsha")), (2, 0));
    });
}

/// A function's variables outlive its calls.
#[test]
fn a_call_repeats_no_write_and_no_notice_of_the_call_before() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        hand_over(&alice, &bob).await;
        let changes = || ["hset", "hdel", "zadd", "zrem", "publish"].map(|command| calls(&fixture.redis, command));
        let before = changes();
        assert!(before[0] > 0 && before[2] > 0 && before[4] > 0, "{before:?}");
        for _ in 0..3 {
            assert_eq!(bob.inspect("another").await.expect("an answer"), None);
        }
        assert_eq!(changes(), before);
    });
}

/// Older servers have no functions, and not every user may call or load them.
#[test]
fn a_server_without_functions_gets_a_script() {
    check(async {
        let rights =
            "on >xyzzy ~palisade:* &palisade:* +@connection +@scripting +@hash +@sortedset +@pubsub +time +wait";
        for (denied, renamed) in [("-fcall", ""), ("-function|load", ""), ("-function", ""), ("+role", "fcall")] {
            let options = ["--rename-command", renamed, ""];
            let fixture = Fixture::with(if renamed.is_empty() { &[] } else { &options }, &[]);
            let words = format!("ACL SETUSER locks {rights} {denied}");
            assert_eq!(fixture.redis.cli(&words.split(' ').collect::<Vec<_>>()), "OK");
            let url = format!("redis://locks:xyzzy@{}", fixture.redis.address);
            let (alice, bob) = (connect(&url, LONG_TTL).await, connect(&url, LONG_TTL).await);
            hand_over(&alice, &bob).await;
            assert!(calls(&fixture.redis, "evalsha") > 4, "{denied}");
            assert_eq!(calls(&fixture.redis, "fcall"), 0, "{denied}");
        }
    });
}

/// A full server loads no function. It still executes releases, and refuses acquires.
#[test]
fn a_server_that_is_full_takes_what_is_given_back() {
    check(async {
        let fixture = Fixture::new();
        let alice = fixture.client(LONG_TTL).await;
        let held = take(&alice, "lock").await;
        fixture.redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        held.release().await.expect("it is held");
        let error = alice.lock("lock").efficiency().try_acquire().await.expect_err("there is no room");
        assert!(error.to_string().contains("give it more memory"), "{error}");
        fixture.redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        take(&alice, "lock").await.release().await.expect("it is held");
    });
}

/// No older data are read, since their meaning may differ.
#[test]
fn data_of_an_older_version_are_refused_with_what_to_do() {
    check(async {
        let fixture = Fixture::new();
        drop(fixture.client(LONG_TTL).await);
        let older = "local r = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'r')) \
             redis.call('HSET', KEYS[1], 'r', cmsgpack.pack({ r[1], r[2], r[3], r[4], r[5], r[6] }))";
        fixture.redis.cli(&["EVAL", older, "1", KEY]);
        let error = palisade::connect(&fixture.redis.url()).await.expect_err("it is not understood");
        assert!(error.to_string().contains("delete that key"), "{error}");
    });
}
