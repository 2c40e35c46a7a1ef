//! Many sessions, waiters and names: a call blocks all of Redis, so each call does bounded work,
//! and the work of all calls is linear.

use palisade::engine::redis::{Config, check as check_stored};
use palisade_testbench::proxy::Towards;
use palisade_testbench::servers::Redis;

use super::fixture::{Fixture, LONG_TTL, check, take, taken, taking, token, until, until_queued};

const KEY: &str = "palisade:{palisade}:locks";
const CROWD: usize = 20_000;
/// The most commands of one call: a few for each claim that it ends, at most 500, and for the sweep.
const STEPS: u64 = 25 * 600;

/// Returns the number of commands so far, inside scripts and outside.
fn steps(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "stats"]);
    let found = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")?.trim().parse().ok());
    found.expect("it counts them")
}

/// Asserts that the stored data are consistent.
async fn assert_sound(redis: &Redis) {
    let wrong = check_stored(&Config::parse(&format!("//{}", redis.address)).expect("a place")).await;
    assert_eq!(wrong.expect("it can be checked"), Vec::<String>::new());
}

/// Creates many dead sessions that wait for `lock` in front of its last waiter. Copies the data of one client, since that many
/// clients would take long.
fn die_waiting(redis: &Redis, lock: &str, crowd: usize) {
    let script = "local key, lock, crowd = KEYS[1], ARGV[1], tonumber(ARGV[2]) \
        local l = cmsgpack.unpack(redis.call('HGET', key, 'l' .. lock)) \
        local r = cmsgpack.unpack(redis.call('HGET', key, 'r')) \
        local last = l[7] local c = cmsgpack.unpack(redis.call('HGET', key, 'c' .. last)) \
        local packed = redis.call('HGET', key, 's' .. c[1]) local front, s = packed:sub(1, 16), cmsgpack.unpack(packed:sub(46)) \
        local rank, before, places = c[4], false, c[10] \
        for i = 1, crowd do \
          r[2] = r[2] + 1 local number = string.format('%d', r[2]) local id = number .. ':1' \
          local after = i < crowd and string.format('%d', r[2] + 1) .. ':1' or last \
          local claim = { number, 1, 0, rank, c[5], false, false, false, false, { lock, places[2], before, after } } \
          redis.call('HSET', key, 'c' .. id, cmsgpack.pack(claim)) \
          redis.call('HSET', key, 's' .. number, front .. string.format('%013d%016d', 1, 1) \
            .. cmsgpack.pack({ 1000, 1, 'dead', 'nobody', id, id, 1, 1, 0, false })) \
          redis.call('ZADD', key .. ':due', 1, 's' .. number) \
          if i == 1 then l[6] = id end before, rank = id, rank + 1 \
        end \
        places[3], c[4], r[3], l[8] = before, rank, rank, l[8] + crowd \
        redis.call('HSET', key, 'c' .. last, cmsgpack.pack(c), 'l' .. lock, cmsgpack.pack(l), 'r', cmsgpack.pack(r))";
    redis.cli(&["EVAL", script, "1", KEY, lock, &crowd.to_string()]);
}

#[test]
#[ignore = "long: crowds"]
fn a_queue_of_dead_waiters_is_passed_in_small_steps_and_in_linear_time() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.through_proxy(LONG_TTL).await);
        let held = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        // The polls of the waiter take further steps.
        fixture.proxy.hold_all(Towards::Server);
        die_waiting(&fixture.redis, "lock", CROWD);
        assert_sound(&fixture.redis).await;
        let before = steps(&fixture.redis);
        held.release().await.expect("it is held");
        let one = steps(&fixture.redis) - before;
        assert!(one < 3 * STEPS, "a release that passes {CROWD} dead waiters takes {one} steps");
        fixture.proxy.pass();
        let next = taken(waiting).await;
        assert!(token(&next) > palisade::Token::new(1).expect("a token"));
        let all = steps(&fixture.redis) - before;
        assert!(all < 40 * CROWD as u64, "{CROWD} dead waiters take {all} steps");
        assert_sound(&fixture.redis).await;
    });
}

#[test]
#[ignore = "long: crowds"]
fn a_session_with_many_grants_ends_in_small_steps_and_does_not_come_back() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let mut guards = Vec::new();
        for number in 0..2_000 {
            let request = alice.rw_lock(format!("lock {number}")).read().dangerous_accept_failover();
            guards.push(request.acquire().await.expect("it is free"));
        }
        assert_sound(&fixture.redis).await;
        let (session, before) = (guards[0].session(), steps(&fixture.redis));
        std::mem::forget(guards);
        alice.close().await.expect("it can be closed");
        let one = steps(&fixture.redis) - before;
        assert!(one < 3 * STEPS, "closing a session with 2000 grants takes {one} steps");
        assert_sound(&fixture.redis).await;
        let waiting = taking(&bob, "lock 1999");
        let renewed = fixture.redis.cli(&["FUNCTION", "LOAD", "REPLACE", &palisade::engine::redis::functions()]);
        assert_eq!(renewed, "palisade_locks");
        assert_eq!(fixture.redis.cli(&["FCALL", "palisade_renew", "1", KEY, &session.to_string()]), "0");
        drop(taken(waiting).await);
        until("one lock is left", async || bob.list("").await.expect("an answer").len() <= 1).await;
        assert_sound(&fixture.redis).await;
    });
}

#[test]
#[ignore = "long: crowds"]
fn many_names_used_once_by_many_sessions_leave_nothing() {
    check(async {
        let fixture = Fixture::new();
        let mut number = 0;
        for _ in 0..20 {
            let alice = fixture.client(LONG_TTL).await;
            for _ in 0..50 {
                number += 1;
                let names = [format!("new {number}"), format!("newer {number}")];
                let set = alice.lock_all(names).dangerous_accept_failover().acquire().await.expect("they are free");
                let one = take(&alice, &format!("newest {number}")).await;
                set.release().await.expect("it is held");
                one.release().await.expect("it is held");
            }
            alice.close().await.expect("it can be closed");
            assert_sound(&fixture.redis).await;
        }
        assert_eq!(fixture.redis.cli(&["HLEN", KEY]), "3", "there is more than the namespace itself");
    });
}

/// The name is one that the library refuses.
#[test]
#[ignore = "long: crowds"]
fn a_lock_that_cannot_be_named_does_not_hide_the_others() {
    check(async {
        let fixture = Fixture::new();
        let alice = fixture.client(LONG_TTL).await;
        let held = take(&alice, "good").await;
        let line = format!("!{} {} 1 1 1", token(&held), held.session());
        for name in ["la\u{2028}b", "l\u{202e}", "l$mine"] {
            fixture.redis.cli(&["HSET", KEY, name, &line]);
        }
        let listed = alice.list("").await.expect("an answer");
        assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["good"]);
    });
}
