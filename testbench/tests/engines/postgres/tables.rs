//! What is in the tables: tokens over cleaned rows, rows that do not pile up, isolation levels, roles, versions.

use std::time::Duration;

use futures_util::future::join_all;
use palisade::{ErrorKind, Options};
use tokio_postgres::Client;

use super::fixture::{Fixture, LONG_TTL, check, check_many, client, number_from_env, take, token, until};

pub(crate) async fn open(store: &Client) -> i64 {
    let row = store.query_one("SELECT session FROM palisade.open(3600000, 'x', NULL)", &[]).await;
    row.expect("it opens").get(0)
}

async fn rows(store: &Client) -> i64 {
    let row = store.query_one("SELECT count(*) FROM palisade.lock", &[]).await.expect("an answer");
    row.get(0)
}

/// A million names used once leave a few thousand rows at most, as clients sweep. `PALISADE_NAMES` sets the number.
#[test]
#[ignore = "long: crowds"]
#[expect(clippy::print_stdout, reason = "how many are left is shown with --nocapture")]
fn names_that_are_used_once_leave_few_rows() {
    let names = number_from_env("PALISADE_NAMES", 20_000);
    let fixture = Fixture::new();
    check_many(names, Duration::from_millis(20), async {
        let store = fixture.store().await;
        let session = open(&store).await;
        // This client only sweeps.
        let _sweeps = fixture.client(LONG_TTL).await;
        let sql = "DO $$ DECLARE t bigint; BEGIN FOR i IN %FROM% .. %TO% LOOP \
             t := palisade.take(%SESSION%, 0, i, 'once/' || i, false, true); \
             PERFORM palisade.give_back(%SESSION%, 'once/' || i, t); COMMIT; END LOOP; END $$";
        let sql = sql.replace("%SESSION%", &session.to_string());
        let mut from = 1;
        while from <= names {
            let to = (from + 9_999).min(names);
            let sql = sql.replace("%FROM%", &from.to_string()).replace("%TO%", &to.to_string());
            store.batch_execute(&sql).await.expect("they are used");
            from = to + 1;
        }
        until(&format!("at most 4000 rows are left after {names} names"), async || {
            // A count of all rows takes long.
            tokio::time::sleep(Duration::from_millis(50)).await;
            rows(&store).await <= 4000
        })
        .await;
        println!("{names} names that were used once leave {} rows", rows(&store).await);
    });
}

/// Trap: a lock whose row was cleaned away must not count from 1 again. The floor carries its token on.
#[test]
fn tokens_rise_over_the_removal_of_a_row() {
    let fixture = Fixture::new();
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        let store = fixture.store().await;
        let mut last = None;
        for _ in 0..50 {
            let guard = take(&alice, "orders").await;
            assert!(last.is_none_or(|last| token(&guard) > last));
            last = Some(token(&guard));
            guard.release().await.expect("it is held");
        }
        let there = async || {
            let row = store.query_opt("SELECT FROM palisade.lock WHERE name = 'orders'", &[]).await;
            row.expect("an answer").is_some()
        };
        // One that was used not long ago stays, and one that is in use.
        let kept = take(&alice, "kept").await;
        for _ in 0..3 {
            store.batch_execute("SELECT palisade.clean()").await.expect("it cleans");
        }
        assert!(there().await, "it was used not long ago");
        store.batch_execute("SELECT setval('palisade.tokens', 100000)").await.expect("as if by others");
        for _ in 0..3 {
            store.batch_execute("SELECT palisade.clean()").await.expect("it cleans");
        }
        assert!(!there().await, "it was not used for long");
        let of_kept = token(&kept);
        kept.release().await.expect("it is held");
        // Trap: a sequence can go back after a crash, so nothing may depend on it.
        store.batch_execute("SELECT setval('palisade.tokens', 1, false)").await.expect("it goes back");
        let guard = take(&alice, "orders").await;
        assert!(Some(token(&guard)) > last, "{:?} came after {last:?}", token(&guard));
        let kept = take(&alice, "kept").await;
        assert!(token(&kept) > of_kept, "{:?} came after {of_kept:?}", token(&kept));
    });
}

/// The same while the row is removed at the very moment in which it is made again: the floor that was read before is old.
#[test]
fn tokens_rise_when_a_row_is_removed_while_it_is_made_again() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let (one, two) = (client(&fixture.url()).await, client(&fixture.url()).await);
        for (round, ask) in [
            "SELECT palisade.take($1, 0, $2, 'orders', true, true)::bigint",
            "SELECT token FROM palisade.request($1, 0, $2, '{orders}', '{1}', '{NULL}', true, true, NULL, NULL)",
        ]
        .into_iter()
        .enumerate()
        {
            let session = open(&store).await;
            let take = |client: Client, number: i64| async move {
                let row = client.query_one(ask, &[&session, &number]).await.expect("an answer");
                (row.get::<_, Option<i64>>(0).expect("a token"), client)
            };
            store.batch_execute("DELETE FROM palisade.lock").await.expect("all are idle");
            let high = 100 * (round as i64 + 1);
            let sql = format!("INSERT INTO palisade.lock (name, token) VALUES ('orders', {high})");
            store.batch_execute(&sql).await.expect("a row");
            // As `palisade.clean` does it, but slowly.
            two.batch_execute(&format!(
                "BEGIN; DELETE FROM palisade.lock WHERE name = 'orders'; \
                 UPDATE palisade.state SET floor = {high} WHERE floor < {high}"
            ))
            .await
            .expect("it is removed");
            let taking = tokio::spawn(take(client(&fixture.url()).await, 1));
            // It waits for the transaction that removes the row.
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
            let is_waiting = async || one.query_one(waits, &[]).await.expect("an answer").get::<_, i64>(0) > 0;
            until("the take waits for the row", is_waiting).await;
            two.batch_execute("COMMIT").await.expect("it is removed");
            let (token, _) = taking.await.expect("no panic");
            assert!(token > high, "{token} came after {high}");
            store.query_one("SELECT palisade.close($1)", &[&session]).await.expect("it closes");
        }
    });
}

/// Concurrent first clients install the schema once, also in a database whose transactions do not see what others have done meanwhile.
#[test]
#[ignore = "long: several seconds"]
fn the_first_client_installs_the_schema() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let fixture = Fixture::new();
        check(async {
            let sql = format!(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), \
                 '{isolation}'); END $$"
            );
            client(&fixture.url()).await.batch_execute(&sql).await.expect("it is set");
            let clients = join_all((0..8).map(|_| fixture.client(LONG_TTL))).await;
            let guard = take(&clients[0], "lock").await;
            assert!(clients[7].lock("lock").try_acquire().await.expect("an answer").is_none());
            drop(guard);
        });
    }
}

/// A role needs no rights but those to call. Without them it is told what to do.
#[test]
fn a_role_without_rights_is_told_and_one_that_is_allowed_works() {
    let fixture = Fixture::new();
    check(async {
        let store = client(&fixture.url()).await;
        let role = format!("app_{}", std::process::id());
        store.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.expect("a role");
        let url = fixture.url().replace("postgres@", &format!("{role}@"));
        let error = palisade::connect(&url).await.map(drop).expect_err("it is not installed");
        assert!(error.to_string().contains("palisade engine postgres schema"), "{error}");
        store.batch_execute(palisade::engine::postgres::SCHEMA).await.expect("it is installed");
        let error = palisade::connect(&url).await.map(drop).expect_err("it is not allowed");
        assert!(error.to_string().contains("palisade.allow"), "{error}");
        store.batch_execute(&format!("SELECT palisade.allow('{role}')")).await.expect("it is allowed");
        let alice = Options::new().connect(&url).await.expect("it is allowed");
        let bob = fixture.client(LONG_TTL).await;
        let guard = take(&alice, "lock").await;
        assert!(bob.lock("lock").try_acquire().await.expect("an answer").is_none());
        let waiting = super::fixture::taking(&bob, "lock");
        super::fixture::until_queued(&alice, "lock", 1).await;
        guard.release().await.expect("it is held");
        super::fixture::taken(waiting).await.release().await.expect("it is held");
        let app = client(&url).await;
        for sql in [
            "DELETE FROM palisade.lock",
            "SELECT palisade.raise_tokens(1)",
            "SELECT palisade.expire('{1}')",
            "UPDATE palisade.state SET floor = 0",
        ] {
            let error = app.batch_execute(sql).await.expect_err("it is not allowed");
            assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{sql}");
        }
        store.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.expect("it goes");
    });
}

#[test]
fn a_schema_that_is_newer_is_used_if_it_says_so() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        store.batch_execute("UPDATE palisade.version SET version = 7").await.expect("it is newer");
        fixture.client(LONG_TTL).await;
        let error = store.batch_execute(palisade::engine::postgres::SCHEMA).await.expect_err("it would be older");
        assert!(error.as_db_error().is_some_and(|error| error.message().contains("newer")), "{error}");
        store.batch_execute("ROLLBACK; UPDATE palisade.version SET usable_from = 7").await.expect("it is newer");
        let error = palisade::connect(&fixture.url()).await.map(drop).expect_err("it cannot be used");
        assert!(error.to_string().contains("use a newer palisade") && !error.is_retryable(), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Outage { .. }), "{error:?}");
    });
}

#[test]
fn transactions_that_do_not_see_what_others_do_are_refused() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let session = open(&store).await;
        let take = format!("SELECT palisade.take({session}, 0, 1, 'there', true, true)");
        store.batch_execute("INSERT INTO palisade.lock (name, token) VALUES ('there', 0)").await.expect("a row");
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            for call in [
                &*take,
                "SELECT * FROM palisade.acquire('lock')",
                "SELECT palisade.release('lock', 1)",
                "SELECT palisade.renew('lock', 1)",
                "SELECT palisade.break('lock', 'why')",
            ] {
                let sql = format!("BEGIN ISOLATION LEVEL {level}; {call}");
                let error = store.batch_execute(&sql).await.expect_err("it is refused");
                let error = error.as_db_error().expect("it says why");
                assert_eq!(error.code().code(), "PL002", "{call}: {error}");
                assert!(error.hint().is_some_and(|hint| hint.contains("READ COMMITTED")), "{error}");
                store.batch_execute("ROLLBACK").await.expect("it is over");
            }
        }
    });
}

/// A grant is durable before its reply, also with `synchronous_commit = off`.
#[test]
fn a_grant_is_durable_whatever_the_database_is_set_to() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let session = open(&store).await;
        let set = async |to: &str, call: &str| {
            store
                .batch_execute(&format!("BEGIN; SET LOCAL synchronous_commit = {to}; {call}"))
                .await
                .expect("an answer");
            let row = store.query_one("SHOW synchronous_commit", &[]).await.expect("an answer");
            let is = row.get::<_, String>(0);
            store.batch_execute("COMMIT").await.expect("it is done");
            is
        };
        // In a row that is new, in one that is there, and by a release that hands over.
        for number in 1..5 {
            let take = format!("SELECT palisade.take({session}, 0, {number}, 'lock/{}', true, true)", number / 3);
            assert_eq!(set("off", &take).await, "on", "{take}");
            let wait = format!("SELECT palisade.take({session}, 0, 1{number}, 'lock/{}', true, true)", number / 3);
            assert_eq!(set("off", &wait).await, "off", "{wait}");
            let give_back = format!(
                "SELECT palisade.give_back({session}, c.lock, c.token) FROM palisade.claim c WHERE NOT c.waits"
            );
            assert_eq!(set("off", &give_back).await, "on", "{give_back}");
            // A transaction that is set to more than that keeps it.
            assert_eq!(set("remote_apply", &give_back).await, "remote_apply", "{give_back}");
            let take = take.replace(&format!("0, {number},"), &format!("0, 2{number},"));
            assert_eq!(set("remote_apply", &take).await, "remote_apply", "{take}");
            assert_eq!(set("off", &give_back).await, "off", "{give_back}");
        }
    });
}

/// Nothing is made of an installation of an earlier format, and the error says what to do.
#[test]
fn an_older_installation_is_refused_with_what_to_do() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        store.batch_execute("UPDATE palisade.version SET version = 1").await.expect("it is older");
        let error = palisade::connect(&fixture.url()).await.map(drop).expect_err("it cannot be used");
        assert!(error.to_string().contains("palisade engine postgres schema") && !error.is_retryable(), "{error}");
        let error = store.batch_execute(palisade::engine::postgres::SCHEMA).await.expect_err("it is older");
        let error = error.as_db_error().expect("it says why");
        assert!(error.hint().is_some_and(|hint| hint.contains("palisade.raise_tokens")), "{error}");
    });
}
