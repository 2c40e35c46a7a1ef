//! Clean-up: separate transactions remove the rows of unused locks, and no grant and no token is lost with them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;

use super::fixture::{Fixture, check, client, until};
use super::sessions::{ask, assert_consistent, refused, request};
use super::tables::open;

/// `SKIP LOCKED` does not skip a transaction's own rows: a lock that it has just taken would be removed.
#[test]
fn rows_are_not_removed_by_a_transaction_that_has_changed_something() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let session = open(&store).await;
        for before in [
            "SELECT palisade.acquire('lock')",
            "SAVEPOINT a; SELECT palisade.acquire('lock'); RELEASE a",
            "SELECT txid_current()",
        ] {
            store.batch_execute(&format!("BEGIN; {before}")).await.expect("it is done");
            assert_eq!(refused(&store, "SELECT palisade.clean(0)").await, "PL002", "{before}");
            store.batch_execute("ROLLBACK").await.expect("it is over");
        }
        // No function that grants calls it.
        let calls = "SELECT string_agg(proname, ',') FROM pg_proc WHERE pronamespace = 'palisade'::regnamespace \
             AND prosrc LIKE '%palisade.clean%'";
        assert_eq!(ask::<String>(&store, calls).await, "tidy");
        let deletes = "SELECT string_agg(proname, ',') FROM pg_proc WHERE pronamespace = 'palisade'::regnamespace \
             AND prosrc LIKE '%DELETE FROM palisade.lock%'";
        assert_eq!(ask::<String>(&store, deletes).await, "clean");
        request(&store, session, "lock").await;
        store.batch_execute("SELECT palisade.clean(0)").await.expect("outside of a transaction it works");
        assert_eq!(ask::<i64>(&store, "SELECT session FROM palisade.claim").await, session);
    });
}

/// Many new names, taken once and twice, alone and in sets of any order, by many at once, while unused rows are removed
/// all the time: no lock is granted twice or without a row, and no token is given twice.
#[test]
#[ignore = "long: crowds"]
fn nothing_is_granted_twice_while_rows_are_removed() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let is_over = Arc::new(AtomicBool::new(false));
        let cleaning = {
            let (is_over, url) = (is_over.clone(), fixture.url());
            tokio::spawn(async move {
                let cleaner = client(&url).await;
                while !is_over.load(Ordering::Relaxed) {
                    cleaner.batch_execute("SELECT palisade.clean(0, 100)").await.expect("it cleans");
                    cleaner.batch_execute("SELECT palisade.sweep()").await.expect("it sweeps");
                }
            })
        };
        let worker = |worker: i64| {
            let url = fixture.url();
            async move {
                let store = client(&url).await;
                let session = open(&store).await;
                let mut tokens = Vec::new();
                for round in 0..60_i64 {
                    // Two workers want each of these, in another order.
                    let (one, two) = (
                        format!("set/{}/a", (worker / 2) * 1000 + round),
                        format!("set/{}/b", (worker / 2) * 1000 + round),
                    );
                    let locks = if worker % 2 == 0 { [&one, &two] } else { [&two, &one] };
                    let sql = format!(
                        "SELECT said, token FROM palisade.request({session}, 0, {round} + 1, ARRAY['{}', '{}'], \
                         '{{4294967295,4294967295}}', '{{NULL,NULL}}', false, true, NULL, NULL)",
                        locks[0], locks[1]
                    );
                    let row = store.query_one(&sql, &[]).await.expect("an answer");
                    if row.get::<_, &str>(0) == "granted" {
                        let token: i64 = row.get(1);
                        for lock in [&one, &two] {
                            tokens.push((lock.clone(), token));
                            let held = format!(
                                "SELECT count(*) FROM palisade.claim WHERE lock = '{lock}' AND session = {session}"
                            );
                            assert_eq!(ask::<i64>(&store, &held).await, 1, "it is granted, and has no row");
                        }
                        let sql = format!("SELECT palisade.give_back({session}, '{one}', {token})");
                        assert_eq!(ask::<Option<String>>(&store, &sql).await, None, "it is granted, and is not held");
                    }
                    let lock = format!("once/{}", round % 7);
                    let reply = ask::<String>(
                        &store,
                        &format!("SELECT palisade.take({session}, 0, {round} + 1000, '{lock}', false, true)"),
                    )
                    .await;
                    if let Ok(token) = reply.parse::<i64>() {
                        let sql = format!("SELECT palisade.give_back({session}, '{lock}', {token})");
                        assert_eq!(ask::<Option<String>>(&store, &sql).await, None, "it is granted, and is not held");
                        tokens.push((lock, token));
                    }
                }
                tokens
            }
        };
        let tokens: Vec<_> = join_all((0..6).map(worker)).await.into_iter().flatten().collect();
        is_over.store(true, Ordering::Relaxed);
        cleaning.await.expect("no panic");
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len(), "a token came twice");
        assert_consistent(&store).await;
    });
}

/// Raising waits for a take in flight, since that has a lower token.
#[test]
fn raised_tokens_are_above_those_of_calls_that_were_under_way() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let session = open(&store).await;
        store.batch_execute("INSERT INTO palisade.lock (name, token) VALUES ('there', 1)").await.expect("a row");
        for lock in ["new", "there"] {
            let under_way = client(&fixture.url()).await;
            let take = format!("BEGIN; SELECT palisade.take({session}, 0, 1, '{lock}', true, true)");
            under_way.batch_execute(&take).await.expect("it is taken");
            let raising = client(&fixture.url()).await;
            let raising =
                tokio::spawn(async move { raising.batch_execute("SELECT palisade.raise_tokens(1000000)").await });
            let waits =
                "SELECT count(*) FROM pg_locks l WHERE NOT l.granted AND l.relation = 'palisade.lock'::regclass";
            until("raising tokens waits for the call that is under way", async || {
                assert!(!raising.is_finished(), "it does not wait for a call that is under way: {lock}");
                ask::<i64>(&store, waits).await > 0
            })
            .await;
            under_way.batch_execute("COMMIT").await.expect("it is taken");
            let error = raising.await.expect("no panic").expect_err("a lower token is held");
            assert_eq!(error.code().map(|code| code.code()), Some("PL001"), "{error}");
            let sql =
                format!("SELECT palisade.give_back({session}, name, token) FROM palisade.lock WHERE name = '{lock}'");
            assert_eq!(ask::<Option<String>>(&store, &sql).await, None);
        }
        store.batch_execute("SELECT palisade.raise_tokens(1000000)").await.expect("nothing is held");
        // All tokens are above it, and no two are the same, since a client identifies its grants by them.
        let mut tokens = Vec::new();
        for (number, lock) in ["new", "there", "newer", "newest"].iter().enumerate() {
            let sql = format!("SELECT palisade.take({session}, 0, {}, '{lock}', true, true)::bigint", number + 10);
            tokens.push(ask::<i64>(&store, &sql).await);
        }
        assert!(tokens.iter().all(|token| *token > 1_000_000), "{tokens:?}");
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), 4, "{tokens:?}");
        for above in ["0", "-1", "NULL", "4503599627370497", "9007199254740991"] {
            let error =
                store.batch_execute(&format!("SELECT palisade.raise_tokens({above})")).await.expect_err(above);
            assert!(error.as_db_error().is_some_and(|error| error.message().contains("2^52")), "{above}: {error:?}");
        }
    });
}

/// Each kind of damage, done by hand, is found by the check that is shipped.
#[test]
fn the_check_finds_each_kind_of_damage() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let (alice, bob) = (open(&store).await, open(&store).await);
        request(&store, alice, "lock").await;
        assert_eq!(request(&store, bob, "lock").await, "queued");
        let sql = format!(
            "SELECT palisade.request({alice}, 0, 2, '{{a,b}}', '{{4294967295,1}}', ARRAY[NULL,NULL]::bigint[], true, true, 1000, \
             NULL); SELECT palisade.request({bob}, 0, 2, '{{b}}', '{{1}}', ARRAY[NULL]::bigint[], true, true, NULL, NULL); \
             INSERT INTO palisade.lock (name, token) VALUES ('idle', 1)"
        );
        store.batch_execute(&sql).await.expect("they are granted");
        assert_consistent(&store).await;
        for damage in [
            "UPDATE palisade.lock SET waiting = 0 WHERE name = 'lock'",
            "UPDATE palisade.lock SET waiting = 2 WHERE name = 'lock'",
            "UPDATE palisade.lock SET taken = taken + 1 WHERE name = 'b'",
            "DELETE FROM palisade.lock WHERE name = 'b'",
            "DELETE FROM palisade.claim WHERE lock = 'a'",
            "DELETE FROM palisade.claim WHERE waits",
            "UPDATE palisade.claim SET waits = true, token = NULL WHERE lock = 'a'",
            "UPDATE palisade.claim SET arrival = arrival + 1000000, token = token + 1000000 WHERE lock = 'b'",
            "UPDATE palisade.claim SET arrival = 1, token = 1 WHERE lock = 'a'",
            "UPDATE palisade.claim SET session = 1 WHERE lock = 'lock' AND NOT waits",
            "UPDATE palisade.lock SET taken = 0 WHERE name = 'lock'",
            "UPDATE palisade.claim SET waits = false, arrival = 9, token = 9 WHERE lock = 'lock' AND waits; \
             UPDATE palisade.lock SET token = 9, taken = 2 * taken, waiting = 0 WHERE name = 'lock'",
            "DELETE FROM palisade.session",
            "UPDATE palisade.lock SET taken = 1 WHERE name = 'idle'",
            "UPDATE palisade.claim SET withheld_until = now() WHERE lock = 'lock' AND NOT waits",
            "UPDATE palisade.state SET origin = 'elsewhere'",
            "UPDATE palisade.claim SET need = 0 WHERE waits",
            "UPDATE palisade.claim SET token = NULL WHERE NOT waits",
            "UPDATE palisade.claim SET token = 1 WHERE waits",
            "INSERT INTO palisade.notice (session, said) VALUES (1, 'x')",
            "DELETE FROM palisade.state",
        ] {
            store
                .batch_execute(&format!("BEGIN; {damage}"))
                .await
                .unwrap_or_else(|error| panic!("{damage}: {error}"));
            assert!(ask::<i64>(&store, "SELECT count(*) FROM palisade.check()").await > 0, "{damage}");
            store.batch_execute("ROLLBACK").await.expect("it is repaired");
        }
        for damage in [
            "UPDATE palisade.lock SET waiting = -1",
            "UPDATE palisade.lock SET taken = -1",
            "UPDATE palisade.session SET channel = ''",
        ] {
            assert_eq!(refused(&store, damage).await, "23514", "{damage}");
        }
    });
}
