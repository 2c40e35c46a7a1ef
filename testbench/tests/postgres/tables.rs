//! Every way in which a protected table can be written.

use tokio_postgres::Client;

use crate::scene::{ask, play, refused, run, seal, under};

/// Everything here is refused without a token, under an old one, and under one that has not sealed; and goes through
/// under the newest.
async fn is_fenced(client: &Client, statements: &[&str]) {
    for statement in statements {
        assert_eq!(refused(client, statement).await, "PF003", "{statement}");
        assert_eq!(refused(client, &under(33, statement)).await, "PF001", "{statement}");
        assert_eq!(refused(client, &under(35, statement)).await, "PF002", "{statement}");
        run(client, &under(34, statement)).await;
    }
}

#[test]
fn every_statement_that_writes_is_fenced() {
    play(async |scene| {
        let client = scene.client().await;
        seal(&client, 34).await;
        is_fenced(
            &client,
            &[
                "INSERT INTO orders VALUES (43, 1)",
                "INSERT INTO orders VALUES (43, 1) ON CONFLICT (id) DO UPDATE SET total = 2",
                "INSERT INTO orders VALUES (43, 1) ON CONFLICT DO NOTHING",
                "UPDATE orders SET total = 3",
                "UPDATE orders SET total = 3 WHERE id = 0",
                "MERGE INTO orders USING (VALUES (43)) v (id) ON orders.id = v.id WHEN MATCHED THEN UPDATE SET total = 4",
                "WITH gone AS (DELETE FROM orders WHERE id = 43 RETURNING 1) SELECT count(*) FROM gone",
                "DELETE FROM orders WHERE id = 0",
                "COPY orders FROM PROGRAM 'echo 50,7' (FORMAT csv)",
                "TRUNCATE orders",
            ],
        )
        .await;
        assert_eq!(ask(&client, "SELECT count(*) FROM orders").await, "0");
    });
}

#[test]
fn writes_through_a_view_and_by_a_foreign_key_are_fenced() {
    play(async |scene| {
        let client = scene.client().await;
        run(&client, "CREATE VIEW seen AS SELECT * FROM orders").await;
        run(&client, "CREATE TABLE customers (id int PRIMARY KEY); INSERT INTO customers VALUES (42)").await;
        let key = "ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES customers ON DELETE CASCADE";
        run(&client, key).await;
        seal(&client, 34).await;
        is_fenced(&client, &["UPDATE seen SET total = 1", "DELETE FROM customers", "TRUNCATE customers CASCADE"])
            .await;
        assert_eq!(ask(&client, "SELECT count(*) FROM orders").await, "0");
    });
}

#[test]
fn a_partitioned_table_is_fenced_by_whichever_name_it_is_written() {
    play(async |scene| {
        let client = scene.client().await;
        run(&client, "CREATE TABLE parts (id int, n int) PARTITION BY RANGE (id)").await;
        run(&client, "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)").await;
        run(&client, "SELECT palisade_fence.protect('parts', 'orders')").await;
        run(&client, "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200)").await;
        seal(&client, 34).await;
        is_fenced(
            &client,
            &[
                "INSERT INTO parts VALUES (1, 1), (101, 1)",
                "INSERT INTO low VALUES (2, 1)",
                "INSERT INTO high VALUES (102, 1)",
                "UPDATE parts SET id = 103 WHERE id = 1",
                "UPDATE high SET n = 2",
                "DELETE FROM low",
                "TRUNCATE parts",
            ],
        )
        .await;
    });
}

#[test]
fn a_part_is_fenced_when_it_is_written_through_the_whole() {
    play(async |scene| {
        let client = scene.client().await;
        run(&client, "CREATE TABLE whole (id int, n int); CREATE TABLE part () INHERITS (whole)").await;
        run(&client, "SELECT palisade_fence.protect('part', 'orders')").await;
        seal(&client, 34).await;
        is_fenced(&client, &["INSERT INTO part VALUES (1, 1)", "UPDATE whole SET n = 2", "DELETE FROM whole"]).await;
        run(&client, "INSERT INTO whole VALUES (2, 2)").await;
    });
}

#[test]
fn a_protected_table_cannot_become_a_part_of_another_unseen() {
    play(async |scene| {
        let client = scene.client().await;
        run(&client, "CREATE TABLE parts (id int NOT NULL, total int NOT NULL) PARTITION BY RANGE (id)").await;
        let attach = "ALTER TABLE parts ATTACH PARTITION orders FOR VALUES FROM (0) TO (100)";
        let error = client.batch_execute(attach).await.expect_err("it is protected").to_string();
        let error = format!("{error} {:?}", client.batch_execute(attach).await);
        assert!(error.contains("palisade_fence_alone"), "{error}");
        run(&client, "SELECT palisade_fence.unprotect('orders')").await;
        run(&client, attach).await;
        run(&client, "SELECT palisade_fence.protect('orders', 'orders')").await;
        seal(&client, 34).await;
        is_fenced(&client, &["UPDATE parts SET total = 1", "UPDATE orders SET total = 2"]).await;
    });
}

#[test]
fn a_note_of_another_transaction_or_token_lets_nothing_through() {
    play(async |scene| {
        let client = scene.client().await;
        run(&client, "CREATE TABLE whole (id int, n int); CREATE TABLE part () INHERITS (whole)").await;
        run(&client, "SELECT palisade_fence.protect('part', 'orders'); SELECT palisade_fence.seal('orders', 34)")
            .await;
        run(&client, &under(34, "INSERT INTO part VALUES (1, 1)")).await;
        let twice = "UPDATE part SET n = 2; SET LOCAL palisade.token = '33'; UPDATE whole SET n = 3";
        assert_eq!(refused(&client, &under(34, twice)).await, "PF001");
        run(&client, "SET palisade.passed = '1:34:orders'").await;
        assert_eq!(refused(&client, "UPDATE whole SET n = 3").await, "PF003");
    });
}

#[test]
fn unprotect_gives_the_table_back() {
    play(async |scene| {
        let client = scene.client().await;
        run(&client, "SELECT palisade_fence.protect('orders', 'orders')").await;
        run(&client, "SELECT palisade_fence.unprotect('orders')").await;
        run(&client, "DELETE FROM orders").await;
        assert_eq!(ask(&client, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass").await, "0");
    });
}
