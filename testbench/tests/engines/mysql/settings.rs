//! Session variables of callers, and interrupted calls: neither repeats a token nor leaves a wait behind.

use std::collections::BTreeSet;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};

use super::fixture::{Fixture, LONG_TTL, check, client, take, until, until_some};
use super::functions::assert_consistent;
use super::sessions::ask;
use super::tables::run;

/// What a careless or hostile program may have set on its connection.
const SETTINGS: [&str; 31] = [
    "insert_id = 1",
    "insert_id = 2",
    "insert_id = 35184372088831",
    "insert_id = 9007199254740991",
    "last_insert_id = 1",
    "auto_increment_increment = 1000",
    "auto_increment_offset = 999, auto_increment_increment = 1000",
    "sql_auto_is_null = 1",
    "unique_checks = 0",
    "foreign_key_checks = 0",
    "check_constraint_checks = 0",
    "innodb_lock_wait_timeout = 100",
    "max_statement_time = 100",
    "sql_select_limit = 1",
    "sql_select_limit = 0",
    "sql_safe_updates = 1",
    "big_tables = 1",
    "completion_type = 'CHAIN'",
    "completion_type = 'RELEASE'",
    "autocommit = 0",
    "tx_read_only = 1",
    "tx_isolation = 'READ-UNCOMMITTED'",
    "tx_isolation = 'SERIALIZABLE'",
    "binlog_format = STATEMENT",
    "group_concat_max_len = 4",
    "max_sp_recursion_depth = 0",
    "max_error_count = 0",
    "rand_seed1 = 1, rand_seed2 = 1",
    "sql_mode = 'ANSI,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE'",
    "time_zone = '+13:00', lc_time_names = 'de_DE'",
    "character_set_client = latin1, collation_connection = utf16_unicode_ci",
];

async fn token(conn: &mut Conn, lock: &str, setting: &str) -> u64 {
    let call = format!("CALL palisade_acquire('{lock}', 60000, 'me')");
    let row: Option<Row> = conn.query_first(call).await.unwrap_or_else(|error| panic!("{setting}: {error}"));
    row.and_then(|row| row.get(0)).unwrap_or_else(|| panic!("{setting}: {lock} is free, and is not granted"))
}

#[test]
#[ignore = "long: several seconds"]
fn no_setting_of_a_caller_repeats_a_token_or_makes_a_call_fail() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let alice = fixture.client(LONG_TTL).await;
        let (mut given, mut last_of_old) = (BTreeSet::new(), 0);
        for (round, setting) in SETTINGS.into_iter().enumerate() {
            for again in 0..2 {
                // A force-release notifies a session, which writes to a table too.
                let taken = take(&alice, "taken").await;
                for (what, lock) in [("new", format!("new/{round}/{again}")), ("old", "old".to_owned())] {
                    let mut conn = client(&fixture.url()).await;
                    run(&mut conn, &format!("SET SESSION {setting}")).await;
                    let token = token(&mut conn, &lock, setting).await;
                    assert!(given.insert(token), "{setting}: {token} of {lock} was given before");
                    if what == "old" {
                        assert!(token > last_of_old, "{setting}: {token} came after {last_of_old}");
                        last_of_old = token;
                    }
                    let mut conn = client(&fixture.url()).await;
                    run(&mut conn, &format!("SET SESSION {setting}")).await;
                    let released = ask(&mut conn, &format!("CALL palisade_release('{lock}', {token})")).await;
                    assert_eq!(released.as_deref(), Some("1"), "{setting}: {lock}");
                }
                let mut conn = client(&fixture.url()).await;
                run(&mut conn, &format!("SET SESSION {setting}")).await;
                let broken = ask(&mut conn, "CALL palisade_break('taken', 'a test', NULL)").await;
                assert_eq!(broken.as_deref(), Some("1"), "{setting}");
                assert_consistent(&mut store).await;
                drop(taken);
            }
        }
    });
}

#[test]
fn tokens_are_raised_to_half_of_all_at_most() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        for above in ["9007199254740991", "4503599627370497", "0", "-1", "NULL"] {
            let raise = format!("CALL palisade_raise_tokens({above})");
            match store.query_drop(&raise).await {
                Err(Error::Server(error)) => assert!(error.message.contains("4503599627370496"), "{error}"),
                other => panic!("{raise}: {other:?}"),
            }
        }
        run(&mut store, "CALL palisade_raise_tokens(4503599627370496)").await;
        assert!(token(&mut store, "lock", "raised").await > 4_503_599_627_370_496);
    });
}

/// Lets a caller wait behind a holder by `palisade_acquire_within`. Returns when the wait is queued.
async fn wait_behind(
    fixture: &Fixture,
    store: &mut Conn,
    setting: &str,
) -> (String, u64, tokio::task::JoinHandle<Error>) {
    let held = ask(store, "CALL palisade_acquire('lock', 3600000, 'holder')").await.expect("it is free");
    let mut victim = client(&fixture.url()).await;
    let id = victim.id().into();
    run(&mut victim, &format!("SET SESSION {setting}")).await;
    let waiting = tokio::spawn(async move {
        let wait = "CALL palisade_acquire_within('lock', 3600000, 'victim', 3600000)";
        victim.query_drop(wait).await.expect_err("it ends by an error")
    });
    let queued = "SELECT COUNT(*) FROM palisade_locks WHERE state = 'waiting'";
    until("the victim is in the queue", async || ask(store, queued).await.as_deref() == Some("1")).await;
    (held, id, waiting)
}

/// A caller that gets an error has neither the lock nor a place in its queue: it does not know the token.
#[test]
#[ignore = "long: cut and slow connections"]
fn a_wait_that_ends_by_an_error_is_not_granted_later() {
    let fixture = Fixture::new();
    check(async {
        let (mut store, mut busy) = (fixture.store().await, client(&fixture.url()).await);
        for (end, timeout) in [("lock wait", "1"), ("deadlock", "3600")] {
            let setting = format!("innodb_lock_wait_timeout = {timeout}");
            let (held, id, waiting) = wait_behind(&fixture, &mut store, &setting).await;
            match end {
                "lock wait" => {
                    run(&mut busy, "START TRANSACTION").await;
                    run(&mut busy, "SELECT token FROM palisade_lock WHERE name = 'lock' FOR UPDATE").await;
                    let error = waiting.await.expect("no panic");
                    assert!(matches!(&error, Error::Server(error) if error.code == 1205), "{error}");
                    run(&mut busy, "COMMIT").await;
                }
                _ => {
                    // It waits for the lock's row and has that of its session, which this transaction then wants: as it has
                    // written more, the other one is ended.
                    run(&mut busy, "CREATE TABLE IF NOT EXISTS work (id INT PRIMARY KEY) ENGINE = InnoDB").await;
                    run(&mut busy, "START TRANSACTION").await;
                    run(&mut busy, "INSERT INTO work SELECT seq FROM seq_1_to_1000").await;
                    run(&mut busy, "SELECT token FROM palisade_lock WHERE name = 'lock' FOR UPDATE").await;
                    let blocked = format!(
                        "SELECT COUNT(*) FROM information_schema.processlist WHERE id = {id} AND info LIKE \
                         '%palisade_lock%FOR UPDATE%' AND time_ms > 50"
                    );
                    until("the victim waits for the row", async || {
                        ask(&mut store, &blocked).await.as_deref() != Some("0")
                    })
                    .await;
                    run(&mut busy, "SELECT id FROM palisade_session WHERE label = 'victim' FOR UPDATE").await;
                    run(&mut busy, "ROLLBACK").await;
                    let error = waiting.await.expect("no panic");
                    assert!(matches!(&error, Error::Server(error) if error.code == 1213), "{error}");
                }
            }
            run(&mut store, &format!("CALL palisade_release('lock', {held})")).await;
            let token = ask(&mut store, "CALL palisade_acquire('lock', 60000, 'next')").await;
            let token = token.unwrap_or_else(|| panic!("after a {end} the wait was granted later"));
            run(&mut store, &format!("CALL palisade_release('lock', {token})")).await;
            assert_consistent(&mut store).await;
        }
    });
}

/// No handler runs in a killed call. Its wait ends by the short TTL that waits have.
#[test]
fn a_wait_whose_call_was_killed_ends_soon() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let (held, id, waiting) = wait_behind(&fixture, &mut store, "sql_mode = ''").await;
        run(&mut store, &format!("KILL {id}")).await;
        waiting.await.expect("no panic");
        let left = "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), COALESCE(MAX(deadline), UTC_TIMESTAMP(6))) \
             FROM palisade_session WHERE label = 'victim' AND ended IS NULL";
        let left: i64 = ask(&mut store, left).await.expect("a number").parse().expect("a number");
        assert!(left <= 10_000_000, "it may be granted for the next {left} us");
        // A granted lock has the TTL of its request.
        run(&mut store, &format!("CALL palisade_release('lock', {held})")).await;
        run(&mut store, "UPDATE palisade_session SET deadline = '2000-01-01' WHERE label = 'victim'").await;
        let mut next = client(&fixture.url()).await;
        run(&mut next, "CALL palisade_acquire_within('lock', 3600000, 'next', 3600000)").await;
        let left = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), until) FROM palisade_locks WHERE label = 'next'";
        let left: i64 = ask(&mut store, left).await.expect("it is held").parse().expect("a number");
        assert!(left > 3_000, "{left} s");
    });
}

/// An interrupted procedure may skip its handler and leave its transaction open. The client does not use that connection again.
#[test]
fn a_client_whose_call_was_interrupted_goes_on_with_another_connection() {
    let fixture = Fixture::new();
    check(async {
        let (mut store, mut busy) = (fixture.store().await, client(&fixture.url()).await);
        let palisade = fixture.through_proxy(LONG_TTL).await;
        for round in 0..10 {
            let name = format!("lock/{round}");
            take(&palisade, &name).await.release().await.expect("it is held");
            run(&mut busy, "START TRANSACTION").await;
            run(&mut busy, &format!("SELECT token FROM palisade_lock WHERE name = '{name}' FOR UPDATE")).await;
            let acquiring = tokio::spawn({
                let (palisade, name) = (palisade.clone(), name.clone());
                async move { palisade.rw_lock(name).read().acquire().await.expect("its connection is replaced") }
            });
            let blocked = "SELECT id FROM information_schema.processlist WHERE info LIKE '%palisade_lock%FOR UPDATE%' \
                 AND id <> CONNECTION_ID() AND db = DATABASE() AND time_ms > 50";
            let id = until_some("the acquire waits for the row", async || ask(&mut store, blocked).await).await;
            // It may have given up meanwhile.
            drop(store.query_drop(format!("KILL QUERY {id}")).await);
            run(&mut busy, "ROLLBACK").await;
            acquiring.await.expect("no panic").release().await.expect("it is held");
        }
        assert_consistent(&mut store).await;
    });
}
