//! The tables: tokens over cleaned rows, rows that do not pile up, transactions, users, versions.

use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use palisade::ErrorKind;

use super::fixture::{
    Fixture, LONG_TTL, check, check_many, client, install, number_from_env, take, taken, taking, token,
    until_blocked, until_queued,
};
use super::sessions::{ask, sweep};

pub(crate) async fn open(store: &mut Conn) -> u64 {
    let row: Option<Row> = store.query_first("CALL palisade_open(3600000, 'x')").await.expect("it opens");
    row.and_then(|row| row.get(0)).expect("a session")
}

pub(crate) async fn run(store: &mut Conn, sql: &str) {
    store.query_drop(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
}

async fn rows(store: &mut Conn) -> u64 {
    store.query_first("SELECT COUNT(*) FROM palisade_lock").await.expect("an answer").expect("a row")
}

/// A million names used once leave a few thousand rows at most. `PALISADE_NAMES` sets the number.
#[test]
#[ignore = "long: crowds"]
#[expect(clippy::print_stdout, reason = "how many are left is shown with --nocapture")]
fn names_that_are_used_once_leave_few_rows() {
    let names = number_from_env("PALISADE_NAMES", 6_000);
    let fixture = Fixture::new();
    check_many(names, Duration::from_millis(20), async {
        let mut store = fixture.store().await;
        let session = open(&mut store).await;
        for number in 1..=names {
            let take = format!(
                "CALL palisade_request({session}, 0, {number}, CONCAT(HEX('once/{number}'), ':4294967295:'), '1', 0, 1, NULL, NULL)"
            );
            let row: Option<Row> = store.query_first(take).await.expect("an answer");
            let token: u64 = row.and_then(|row| row.get(1)).expect("a token");
            let give_back = format!("CALL palisade_give_back({session}, 'once/{number}', {token})");
            store.query_drop(give_back).await.expect("it is given back");
            if number % 500 == 0 {
                // As every client of the library does.
                sweep(&mut store).await;
                let rows = rows(&mut store).await;
                assert!(rows <= 2000, "after {number} names there are {rows} rows");
            }
        }
        println!("{names} names that were used once leave {} rows", rows(&mut store).await);
        for table in ["claim", "notice", "event"] {
            let left = store.query_first(format!("SELECT COUNT(*) FROM palisade_{table}")).await.expect("an answer");
            assert_eq!(left, Some(0), "{table}");
        }
    });
}

/// Trap: a lock whose row was cleaned away must not count from 1 again. The count of all tokens is above its last one.
#[test]
fn tokens_rise_over_the_removal_of_a_row() {
    let fixture = Fixture::new();
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        let mut store = fixture.store().await;
        let guard = take(&alice, "orders").await;
        let last = token(&guard);
        guard.release().await.expect("it is held");
        let far = last.get() + 100_000;
        store.query_drop(format!("CALL palisade_raise_tokens({far})")).await.expect("it is free");
        let many: Vec<_> = (0..3000).map(|number| format!("('zzz/{number}', 1)")).collect();
        let many = format!("INSERT INTO palisade_lock (name, token) VALUES {}", many.join(","));
        store.query_drop(many).await.expect("many rows");
        let there = "SELECT COUNT(*) FROM palisade_lock WHERE name = 'orders'";
        while store.query_first(there).await.expect("an answer") == Some(1) {
            store.query_drop("CALL palisade_sweep(1000)").await.expect("it cleans");
            assert!(rows(&mut store).await >= 1000, "its row is among those that are kept");
        }
        let guard = take(&alice, "orders").await;
        assert!(token(&guard).get() > far, "{:?} came after {far}", token(&guard));
    });
}

/// The same while the row is removed at the very moment in which it is made again.
#[test]
fn tokens_rise_when_a_row_is_removed_while_it_is_made_again() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let (mut one, mut two) = (client(&fixture.url()).await, client(&fixture.url()).await);
        // Neither a connection's block of tokens nor a found row may be the reason for success.
        for (round, ask) in [
            "CALL palisade_request({S}, 0, 1, CONCAT(HEX('orders'), ':4294967295:'), '1', 1, 1, NULL, NULL)",
            "CALL palisade_request({S}, 0, 1, \
            '6F7264657273:1:', '1', 1, 1, NULL, NULL)",
        ]
        .into_iter()
        .enumerate()
        {
            let session = open(&mut store).await;
            let high = 1_000_000 * (round as u64 + 1);
            store.query_drop("DELETE FROM palisade_lock").await.expect("all are idle");
            store.query_drop(format!("CALL palisade_raise_tokens({high})")).await.expect("all are idle");
            let row = format!("INSERT INTO palisade_lock (name, token) VALUES ('orders', {high})");
            store.query_drop(row).await.expect("a row");
            // Does slowly what `palisade_clean` does.
            two.query_drop("START TRANSACTION").await.expect("it begins");
            two.query_drop("DELETE FROM palisade_lock WHERE name = 'orders'").await.expect("it is removed");
            let mut other = client(&fixture.url()).await;
            let ask = ask.replace("{S}", &session.to_string());
            let asking = tokio::spawn(async move {
                let row: Option<Row> = other.query_first(ask).await.expect("an answer");
                row.and_then(|row| row.get::<Option<u64>, _>(1)).flatten().expect("a token")
            });
            // It waits for the transaction that removes the row.
            until_blocked(&mut one, || ()).await;
            two.query_drop("COMMIT").await.expect("it is removed");
            let token = asking.await.expect("no panic");
            assert!(token > high, "{token} came after {high}");
            store.query_drop(format!("CALL palisade_close({session})")).await.expect("it closes");
        }
    });
}

/// Concurrent first clients install the tables once.
#[test]
fn the_first_client_installs_the_tables() {
    let fixture = Fixture::new();
    check(async {
        let clients = join_all((0..8).map(|_| fixture.client(LONG_TTL))).await;
        let guard = take(&clients[0], "lock").await;
        assert!(clients[7].lock("lock").try_acquire().await.expect("an answer").is_none());
        drop(guard);
    });
}

/// A user needs the rights to call and to read. Without them the error says what to do.
#[test]
fn a_user_without_rights_is_told_and_one_that_is_allowed_works() {
    let fixture = Fixture::new();
    check(async {
        let mut store = client(&fixture.url()).await;
        let database: Option<String> = store.query_first("SELECT DATABASE()").await.expect("an answer");
        let database = database.expect("it has one");
        let user = format!("app_{database}");
        store.query_drop(format!("CREATE USER {user}@'%'")).await.expect("a user");
        let url = fixture.url().replace("root@", &format!("{user}@"));
        let error = palisade::connect(&url).await.map(drop).expect_err("it is not let in");
        assert!(!error.is_retryable(), "{error}");
        store.query_drop(format!("GRANT EXECUTE ON {database}.* TO {user}@'%'")).await.expect("it may call");
        let error = palisade::connect(&url).await.map(drop).expect_err("it is not installed");
        assert!(error.to_string().contains("palisade_"), "{error}");
        install(&mut store).await;
        for table in ["version", "state", "session", "lock", "claim", "notice", "event", "watched", "locks"] {
            let sql = format!("GRANT SELECT ON {database}.palisade_{table} TO {user}@'%'");
            store.query_drop(sql).await.expect("it may look");
        }
        let alice = palisade::Options::new().connect(&url).await.expect("it is allowed");
        let bob = fixture.client(LONG_TTL).await;
        let guard = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        guard.release().await.expect("it is held");
        taken(waiting).await.release().await.expect("it is held");
        let mut app = client(&url).await;
        for sql in ["DELETE FROM palisade_lock", "UPDATE palisade_state SET token = 0", "DROP TABLE palisade_lock"] {
            app.query_drop(sql).await.expect_err("it is not allowed");
        }
    });
}

/// As after a dump that was made without `--routines`: its tokens may be old, too.
#[test]
fn tables_without_their_procedures_are_named_with_the_way_out() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        run(&mut store, "DROP PROCEDURE palisade_open").await;
        let error = palisade::connect(&fixture.url()).await.map(drop).expect_err("nothing can be called");
        let reply = error.to_string();
        for part in ["--routines", "palisade engine mysql schema | mysql DATABASE", "palisade tokens raise --above"] {
            assert!(reply.contains(part), "{part}: {reply}");
        }
    });
}

#[test]
fn a_newer_schema_is_used_if_it_declares_compatibility() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        store.query_drop("UPDATE palisade_version SET version = 7").await.expect("it is newer");
        fixture.client(LONG_TTL).await;
        store.query_drop("UPDATE palisade_version SET usable_from = 7").await.expect("it is newer");
        let error = palisade::connect(&fixture.url()).await.map(drop).expect_err("it cannot be used");
        assert!(error.to_string().contains("use a newer palisade") && !error.is_retryable(), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Outage { .. }), "{error:?}");
    });
}

/// Statements in the shell show, renew, wait for, release and break the locks of the library.
#[test]
fn the_shell_and_the_library_share_locks() {
    let fixture = Fixture::new();
    check(async {
        let (mut shell, alice) = (fixture.store().await, fixture.client(LONG_TTL).await);
        let row: Option<(u64, u64, String)> =
            shell.query_first("CALL palisade_acquire('orders/42', 3600000, 'a shell')").await.expect("an answer");
        let (first, ..) = row.expect("it is free");
        assert!(alice.lock("orders/42").try_acquire().await.expect("an answer").is_none());
        let label =
            alice.inspect("orders/42").await.expect("an answer").expect("it is held").holders[0].label.clone();
        assert_eq!(label.as_deref(), Some("a shell"));
        let renewed =
            shell.query_first(format!("CALL palisade_renew('orders/42', {first})")).await.expect("an answer");
        assert_eq!(renewed, Some(1));
        let waiting = taking(&alice, "orders/42");
        until_queued(&alice, "orders/42", 1).await;
        let release = format!("CALL palisade_release('orders/42', {first})");
        assert_eq!(ask(&mut shell, &release).await.as_deref(), Some("1"));
        let guard = taken(waiting).await;
        assert!(token(&guard).get() > first);
        assert_eq!(ask(&mut shell, &release).await.as_deref(), Some("0"));
        let none: Option<Row> = shell
            .query_first("CALL palisade_acquire_within('orders/42', 3600000, 'a shell', 50)")
            .await
            .expect("an answer");
        assert!(none.is_none());
        let mut other = client(&fixture.url()).await;
        let patient = tokio::spawn(async move {
            let sql = "CALL palisade_acquire_within('orders/42', 3600000, 'a shell', 3600000)";
            let row: Option<(u64, u64, String)> = other.query_first(sql).await.expect("an answer");
            row.expect("its turn comes").0
        });
        until_queued(&alice, "orders/42", 1).await;
        let third = token(&guard);
        guard.release().await.expect("it is held");
        assert!(patient.await.expect("no panic") > third.get());
        let broken: Option<(u64, u64, Option<String>)> =
            shell.query_first("CALL palisade_break('orders/42', 'a test', NULL)").await.expect("an answer");
        assert!(matches!(broken, Some((1, _, None))), "{broken:?}");
        let refused: Option<(u64, Option<u64>, Option<String>)> =
            shell.query_first("CALL palisade_break('orders/42', 'a test', NULL)").await.expect("an answer");
        let refused = refused.and_then(|(_, _, refusal)| refusal).expect("it is free");
        assert!(refused.contains("NoHolder"), "{refused}");
        for bad in ["''", "'$x'", "'a\\nb'", "REPEAT('a', 513)"] {
            let sql = format!("CALL palisade_acquire({bad}, 30000, 'a shell')");
            shell.query_drop(sql).await.expect_err("it is no name");
        }
        let left =
            shell.query_first("SELECT COUNT(*) FROM palisade_session WHERE is_lease = 1").await.expect("an answer");
        assert_eq!(left, Some(1), "the session of a broken lock ends by its TTL");
    });
}
