//! Long queues of dead and live waiters: the cost of a step.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use palisade_testbench::order::assert_order_over_a_cut;

use super::fixture::{
    Fixture, LONG_TTL, check, check_many, client, number_from_env, take, taken, taking, token, until,
};
use super::functions::assert_consistent;
use super::sessions::{ask, sweep};
use super::tables::{open, run};

/// Adds this number of waiting sessions, with this deadline, to a lock that is held.
async fn crowd(store: &mut Conn, lock: &str, count: u32, until: &str) {
    let sessions = format!(
        "INSERT INTO palisade_session (id, ttl_ms, deadline, label) \
         SELECT seq, 1000, UTC_TIMESTAMP(6) {until}, 'crowd' FROM seq_1_to_{count}"
    );
    run(store, &sessions).await;
    let claims = format!(
        "INSERT INTO palisade_claim (name, waits, arrival, session, number, part, parts, need, since) \
         SELECT l.name, 1, l.arrivals + q.seq, q.seq, 1, 1, 1, 4294967295, UTC_TIMESTAMP(6) \
         FROM palisade_lock l, seq_1_to_{count} q WHERE l.name = '{lock}'"
    );
    run(store, &claims).await;
    let counts = "waiting = waiting + {N}, arrivals = arrivals + {N}".replace("{N}", &count.to_string());
    run(store, &format!("UPDATE palisade_lock SET {counts} WHERE name = '{lock}'")).await;
}

/// A call ends a bounded number of dead waiters and commits, so that no call takes so long that its client gives up.
#[test]
fn a_call_passes_a_bounded_number_of_dead_waiters() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let (session, last) = (open(&mut store).await, open(&mut store).await);
        run(
            &mut store,
            &format!(
                "CALL palisade_request({session}, 0, 1, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
            ),
        )
        .await;
        crowd(&mut store, "lock", 1_000, "- INTERVAL 1 SECOND").await;
        run(
            &mut store,
            &format!(
                "CALL palisade_request({last}, 0, 1, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
            ),
        )
        .await;
        let token = ask(&mut store, "SELECT token FROM palisade_lock").await.expect("it is held");
        let mut step = format!("CALL palisade_give_back({session}, 'lock', {token})");
        let (mut waiting, mut steps) = (1_001, 0);
        while waiting > 0 {
            run(&mut store, &step).await;
            let left = ask(&mut store, "SELECT waiting FROM palisade_lock").await.expect("a number");
            let left = left.parse().expect("a number");
            assert!(left < waiting && waiting - left <= 101, "{waiting}, and then {left}");
            (waiting, steps) = (left, steps + 1);
            assert_consistent(&mut store).await;
            step = format!("CALL palisade_nudge({last}, 1)");
        }
        assert!(steps <= 12, "{steps}");
        assert_eq!(ask(&mut store, "SELECT session FROM palisade_lock").await, Some(last.to_string()));
    });
}

/// `PALISADE_DEAD` sets the number of dead waiters.
#[test]
#[ignore = "long: crowds"]
fn a_waiter_behind_thousands_of_dead_waiters_is_granted() {
    let dead = number_from_env("PALISADE_DEAD", 2_500);
    let fixture = Fixture::new();
    check_many(dead, Duration::from_millis(20), async {
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let mut store = fixture.store().await;
        let held = take(&alice, "lock").await;
        crowd(&mut store, "lock", dead, "- INTERVAL 1 SECOND").await;
        let waiting = taking(&bob, "lock");
        let queued = format!("SELECT COUNT(*) FROM palisade_claim WHERE session > {dead}");
        until("bob is in the queue", async || ask(&mut store, &queued).await.as_deref() == Some("1")).await;
        let first = token(&held);
        held.release().await.expect("it is held");
        assert!(token(&taken(waiting).await) > first);
        assert_consistent(&mut store).await;
        // No row is left of the dead waiters.
        sweep(&mut store).await;
        let left = format!("SELECT COUNT(*) FROM palisade_session WHERE id <= {dead}");
        assert_eq!(ask(&mut store, &left).await.as_deref(), Some("0"));
    });
}

/// A sweep that loses a deadlock has rolled back; it reports that there is more to do instead of failing.
#[test]
fn a_sweep_that_loses_a_deadlock_asks_to_be_called_again() {
    let fixture = Fixture::new();
    check(async {
        let (mut store, mut busy) = (fixture.store().await, client(&fixture.url()).await);
        let token = ask(&mut store, "CALL palisade_acquire('lock', 60000, 'dead')").await.expect("it is free");
        run(&mut store, "UPDATE palisade_session SET deadline = deadline - INTERVAL 1 HOUR").await;
        // This transaction has written more, so that MySQL ends the sweep instead of it.
        run(&mut busy, "CREATE TABLE work (id INT PRIMARY KEY) ENGINE = InnoDB").await;
        run(&mut busy, "START TRANSACTION").await;
        run(&mut busy, "INSERT INTO work SELECT seq FROM seq_1_to_1000").await;
        run(&mut busy, "SELECT token FROM palisade_lock WHERE name = 'lock' FOR UPDATE").await;
        let mut other = client(&fixture.url()).await;
        let id = other.id();
        let sweeping = tokio::spawn(async move { ask(&mut other, "CALL palisade_sweep(1000)").await });
        let blocked = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE id = {id} AND info LIKE \
             '%palisade_lock%FOR UPDATE%' AND time_ms > 50"
        );
        until("the sweep waits for the row", async || ask(&mut store, &blocked).await.as_deref() != Some("0")).await;
        run(&mut busy, "SELECT id FROM palisade_session FOR UPDATE").await;
        run(&mut busy, "ROLLBACK").await;
        assert_eq!(sweeping.await.expect("no panic").as_deref(), Some("1"));
        assert_eq!(ask(&mut store, "SELECT token FROM palisade_lock WHERE session IS NOT NULL").await, Some(token));
        sweep(&mut store).await;
        assert_eq!(ask(&mut store, "SELECT COUNT(*) FROM palisade_session").await.as_deref(), Some("0"));
        assert_consistent(&mut store).await;
    });
}

/// A try is granted if the queue has only dead waiters.
#[test]
#[ignore = "long: crowds"]
fn a_try_behind_hundreds_of_dead_waiters_is_granted() {
    let fixture = Fixture::new();
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        let mut store = fixture.store().await;
        for by in ["the library", "a shell"] {
            run(&mut store, "DELETE FROM palisade_session WHERE id <= 1000").await;
            let session = open(&mut store).await;
            run(&mut store, &format!("CALL palisade_request({session}, 0, 1, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            crowd(&mut store, "lock", 450, "- INTERVAL 1 SECOND").await;
            run(&mut store, "UPDATE palisade_lock SET session = NULL, number = NULL WHERE name = 'lock'").await;
            match by {
                "the library" => {
                    let guard = alice.lock("lock").try_acquire().await.expect("an answer").expect("it is free");
                    guard.release().await.expect("it is held");
                }
                _ => {
                    let token =
                        ask(&mut store, "CALL palisade_acquire('lock', 30000, 'me')").await.expect("it is free");
                    run(&mut store, &format!("CALL palisade_release('lock', {token})")).await;
                }
            }
            assert_consistent(&mut store).await;
        }
    });
}

/// Returns the number of rows that a statement has read.
async fn rows_read(store: &mut Conn, sql: &str) -> u64 {
    run(store, "FLUSH STATUS").await;
    let _: Vec<Row> = store.query(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    let counts: Vec<(String, u64)> = store.query("SHOW SESSION STATUS LIKE 'Handler_read%'").await.expect("counts");
    counts.iter().map(|(_, count)| count).sum()
}

/// A poll reads the front of the queue and the holder, however many wait in between.
#[test]
fn a_poll_costs_the_same_in_every_queue() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let (session, last) = (open(&mut store).await, open(&mut store).await);
        run(
            &mut store,
            &format!(
                "CALL palisade_request({session}, 0, 1, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
            ),
        )
        .await;
        let mut costs = Vec::new();
        for count in [10, 5_000] {
            run(&mut store, "DELETE FROM palisade_session WHERE id <= 5000").await;
            run(&mut store, "DELETE FROM palisade_claim").await;
            run(&mut store, "UPDATE palisade_lock SET waiting = 0, passed = arrivals").await;
            crowd(&mut store, "lock", count, "+ INTERVAL 1 HOUR").await;
            run(&mut store, &format!("CALL palisade_request({last}, 0, {count}, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            let mut cost = Vec::new();
            for sql in [
                format!("CALL palisade_nudge({last}, {count})"),
                format!(
                    "CALL palisade_request({last}, 0, {count}, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
                ),
                format!("CALL palisade_keep_alive({last})"),
                format!("CALL palisade_cancel({last}, {count})"),
            ] {
                cost.push(rows_read(&mut store, &sql).await);
            }
            costs.push(cost);
        }
        for (few, many) in costs[0].iter().zip(&costs[1]) {
            assert!(*many <= few + 20, "{costs:?}");
        }
        assert_consistent(&mut store).await;
    });
}

/// A session with more locks than one transaction ends is dead at once, and further steps remove the rest.
#[test]
#[ignore = "long: crowds"]
fn a_session_with_many_locks_ends_in_several_steps() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        for end in ["close", "expiry"] {
            let (session, other) = (open(&mut store).await, open(&mut store).await);
            for number in 1..=150 {
                run(&mut store, &format!("CALL palisade_request({session}, 0, {number}, CONCAT(HEX('l/{number}'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
                let shared = "'73:1:', '1', 1, 1, NULL, NULL";
                run(&mut store, &format!("CALL palisade_request({session}, 0, {}, {shared})", number + 1000)).await;
            }
            run(&mut store, &format!("CALL palisade_request({other}, 0, 1, CONCAT(HEX('l/149'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            run(
                &mut store,
                &format!(
                    "CALL palisade_request({other}, 0, 2, CONCAT(HEX('s'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
                ),
            )
            .await;
            let overdue = format!("UPDATE palisade_session SET deadline = '2000-01-01' WHERE id = {session}");
            let step = match end {
                "close" => format!("CALL palisade_close({session})"),
                _ => "CALL palisade_sweep(1000)".to_owned(),
            };
            if end == "expiry" {
                run(&mut store, &overdue).await;
            }
            run(&mut store, &step).await;
            assert_consistent(&mut store).await;
            assert_eq!(ask(&mut store, &format!("CALL palisade_keep_alive({session})")).await, None, "{end}");
            let left = format!("SELECT COUNT(*) FROM palisade_locks WHERE session = {session}");
            assert_eq!(ask(&mut store, &left).await.as_deref(), Some("0"), "{end}");
            let mut steps = 1;
            while ask(&mut store, &format!("SELECT 1 FROM palisade_session WHERE id = {session}")).await.is_some() {
                run(&mut store, &step).await;
                steps += 1;
                assert_consistent(&mut store).await;
            }
            assert!(steps > 1, "{end}");
            let held = format!("SELECT COUNT(*) FROM palisade_locks WHERE session = {other} AND state = 'held'");
            assert_eq!(ask(&mut store, &held).await.as_deref(), Some("2"), "{end}");
            run(&mut store, &format!("CALL palisade_close({other})")).await;
        }
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
