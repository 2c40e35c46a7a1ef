//! Calls of the functions from `psql`, and copies of the database.

use std::process::Command;

use palisade_testbench::bounded::output;
use tokio_postgres::Client;
use tokio_postgres::error::DbError;

use super::fixture::{Fixture, LONG_TTL, check, client, take, token, until_some};
use super::sessions::{ask, refused};
use super::tables::open;

/// The error of a statement that must fail.
async fn error_of(store: &Client, sql: &str) -> DbError {
    let error = store.batch_execute(sql).await.expect_err(sql);
    error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}")).clone()
}

#[test]
fn the_view_shows_labels_as_text_and_an_exclusive_need_as_all() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        store.batch_execute("SELECT palisade.acquire('a', label => 'Käse')").await.expect("it is free");
        store.batch_execute("SELECT palisade.acquire('b', mode => 'shared')").await.expect("it is free");
        let bytes = r"UPDATE palisade.session SET label = '\xff61' WHERE label <> 'Käse'::bytea";
        store.batch_execute(bytes).await.expect("a label that is no text");
        let seen = "SELECT string_agg(lock || ' ' || need || ' ' || label, ',' ORDER BY lock) FROM palisade.locks";
        assert_eq!(ask::<String>(&store, seen).await, r"a all Käse,b 1 \377a");
    });
}

#[test]
fn a_refusal_is_a_sentence_with_the_json_in_its_detail() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        store
            .batch_execute("SELECT palisade.acquire('held'), palisade.acquire('four', permits => 4)")
            .await
            .expect("free");
        for (sql, message) in [
            (
                "palisade.acquire('held', permits => 3)",
                "lock 'held' is refused: it is in use as a plain lock, not as a semaphore",
            ),
            (
                "palisade.acquire('four', permits => 3)",
                "lock 'four' is refused: it is in use with 4 permits, not with 3",
            ),
            (
                "palisade.acquire('new', permits => 3, take => 4)",
                "lock 'new' is refused: 4 of 3 permits cannot be taken",
            ),
            (
                "palisade.acquire('new', '1 ms')",
                "a session with a ttl of 00:00:00.001 is refused: TtlMinMs is 1, and 100 is the least",
            ),
            ("palisade.break('idle', 'why')", "breaking lock 'idle' is refused: no session holds it"),
        ] {
            let error = error_of(&store, &format!("SELECT {sql}")).await;
            assert_eq!((error.code().code(), error.message()), ("PL001", message), "{sql}");
            let detail = error.detail().expect("the refusal");
            assert!(serde_json::from_str::<palisade_core::Refusal>(detail).is_ok(), "{detail}");
        }
    });
}

#[test]
fn acquire_within_is_refused_where_it_cannot_commit_or_would_not_end() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        // A bound for a call that would never end.
        store.batch_execute("SET statement_timeout = '60s'").await.expect("a bound");
        store.batch_execute("SELECT palisade.acquire('lock', '1 hour')").await.expect("it is free");
        store.batch_execute("BEGIN").await.expect("a transaction");
        let error = error_of(&store, "CALL palisade.acquire_within('lock', '1 s')").await;
        assert_eq!(error.code().code(), "PL002", "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("palisade.begin_wait")), "{error}");
        store.batch_execute("ROLLBACK").await.expect("it is over");
        assert_eq!(refused(&store, "CALL palisade.acquire_within('lock', NULL)").await, "PL001");
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.session").await, 1);
        store.batch_execute("CALL palisade.acquire_within('lock', '10 ms')").await.expect("it waits in vain");
        let row = store.query_one("CALL palisade.acquire_within('free', '1 hour')", &[]).await.expect("an answer");
        assert!(row.get::<_, Option<i64>>(0).is_some());
    });
}

/// Copies the database of a fixture: into a new one on the same server, by the server or through a dump.
async fn copy(fixture: &Fixture, by: &str) -> String {
    let (from, root) = (fixture.url(), fixture.url().rsplit_once('/').expect("a database").0.to_owned());
    let name = from.rsplit_once('/').expect("a database").1;
    let (to, maker) = (format!("{root}/{name}_{by}"), client(&format!("{root}/postgres")).await);
    let make = match by {
        "template" => format!("CREATE DATABASE {name}_{by} TEMPLATE {name}"),
        _ => format!("CREATE DATABASE {name}_{by}"),
    };
    // The server copies only a database without connections, and a closed connection takes a moment to end.
    until_some("the database is copied", async || {
        let made = maker.batch_execute(&make).await;
        made.inspect_err(|error| assert!(error.to_string().contains("db error") && by == "template", "{error}")).ok()
    })
    .await;
    if by == "dump" {
        let restore = format!("pg_dump -n palisade {from} | psql -qX -v ON_ERROR_STOP=1 {to}");
        let done = output(Command::new("sh").args(["-c", &restore])).expect("a shell");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    to
}

/// The original is still in use, so a copy would give the same tokens again.
#[test]
fn a_copy_of_the_data_grants_nothing_until_it_is_accepted() {
    for by in ["template", "dump"] {
        let fixture = Fixture::new();
        check(async {
            let store = fixture.store().await;
            let held = "SELECT token FROM palisade.acquire('lock', '1 hour')";
            let old: i64 = ask(&store, held).await;
            let waiting: i64 = ask(&store, "SELECT palisade.begin_wait('lock', '1 hour')").await;
            drop(store);
            let url = copy(&fixture, by).await;
            let error = palisade::connect(&url).await.map(drop).expect_err("it is a copy");
            assert!(error.to_string().contains("palisade.accept_copy") && !error.is_retryable(), "{by}: {error}");
            let copied = client(&url).await;
            for call in [
                "palisade.acquire('other')".to_owned(),
                "palisade.open(60000, 'x', NULL)".to_owned(),
                format!("palisade.wait_on({waiting})"),
                format!("palisade.attach({waiting}, 1)"),
            ] {
                let error = error_of(&copied, &format!("SELECT {call}")).await;
                assert_eq!(error.code().code(), "PL003", "{by}: {call}: {error}");
                assert!(error.hint().is_some_and(|hint| hint.contains("palisade.accept_copy")), "{error}");
            }
            assert!(ask::<String>(&copied, "SELECT palisade.check()").await.contains("a copy"));
            copied.batch_execute("SELECT palisade.accept_copy(5000)").await.expect("it is accepted");
            let alice = palisade::Options::new().ttl(LONG_TTL).connect(&url).await.expect("it is accepted");
            assert!(token(&take(&alice, "lock").await).get() > 5000);
            assert_eq!(ask::<i64>(&copied, "SELECT count(*) FROM palisade.check()").await, 0);
            assert_eq!(refused(&copied, "SELECT palisade.accept_copy(6000)").await, "PL001");
            // The original is not affected.
            let store = client(&fixture.url()).await;
            open(&store).await;
            assert!(ask::<bool>(&store, &format!("SELECT palisade.renew('lock', {old})")).await);
        });
    }
}
