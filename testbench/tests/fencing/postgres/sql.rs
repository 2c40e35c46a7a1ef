//! The SQL interface for clients of any language: results, messages, and invalid input.

use std::process::Command;

use super::fixture::{ask, play, refused, run, seal, under};

#[test]
fn psql_alone_is_enough() {
    play(async |fixture| {
        let psql = |sql: &str| {
            let mut command = Command::new("psql");
            command.args(["-X", "-q", "-t", "-A", "-v", "SHOW_CONTEXT=never", "-c", sql]).arg(fixture.url());
            let output = palisade_testbench::bounded::output(&mut command).expect("psql");
            String::from_utf8([output.stdout, output.stderr].concat()).expect("text").trim().to_owned()
        };
        assert_eq!(psql("SELECT palisade_fence.seal('orders', 33)"), "0");
        assert_eq!(psql(&under(33, "UPDATE orders SET total = 1 RETURNING total")), "1");
        assert_eq!(psql("SELECT palisade_fence.seal('orders', 34)"), "0");
        insta::assert_snapshot!(psql(&under(33, "UPDATE orders SET total = 2")), @r#"
        ERROR:  token 33 is stale: token 34 has sealed orders
        DETAIL:  {"seen": 34, "token": 33, "resource": "orders"}
        HINT:  Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave token 33 counts lower than the one that gave token 34 (a new file, another engine): palisade tokens raise --above 34 --url ENGINE, then acquire it again.
        "#);
        insta::assert_snapshot!(psql("DELETE FROM orders"), @r#"
        ERROR:  orders is fenced, and no token is shown
        DETAIL:  {"seen": 34, "resource": "orders"}
        HINT:  Acquire the lock, seal (SELECT palisade_fence.seal('orders', …)), then SET LOCAL palisade_fence.token = '…' in this transaction.
        "#);
        assert_eq!(psql("SELECT token, seq FROM palisade_fence.mark('orders')"), "34|0");
    });
}

#[test]
fn a_numbered_write_is_applied_once() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        let add = |seq: u64| {
            under(34, &format!("SET LOCAL palisade_fence.seq = '{seq}'; UPDATE orders SET total = total + 1"))
        };
        run(&client, &add(1)).await;
        assert_eq!(refused(&client, &add(1)).await, "PF004");
        assert_eq!(refused(&client, &add(3)).await, "PF005");
        run(&client, &add(2)).await;
        assert_eq!(refused(&client, &add(1)).await, "PF005");
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "2");
        seal(&client, 34).await;
        assert_eq!(refused(&client, &add(2)).await, "PF004");
        seal(&client, 35).await;
        assert_eq!(ask(&client, "SELECT seq FROM palisade_fence.mark('orders')").await, "0");
    });
}

#[test]
fn a_number_can_be_shown_when_one_is_admitted() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        let write = "BEGIN; SELECT palisade_fence.admit('orders', 34, 1, 7); UPDATE orders SET total = total + 1; \
                     UPDATE orders SET total = total + 1; SELECT palisade_fence.outcome('orders', 'two'); COMMIT";
        run(&client, write).await;
        assert_eq!(refused(&client, write).await, "PF004");
        let stored = "SELECT seq || author::text || convert_from(outcome, 'UTF8') FROM palisade_fence.mark('orders')";
        assert_eq!(ask(&client, stored).await, "17two");
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "2");
    });
}

#[test]
fn a_numbered_write_is_a_whole_transaction_with_its_savepoints() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        let write = "SET LOCAL palisade_fence.seq = '1'; SAVEPOINT a; UPDATE orders SET total = 1; ROLLBACK TO a; \
                     UPDATE orders SET total = 2; INSERT INTO orders VALUES (43, 2); \
                     SELECT palisade_fence.outcome('orders', 'done')";
        run(&client, &under(34, write)).await;
        assert_eq!(ask(&client, "SELECT sum(total) FROM orders").await, "4");
        assert_eq!(
            ask(&client, "SELECT convert_from(outcome, 'UTF8') FROM palisade_fence.mark('orders')").await,
            "done"
        );
        let rolled_back = "BEGIN; SET LOCAL palisade_fence.token = '34'; SET LOCAL palisade_fence.seq = '2'; \
                           UPDATE orders SET total = 9; ROLLBACK";
        run(&client, rolled_back).await;
        assert_eq!(ask(&client, "SELECT seq FROM palisade_fence.mark('orders')").await, "1");
    });
}

#[test]
fn a_read_is_admitted_like_a_write() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        let read = |token: u64| {
            format!("BEGIN; SELECT palisade_fence.admit('orders', {token}); SELECT total FROM orders; COMMIT")
        };
        assert_eq!(refused(&client, &read(33)).await, "PF001");
        assert_eq!(refused(&client, &read(35)).await, "PF002");
        assert_eq!(ask(&client, &read(34)).await, "0");
    });
}

#[test]
fn bad_input_has_a_code_and_changes_nothing() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        let long = format!("SELECT palisade_fence.seal('{}', 1)", "x".repeat(513));
        for sql in [
            "SELECT palisade_fence.seal('orders', 0)",
            "SELECT palisade_fence.seal('orders', -1)",
            "SELECT palisade_fence.seal('orders', NULL)",
            "SELECT palisade_fence.seal('orders', 9007199254740992)",
            "SELECT palisade_fence.seal('', 1)",
            "SELECT palisade_fence.seal(NULL, 1)",
            r"SELECT palisade_fence.seal(E'a\nb', 1)",
            "SELECT palisade_fence.protect('orders', '')",
            &long,
        ] {
            assert_eq!(refused(&client, sql).await, "PF006", "{sql}");
        }
        for token in ["x", "-1", "0", "034", " 34", "34.0", "1e3", "9007199254740992", "99999999999999999999999"] {
            let sql = format!("BEGIN; SET LOCAL palisade_fence.token = '{token}'; UPDATE orders SET total = 9");
            assert_eq!(refused(&client, &sql).await, "PF006", "{token}");
        }
        for seq in ["x", "-1", "1.5"] {
            let sql = under(34, &format!("SET LOCAL palisade_fence.seq = '{seq}'; UPDATE orders SET total = 9"));
            assert_eq!(refused(&client, &sql).await, "PF006", "{seq}");
        }
        assert_eq!(refused(&client, "SELECT palisade_fence.admit(NULL, 34)").await, "PF006");
        for numbered in ["'orders', NULL, 1, 7", "'orders', 0, 1, 7", "NULL, 34, 1, 7"] {
            let sql = format!("SELECT palisade_fence.admit_write({numbered}, '')");
            assert!(["PF003", "PF006"].contains(&&*refused(&client, &sql).await), "{sql}");
        }
        for seq in ["0", "2", "-1", "NULL"] {
            let sql = format!("SELECT palisade_fence.admit_write('orders', 34, {seq}, 7, '')");
            assert_eq!(refused(&client, &sql).await, "PF005", "{sql}");
        }
        assert_eq!(refused(&client, "SELECT palisade_fence.outcome('orders', '')").await, "PF008");
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "0");
        assert_eq!(ask(&client, "SELECT token FROM palisade_fence.mark('orders')").await, "34");
    });
}

#[test]
fn a_token_that_was_shown_for_one_transaction_is_gone_in_the_next() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        run(&client, &under(34, "UPDATE orders SET total = 1")).await;
        assert_eq!(refused(&client, "UPDATE orders SET total = 2").await, "PF003");
        // As after a pooler has given the connection to another client.
        run(&client, "SET palisade_fence.token = '34'").await;
        run(&client, "DISCARD ALL").await;
        assert_eq!(refused(&client, "UPDATE orders SET total = 2").await, "PF003");
    });
}

#[test]
fn installing_again_keeps_marks_and_a_newer_version_is_left_alone() {
    play(async |fixture| {
        let mut client = fixture.client().await;
        seal(&client, 34).await;
        palisade_fence::postgres::install(&mut client).await.expect("it is installed again");
        assert_eq!(ask(&client, "SELECT token FROM palisade_fence.mark('orders')").await, "34");
        run(
            &client,
            "CREATE OR REPLACE FUNCTION palisade_fence.version() RETURNS integer LANGUAGE sql AS 'SELECT 5'",
        )
        .await;
        let error = palisade_fence::postgres::install(&mut client).await.expect_err("a newer one is there");
        assert!(error.to_string().contains("a newer palisade_fence (version 5)"), "{error}");
        assert_eq!(ask(&client, "SELECT palisade_fence.version()").await, "5");
    });
}

/// A seal that is undone after PREPARE TRANSACTION leaves no admission, not even on its own connection.
#[test]
fn a_seal_that_is_undone_after_it_was_prepared_admits_nothing() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 33).await;
        run(&client, "BEGIN").await;
        seal(&client, 35).await;
        run(&client, "SET palisade_fence.token = '35'").await;
        run(&client, "UPDATE orders SET total = 1").await;
        run(&client, "PREPARE TRANSACTION 'undone'").await;
        run(&client, "ROLLBACK PREPARED 'undone'").await;
        assert_eq!(refused(&client, "UPDATE orders SET total = 100").await, "PF002");
        run(&client, &under(33, "UPDATE orders SET total = 2")).await;
    });
}
