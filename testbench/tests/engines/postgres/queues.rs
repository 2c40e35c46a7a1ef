//! Queues: the work of a step among many dead waiters, the cost of a poll among many live ones, and releases.

use std::time::Duration;

use palisade_testbench::order::assert_order_over_a_cut;
use tokio_postgres::Client;

use super::fixture::{Fixture, LONG_TTL, check, check_many, client, number_from_env, take, until};
use super::sessions::{ask, assert_consistent, refused, request};
use super::tables::open;

/// Adds this number of waiting sessions to a lock that is held.
async fn let_wait(store: &Client, lock: &str, many: i64, deadline: &str) {
    let sql = format!(
        "WITH opened AS (INSERT INTO palisade.session (id, ttl_ms, deadline, label) SELECT 1000000 + i, 60000, {deadline}, 'x' \
             FROM generate_series(1, {many}) i RETURNING id), \
         queued AS (INSERT INTO palisade.claim (lock, waits, arrival, session, number, part, parts, need, since) \
             SELECT '{lock}', true, nextval('palisade.arrivals'), id, 1, 1, 1, 4294967295, palisade.now() FROM opened) \
         UPDATE palisade.lock SET waiting = waiting + {many} WHERE name = '{lock}'"
    );
    store.batch_execute(&sql).await.expect("they wait");
}

/// Returns the number of rows that a call reads, by any index or none.
async fn rows_read(store: &Client, call: &str) -> i64 {
    store.batch_execute(&format!("BEGIN; SELECT {call}")).await.expect("an answer");
    let sql = "SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables \
         WHERE schemaname = 'palisade'";
    let read = ask(store, sql).await;
    store.batch_execute("COMMIT").await.expect("done");
    read
}

/// A call removes at most a thousand dead waiters, and few calls are enough. `PALISADE_DEAD` sets their number.
#[test]
#[ignore = "long: crowds"]
fn dead_waiters_are_passed_in_steps_of_bounded_work() {
    let fixture = Fixture::new();
    let dead = number_from_env("PALISADE_DEAD", 10_000);
    check_many(dead, Duration::from_millis(20), async {
        let dead = i64::from(dead);
        let store = fixture.store().await;
        let (alice, bob) = (open(&store).await, open(&store).await);
        let token = request(&store, alice, "lock").await;
        let_wait(&store, "lock", dead, "palisade.now()").await;
        assert_eq!(request(&store, bob, "lock").await, "queued");
        let left = async || ask::<i64>(&store, "SELECT count(*) FROM palisade.claim").await;
        let mut before = left().await;
        let release = format!("SELECT palisade.give_back({alice}, 'lock', {token})");
        store.batch_execute(&release).await.expect("it is released");
        let mut looks = 0;
        loop {
            let now = left().await;
            // One more: the waiter that is granted.
            assert!(before - now <= 1001, "{} at once", before - now);
            // Only the granted one is left.
            if now == 1 {
                break;
            }
            before = now;
            looks += 1;
            assert!(looks <= dead / 1000 + 2, "{now} are left after {looks} looks");
            let sql = format!("SELECT palisade.look_up({bob}, '{{1}}')");
            let said: Vec<String> =
                store.query(&sql, &[]).await.expect("an answer").iter().map(|row| row.get(0)).collect();
            // The reply asks it to poll again at once, until it has the lock.
            let token: i64 = ask(&store, "SELECT token FROM palisade.lock").await;
            assert!(said == [format!("t {bob}")] || said == [format!("g {bob} 1 {token}")], "{said:?}");
        }
        assert_eq!(ask::<Option<i64>>(&store, "SELECT session FROM palisade.claim").await, Some(bob));
        assert_consistent(&store).await;
        // Sweeps remove their sessions, 64 each.
        let mut sweeps = 0;
        while ask::<i32>(&store, "SELECT palisade.sweep()").await > 0 {
            sweeps += 1;
            assert!(sweeps <= dead / 64 + 2);
        }
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.session").await, 2);
    });
}

/// With the library and a sweep in between, the live waiter gets the lock.
#[test]
fn a_client_behind_many_dead_waiters_gets_the_lock() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let alice = open(&store).await;
        let token = request(&store, alice, "lock").await;
        let_wait(&store, "lock", 3_000, "palisade.now() + interval '1 hour'").await;
        let bob = fixture.client(LONG_TTL).await;
        let waiting = super::fixture::taking(&bob, "lock");
        let queued = "SELECT count(*) FROM palisade.claim WHERE waits AND NOT session BETWEEN 1000000 AND 1100000";
        until("bob is in the queue", async || ask::<i64>(&store, queued).await > 0).await;
        let sql = format!(
            "UPDATE palisade.session SET deadline = palisade.now() WHERE id BETWEEN 1000000 AND 1100000; \
             SELECT palisade.give_back({alice}, 'lock', {token})"
        );
        store.batch_execute(&sql).await.expect("it is released");
        super::fixture::taken(waiting).await.release().await.expect("it is held");
        assert_consistent(&store).await;
    });
}

/// With ten thousand live waiters, a poll of one reads as few rows as if it were alone.
#[test]
#[ignore = "long: crowds"]
fn the_cost_of_a_poll_does_not_depend_on_the_length_of_the_queue() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let settings = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off";
        store.batch_execute(settings).await.expect("as the library has it");
        let (alice, bob) = (open(&store).await, open(&store).await);
        request(&store, alice, "lock").await;
        assert_eq!(request(&store, bob, "lock").await, "queued");
        let look = |session: i64| format!("palisade.look_up({session}, '{{1}}')");
        let alone = rows_read(&store, &look(bob)).await;
        let_wait(&store, "lock", 10_000, "palisade.now() + interval '1 hour'").await;
        for session in [bob, 1_000_001, 1_005_000, 1_010_000] {
            let read = rows_read(&store, &look(session)).await;
            assert!(read <= alone + 50, "{read} rows are read among 10,000, {alone} alone");
        }
        // Neither does the cost of a hand-over, or of joining the queue.
        let carol = open(&store).await;
        let read = rows_read(&store, &format!("palisade.take({carol}, 0, 1, 'lock', true, true)")).await;
        assert!(read <= 100, "{read} rows are read to join it");
        let give_back = "palisade.give_back(session, lock, token) FROM palisade.claim WHERE NOT waits";
        let read = rows_read(&store, give_back).await;
        assert!(read <= 100, "{read} rows are read to hand it over");
    });
}

/// Many shared waiters are granted in several steps; each step notifies the next waiter.
#[test]
fn many_shared_waiters_are_granted_in_steps() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let alice = open(&store).await;
        let token = request(&store, alice, "lock").await;
        let_wait(&store, "lock", 450, "palisade.now() + interval '1 hour'").await;
        store.batch_execute("UPDATE palisade.claim SET need = 1 WHERE waits").await.expect("they share");
        store.batch_execute(&format!("SELECT palisade.give_back({alice}, 'lock', {token})")).await.expect("released");
        let held = async || ask::<i64>(&store, "SELECT count(*) FROM palisade.claim WHERE NOT waits").await;
        let mut steps = 1;
        while held().await < 450 {
            assert!(held().await <= 100 * steps, "a step grants a hundred at most");
            assert_consistent(&store).await;
            let front: i64 =
                ask(&store, "SELECT session FROM palisade.claim WHERE waits ORDER BY arrival LIMIT 1").await;
            store.batch_execute(&format!("SELECT palisade.look_up({front}, '{{1}}')")).await.expect("an answer");
            steps += 1;
            assert!(steps <= 6);
        }
    });
}

/// A release with anything but the session and token of the grant changes nothing.
#[test]
fn only_the_token_of_the_grant_frees_the_lock() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let dump = "SELECT string_agg(x::text, E'\\n' ORDER BY x::text) FROM (SELECT l::text FROM palisade.lock l \
             UNION ALL SELECT c::text FROM palisade.claim c) x(x)";
        for kind in ["alone", "with a waiter", "shared", "a set", "with a value"] {
            let (alice, bob) = (open(&store).await, open(&store).await);
            let sql = match kind {
                "shared" => format!(
                    "palisade.request({alice}, 0, 1, '{{lock}}', '{{1}}', ARRAY[NULL::bigint], true, true, NULL, NULL)"
                ),
                "a set" => format!(
                    "palisade.request({alice}, 0, 1, '{{lock,other}}', '{{1,4294967295}}', ARRAY[NULL,NULL]::bigint[], true, true, NULL, NULL)"
                ),
                "with a value" => format!(
                    "palisade.request({alice}, 0, 1, '{{lock}}', '{{4294967295}}', ARRAY[NULL::bigint], true, true, NULL, 'x')"
                ),
                _ => format!(
                    "palisade.request({alice}, 0, 1, '{{lock}}', '{{4294967295}}', ARRAY[NULL::bigint], true, true, NULL, NULL)"
                ),
            };
            let token: i64 = ask(&store, &format!("SELECT token FROM {sql}")).await;
            if kind == "with a waiter" {
                assert_eq!(request(&store, bob, "lock").await, "queued");
            }
            let before: String = ask(&store, dump).await;
            for (session, token) in [
                (alice, token - 1),
                (alice, token + 1),
                (bob, token),
                (bob, token + 1),
                (1, token),
                (alice, 0),
                (alice, -1),
            ] {
                let sql = format!("SELECT palisade.give_back({session}, 'lock', {token})");
                let refusal: Option<String> = ask(&store, &sql).await;
                assert!(refusal.is_some(), "{kind}: {session} {token}");
            }
            for token in [token - 1, token + 1, 0] {
                assert!(
                    !ask::<bool>(&store, &format!("SELECT palisade.release('lock', {token})")).await,
                    "{kind}: {token}"
                );
            }
            for (lock, token) in [("other/lock", token), ("", token)] {
                assert!(!ask::<bool>(&store, &format!("SELECT palisade.release('{lock}', {token})")).await, "{kind}");
            }
            let nothing = "SELECT palisade.release(NULL, NULL), palisade.release('lock', NULL), palisade.renew('lock', NULL), \
                 palisade.give_back(NULL, 'lock', NULL)";
            store.batch_execute(nothing).await.expect("an answer");
            assert_eq!(ask::<String>(&store, dump).await, before, "{kind}");
            let sql = format!("SELECT palisade.give_back({alice}, 'lock', {token})");
            assert_eq!(ask::<Option<String>>(&store, &sql).await, None, "{kind}");
            assert!(ask::<Option<String>>(&store, &sql).await.is_some(), "{kind}: once is enough");
            for session in [alice, bob] {
                assert!(ask::<bool>(&store, &format!("SELECT palisade.close({session})")).await);
            }
            assert_consistent(&store).await;
        }
    });
}

/// A set that is granted while a force-release waits for the row of one of its locks: its other lock is freed for its
/// next waiter, too.
#[test]
fn a_set_that_is_granted_during_a_force_release_is_ended_whole() {
    let fixture = Fixture::new();
    check(async {
        let (store, releasing) = (fixture.store().await, client(&fixture.url()).await);
        let (alice, bob, carol) = (open(&store).await, open(&store).await, open(&store).await);
        let token = request(&store, alice, "a").await;
        let set = format!(
            "SELECT said FROM palisade.request({bob}, 0, 1, '{{a,b}}', '{{4294967295,4294967295}}', \
             ARRAY[NULL,NULL]::bigint[], true, true, NULL, NULL)"
        );
        assert_eq!(ask::<String>(&store, &set).await, "queued");
        assert_eq!(request(&store, carol, "b").await, "queued");
        let release = format!("BEGIN; SELECT palisade.give_back({alice}, 'a', {token})");
        releasing.batch_execute(&release).await.expect("it is released");
        let forcing = client(&fixture.url()).await;
        let forcing = tokio::spawn(async move {
            ask::<i64>(&forcing, "SELECT moved_to FROM palisade.force('a', NULL, 'me', 'why')").await
        });
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        until("the force-release waits for the row", async || {
            assert!(!forcing.is_finished(), "it does not wait for the row");
            ask::<i64>(&store, waits).await > 0
        })
        .await;
        releasing.batch_execute("COMMIT").await.expect("bob has both");
        let moved_to = forcing.await.expect("no panic");
        let held = format!("SELECT string_agg(session || ' ' || (token > {moved_to}), ',') FROM palisade.claim");
        assert_eq!(ask::<Option<String>>(&store, &held).await, Some(format!("{carol} true")));
        assert_consistent(&store).await;
    });
}

/// A call that waits for the transaction of another program: its TTL begins with the grant, not with the call.
#[test]
#[ignore = "long: crowds"]
fn a_lease_that_waits_for_a_transaction_longer_than_its_ttl_is_granted_for_its_whole_ttl() {
    let fixture = Fixture::new();
    check(async {
        let (store, other, waiting) =
            (fixture.store().await, client(&fixture.url()).await, client(&fixture.url()).await);
        other.batch_execute("BEGIN; SELECT palisade.acquire('a')").await.expect("it is acquired");
        let acquire = "SELECT until::text FROM palisade.acquire('a', ttl => '2 s')";
        let granted = tokio::spawn(async move { ask::<String>(&waiting, acquire).await });
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
             AND datname = current_database() AND query_start < clock_timestamp() - interval '3 s'";
        until("the call waits for longer than its TTL", async || {
            assert!(!granted.is_finished(), "it does not wait for the transaction");
            ask::<i64>(&store, waits).await > 0
        })
        .await;
        // It cannot be granted before.
        let before = ask::<String>(&store, "SELECT palisade.now()::text").await;
        other.batch_execute("ROLLBACK").await.expect("it is rolled back");
        let until = granted.await.expect("it is granted");
        let is_whole = format!("SELECT '{until}'::timestamptz >= '{before}'::timestamptz + interval '2 s'");
        assert!(ask::<bool>(&store, &is_whole).await, "a part of the TTL is over: {before}, {until}");
        assert_consistent(&store).await;
    });
}

/// The library sends none of these, but any role with the right to lock can.
#[test]
fn an_invalid_request_is_refused() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let session = open(&store).await;
        for (locks, needs, permits) in [
            ("{lock}", "{0}", "ARRAY[NULL::bigint]"),
            ("{lock}", "{-1}", "ARRAY[NULL::bigint]"),
            ("{lock}", "{2}", "ARRAY[NULL::bigint]"),
            ("{lock}", "{NULL}", "ARRAY[NULL::bigint]"),
            ("{lock}", "{}", "ARRAY[NULL::bigint]"),
            ("{lock}", "{1,1}", "ARRAY[NULL::bigint]"),
            ("{lock}", "{1}", "NULL"),
            ("{NULL}", "{1}", "ARRAY[NULL::bigint]"),
            ("{$own}", "{1}", "ARRAY[NULL::bigint]"),
            ("{a\u{202e}b}", "{1}", "ARRAY[NULL::bigint]"),
            ("{a\u{2028}b}", "{1}", "ARRAY[NULL::bigint]"),
            ("{a\u{200f}b}", "{1}", "ARRAY[NULL::bigint]"),
            ("{\"\"}", "{1}", "ARRAY[NULL::bigint]"),
        ] {
            let sql = format!(
                "SELECT palisade.request({session}, 0, NULL, '{locks}', '{needs}', {permits}, true, true, NULL, NULL)"
            );
            assert_eq!(refused(&store, &sql).await, "PL001", "{sql}");
        }
        for (needs, permits) in [("0", "3"), ("4", "3"), ("-1", "3"), ("NULL", "3"), ("1", "0"), ("1", "-1")] {
            let sql = format!(
                "SELECT said FROM palisade.request({session}, 0, NULL, '{{lock}}', '{{{needs}}}', '{{{permits}}}', true, \
                 true, NULL, NULL)"
            );
            assert_eq!(ask::<String>(&store, &sql).await, "refused", "{sql}");
            let sql = format!("SELECT palisade.acquire('lock', permits => {permits}, take => {needs})");
            assert_eq!(refused(&store, &sql).await, "PL001", "{sql}");
        }
        let sql = format!("SELECT palisade.take({session}, 0, 1, '\u{202e}', true, true)");
        assert_eq!(refused(&store, &sql).await, "PL001");
        for sql in ["palisade.acquire(NULL)", "palisade.acquire('a', mode => 'x')", "palisade.acquire('a', '1 ms')"] {
            assert_eq!(refused(&store, &format!("SELECT {sql}")).await, "PL001", "{sql}");
        }
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.lock").await, 0);
        assert_consistent(&store).await;
    });
}

/// For example a lock with a name that the library refuses.
#[test]
fn a_lock_that_cannot_be_read_does_not_hide_the_others() {
    let fixture = Fixture::new();
    check(async {
        let (alice, store) = (fixture.client(LONG_TTL).await, client(&fixture.url()).await);
        let _held = take(&alice, "lock").await;
        let sql = "INSERT INTO palisade.lock (name, token, taken) VALUES (U&'a\\202Eb', 9, 1); \
             INSERT INTO palisade.claim (lock, waits, arrival, token, session, number, part, parts, need, since) \
             SELECT U&'a\\202Eb', false, 9, 9, id, 9, 1, 1, 1, now() FROM palisade.session";
        store.batch_execute(sql).await.expect("by hand");
        let names: Vec<_> =
            alice.list("").await.expect("a list").iter().map(|lock| lock.name.as_str().to_owned()).collect();
        assert_eq!(names, ["lock"]);
    });
}

#[test]
#[ignore = "long: cut and slow connections"]
fn acquires_of_one_client_are_granted_in_their_order_over_a_cut() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        assert_order_over_a_cut(&alice, &bob, &fixture.proxy).await;
    });
}
