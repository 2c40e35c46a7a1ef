//! Rows with separate marks.

use super::fixture::{ask, play, refused, run, under};

const TABLE: &str = "CREATE TABLE jobs (id int PRIMARY KEY, owner int, state text, twice int GENERATED ALWAYS AS (id * 2) STORED); \
                     INSERT INTO jobs VALUES (1, 7, 'new'), (2, 7, 'new'), (3, 8, 'new'); \
                     SELECT palisade_fence.protect_rows('jobs')";

#[test]
fn a_row_is_sealed_then_changed_and_nothing_older_changes_it() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, TABLE).await;
        let change = |token: u64| under(token, "UPDATE jobs SET state = 'done' WHERE id = 1");
        assert_eq!(refused(&client, "UPDATE jobs SET state = 'done' WHERE id = 1").await, "PF003");
        assert_eq!(refused(&client, &change(33)).await, "PF002");
        assert_eq!(ask(&client, "SELECT palisade_fence.seal_rows('jobs', 'id', '1', 33)").await, "1");
        run(&client, &change(33)).await;
        assert_eq!(ask(&client, "SELECT palisade_fence.seal_rows('jobs', 'id', '1', 34)").await, "1");
        assert_eq!(refused(&client, &change(33)).await, "PF001");
        assert_eq!(refused(&client, &change(35)).await, "PF002");
        let late = client.batch_execute("SELECT palisade_fence.seal_rows('jobs', 'id', '1', 33)").await;
        let late = late.expect_err("it is sealed with 34").as_db_error().expect("the server's").clone();
        assert_eq!(late.code().code(), "PF007");
        assert_eq!(late.message(), "token 33 cannot seal \"jobs id=1\": token 34 has sealed it");
        assert_eq!(late.detail(), Some(r#"{"seen": 34, "token": 33, "resource": "jobs id=1"}"#));
        assert_eq!(refused(&client, &under(33, "UPDATE jobs SET palisade_token = 90 WHERE id = 1")).await, "PF001");
        run(&client, &under(34, "UPDATE jobs SET palisade_token = 1, state = 'kept' WHERE id = 1")).await;
        assert_eq!(ask(&client, "SELECT palisade_token FROM jobs WHERE id = 1").await, "34");
    });
}

#[test]
fn rows_have_separate_marks_and_can_be_sealed_together() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, TABLE).await;
        assert_eq!(ask(&client, "SELECT palisade_fence.seal_rows('jobs', 'owner', '7', 33)").await, "2");
        assert_eq!(ask(&client, "SELECT palisade_fence.seal_rows('jobs', 'id', '3', 99)").await, "1");
        assert_eq!(ask(&client, "SELECT palisade_fence.seal_rows('jobs', 'id', '4', 99)").await, "0");
        run(&client, &under(33, "UPDATE jobs SET state = 'done' WHERE owner = 7")).await;
        assert_eq!(refused(&client, &under(33, "UPDATE jobs SET state = 'done'")).await, "PF001");
        run(&client, &under(50, "INSERT INTO jobs VALUES (4, 8, 'new')")).await;
        assert_eq!(refused(&client, &under(49, "UPDATE jobs SET state = 'done' WHERE id = 4")).await, "PF001");
        let upsert = "INSERT INTO jobs VALUES (4, 8, 'x') ON CONFLICT (id) DO UPDATE SET state = 'x'";
        assert_eq!(refused(&client, &under(49, upsert)).await, "PF001");
        assert_eq!(refused(&client, &under(51, upsert)).await, "PF002");
    });
}

#[test]
fn changes_that_would_lose_a_mark_are_refused() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, TABLE).await;
        run(&client, "SELECT palisade_fence.seal_rows('jobs', 'id', '1', 33)").await;
        for sql in ["DELETE FROM jobs WHERE id = 1", "TRUNCATE jobs"] {
            assert_eq!(refused(&client, &under(33, sql)).await, "PF008", "{sql}");
        }
    });
}

#[test]
fn rows_of_partitions_and_children_are_fenced_whenever_they_were_made() {
    play(async |fixture| {
        let client = fixture.client().await;
        let made = "CREATE TABLE parts (id int, n int) PARTITION BY RANGE (id); \
                    CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100); \
                    CREATE TABLE whole (id int, n int); CREATE TABLE child () INHERITS (whole); \
                    SELECT palisade_fence.protect_rows('parts'), palisade_fence.protect_rows('whole'); \
                    CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200); \
                    CREATE TABLE later () INHERITS (whole)";
        run(&client, made).await;
        for (table, id) in [("low", 1), ("high", 101), ("child", 1), ("later", 1)] {
            run(&client, &under(33, &format!("INSERT INTO {table} (id, n) VALUES ({id}, 1)"))).await;
            let sealing = format!("SELECT palisade_fence.seal_rows('{table}', 'id', '{id}', 34)");
            assert_eq!(ask(&client, &sealing).await, "1");
            let change = format!("UPDATE {table} SET n = 2");
            assert_eq!(refused(&client, &change).await, "PF003", "{table}");
            assert_eq!(refused(&client, &under(33, &change)).await, "PF001", "{table}");
            run(&client, &under(34, &change)).await;
            for forgets in [format!("TRUNCATE {table}"), format!("DELETE FROM {table}")] {
                assert_eq!(refused(&client, &under(34, &forgets)).await, "PF008", "{forgets}");
            }
        }
    });
}

#[test]
fn a_null_key_is_refused() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, TABLE).await;
        for arguments in ["'id', NULL, 33", "'id', '1', NULL", "'id', '1', 0"] {
            let error = client.batch_execute(&format!("SELECT palisade_fence.seal_rows('jobs', {arguments})")).await;
            let error = error.expect_err("nothing can be sealed so");
            assert_eq!(error.code().expect("a code").code(), "PF006", "{error:?}");
            let reply = error.as_db_error().expect("the server's").message().to_owned();
            let expected =
                if arguments.contains("NULL, 33") { "whose id is NULL cannot be sealed" } else { "is no token" };
            assert!(reply.contains(expected), "{reply}");
        }
    });
}
