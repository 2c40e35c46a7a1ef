//! Every way in which a protected table can be written.

use tokio_postgres::Client;

use super::fixture::{ask, play, refused, run, seal, under};

/// Statements that are refused without a token, with an old one, and with one that has not sealed, and accepted with the
/// newest.
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
    play(async |fixture| {
        let client = fixture.client().await;
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
    play(async |fixture| {
        let client = fixture.client().await;
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
    play(async |fixture| {
        let client = fixture.client().await;
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

/// Every table here has one row, so that every refused statement would have changed something.
async fn has_rows(client: &Client, tables: &[&str]) {
    for table in tables {
        assert_eq!(ask(client, &format!("SELECT count(*) FROM ONLY {table}")).await, "1", "{table}");
    }
}

#[test]
fn truncate_of_a_partition_is_fenced_whenever_it_was_made() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, "CREATE TABLE parts (id int, n int) PARTITION BY RANGE (id)").await;
        run(&client, "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)").await;
        run(&client, "SELECT palisade_fence.protect('parts', 'orders')").await;
        run(&client, "CREATE TABLE later PARTITION OF parts FOR VALUES FROM (100) TO (200)").await;
        run(&client, "CREATE TABLE joined (id int, n int)").await;
        run(&client, "ALTER TABLE parts ATTACH PARTITION joined FOR VALUES FROM (200) TO (300)").await;
        let nested = "CREATE TABLE middle PARTITION OF parts FOR VALUES FROM (300) TO (400) PARTITION BY RANGE (id); \
                      CREATE TABLE inner_one PARTITION OF middle FOR VALUES FROM (300) TO (350)";
        run(&client, nested).await;
        seal(&client, 34).await;
        let tables = ["low", "later", "joined", "inner_one"];
        run(&client, &under(34, "INSERT INTO parts VALUES (1, 1), (101, 1), (201, 1), (301, 1)")).await;
        for table in tables {
            for sql in [format!("TRUNCATE {table}"), format!("COPY {table} FROM PROGRAM 'echo 1,1' (FORMAT csv)")] {
                assert_eq!(refused(&client, &sql).await, "PF003", "{sql}");
                assert_eq!(refused(&client, &under(33, &sql)).await, "PF001", "{sql}");
            }
        }
        has_rows(&client, &tables).await;
        run(&client, &under(34, "TRUNCATE low, inner_one")).await;
        // A detached partition is a separate table, and stays fenced.
        run(&client, "ALTER TABLE parts DETACH PARTITION later").await;
        is_fenced(&client, &["UPDATE later SET n = 2", "TRUNCATE later"]).await;
        // Made a part of another table, it is fenced when it is written through that one.
        run(&client, "CREATE TABLE other (id int, n int); ALTER TABLE later INHERIT other").await;
        run(&client, &under(34, "INSERT INTO later VALUES (5, 5)")).await;
        is_fenced(&client, &["UPDATE other SET n = 3", "TRUNCATE other"]).await;
        assert_eq!(ask(&client, "SELECT count(*) FROM palisade_fence.check()").await, "0");
    });
}

#[test]
fn a_child_is_fenced_whenever_it_was_made() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, "CREATE TABLE whole (id int, n int); CREATE TABLE child () INHERITS (whole)").await;
        run(&client, "SELECT palisade_fence.protect('whole', 'orders')").await;
        run(&client, "CREATE TABLE grandchild () INHERITS (child); CREATE TABLE adopted (id int, n int)").await;
        run(&client, "ALTER TABLE adopted INHERIT whole").await;
        // One that had no children when it was protected.
        run(&client, "CREATE TABLE first_child () INHERITS (orders)").await;
        seal(&client, 34).await;
        for table in ["child", "grandchild", "adopted", "first_child"] {
            is_fenced(
                &client,
                &[
                    &format!("INSERT INTO {table} VALUES (1, 1)"),
                    &format!("UPDATE {table} SET id = 2"),
                    &format!("COPY {table} FROM PROGRAM 'echo 50,7' (FORMAT csv)"),
                    &format!("DELETE FROM {table} WHERE id = 2"),
                    &format!("TRUNCATE {table}"),
                ],
            )
            .await;
        }
        is_fenced(
            &client,
            &["UPDATE whole SET n = 1", "UPDATE ONLY whole SET n = 1", "TRUNCATE whole", "TRUNCATE orders"],
        )
        .await;
        run(&client, "SELECT palisade_fence.unprotect('whole')").await;
        run(&client, "TRUNCATE child, grandchild, adopted").await;
    });
}

#[test]
fn a_table_that_is_renamed_and_created_again_is_fenced_by_both_names() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        run(&client, "CREATE TABLE orders_new (LIKE orders INCLUDING ALL)").await;
        run(&client, "ALTER TABLE orders RENAME TO orders_old; ALTER TABLE orders_new RENAME TO orders").await;
        is_fenced(&client, &["INSERT INTO orders VALUES (1, 1)", "TRUNCATE orders", "TRUNCATE orders_old"]).await;
        run(&client, "CREATE SCHEMA archive; ALTER TABLE orders SET SCHEMA archive").await;
        run(&client, "CREATE TABLE orders AS SELECT 1 AS id, 2 AS total").await;
        is_fenced(&client, &["UPDATE orders SET total = 3", "TRUNCATE archive.orders"]).await;
        run(&client, "DROP TABLE orders; SELECT 1 AS id INTO orders").await;
        is_fenced(&client, &["TRUNCATE orders"]).await;
        assert_eq!(ask(&client, "SELECT count(*) FROM palisade_fence.check()").await, "0");
    });
}

/// PostgreSQL reports the schema that was renamed, and none of its tables.
#[test]
fn a_table_that_comes_under_a_protected_name_with_its_schema_is_fenced() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, "CREATE SCHEMA live; CREATE SCHEMA next; CREATE SCHEMA other").await;
        for table in ["live.jobs", "next.jobs", "other.jobs"] {
            run(&client, &format!("CREATE TABLE {table} AS SELECT 1 AS id, 0 AS n")).await;
        }
        run(&client, "SELECT palisade_fence.protect('live.jobs', 'orders')").await;
        seal(&client, 34).await;
        run(&client, "ALTER SCHEMA live RENAME TO old; ALTER SCHEMA next RENAME TO live").await;
        is_fenced(&client, &["UPDATE live.jobs SET n = 1", "TRUNCATE live.jobs", "UPDATE old.jobs SET n = 1"]).await;
        // The name that the protected table had after the swap is known, too.
        run(&client, "DROP TABLE old.jobs; ALTER TABLE other.jobs SET SCHEMA old").await;
        is_fenced(&client, &["UPDATE old.jobs SET n = 1", "TRUNCATE old.jobs"]).await;
        assert_eq!(problems(&client, "%").await, "NULL");
    });
}

/// Returns what `check()` reports for a table, or for all.
async fn problems(client: &Client, table: &str) -> String {
    let sql = "SELECT string_agg(problem, '; ') FROM palisade_fence.check() WHERE name LIKE";
    ask(client, &format!("{sql} '{table}'")).await
}

#[test]
fn changes_that_triggers_cannot_follow_are_refused_or_found() {
    play(async |fixture| {
        let client = fixture.client().await;
        // As if the fence was installed by a role that is not a superuser.
        run(&client, "DROP EVENT TRIGGER palisade_fence").await;
        assert_eq!(problems(&client, "%").await, "NULL");
        run(&client, "CREATE TABLE parts (id int, n int) PARTITION BY RANGE (id)").await;
        run(&client, "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)").await;
        run(&client, "CREATE TABLE whole (id int); CREATE TABLE child () INHERITS (whole)").await;
        for table in ["parts", "whole"] {
            for call in [format!("protect('{table}', 'orders')"), format!("protect_rows('{table}')")] {
                assert_eq!(refused(&client, &format!("SELECT palisade_fence.{call}")).await, "PF008", "{call}");
            }
        }
        // Each alone can be protected, and is then fenced by whichever name it is written.
        run(&client, "SELECT palisade_fence.protect('low', 'orders')").await;
        seal(&client, 34).await;
        is_fenced(&client, &["INSERT INTO parts VALUES (1, 1)", "TRUNCATE low", "TRUNCATE parts"]).await;
        assert_eq!(problems(&client, "%").await, "NULL");

        run(&client, "CREATE TABLE born () INHERITS (orders)").await;
        assert_eq!(problems(&client, "%.born").await, "it is a part of public.orders, and not protected");
        assert_eq!(problems(&client, "%.orders").await, "partitions or children that are made later are not fenced");
        run(&client, "DROP TABLE born; ALTER TABLE orders RENAME TO orders_old").await;
        assert_eq!(problems(&client, "%.orders").await, "there is no such table any more: it was renamed or dropped");
        run(&client, "CREATE TABLE orders (id int)").await;
        let unprotected = "a protected table had this name, and this one is not protected";
        assert_eq!(problems(&client, "%.orders").await, unprotected);
        run(&client, "SELECT palisade_fence.protect('orders', 'orders')").await;
        assert_eq!(problems(&client, "%").await, "NULL");
        run(&client, "DROP TABLE orders").await;
        run(&client, "SELECT palisade_fence.unprotect('public.orders')").await;
        assert_eq!(problems(&client, "%").await, "NULL");

        run(&client, "ALTER TABLE low DISABLE TRIGGER palisade_fence_row").await;
        assert_eq!(problems(&client, "%.low").await, "its trigger palisade_fence_row is disabled");
        run(&client, "ALTER TABLE low ENABLE REPLICA TRIGGER palisade_fence_row").await;
        assert_eq!(problems(&client, "%.low").await, "its trigger palisade_fence_row is disabled");
        run(&client, "ALTER TABLE low ENABLE TRIGGER ALL; ALTER TABLE orders_old SET UNLOGGED").await;
        assert_eq!(problems(&client, "%").await, "it is UNLOGGED: a crash empties it");
    });
}

#[test]
fn a_table_whose_rows_are_not_kept_here_is_refused() {
    play(async |fixture| {
        let client = fixture.client().await;
        let made = "CREATE UNLOGGED TABLE fleeting (id int); CREATE TEMP TABLE mine (id int); CREATE VIEW seen AS SELECT 1; \
                    CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; \
                    CREATE FOREIGN TABLE elsewhere (id int) SERVER files OPTIONS (filename '/dev/null')";
        run(&client, made).await;
        for table in ["fleeting", "mine", "seen", "elsewhere"] {
            let protect = format!("SELECT palisade_fence.protect('{table}', 'orders')");
            assert_eq!(refused(&client, &protect).await, "PF008", "{table}");
        }
        // A table that would become a partition of a protected table is refused too.
        for sql in ["CREATE UNLOGGED TABLE part () INHERITS (orders)", "CREATE TEMP TABLE part () INHERITS (orders)"]
        {
            assert_eq!(refused(&client, sql).await, "PF008", "{sql}");
        }
        // A partition with another mark keeps it.
        run(&client, "CREATE TABLE whole (id int); CREATE TABLE child () INHERITS (whole)").await;
        run(&client, "SELECT palisade_fence.protect('child', 'another')").await;
        assert_eq!(refused(&client, "SELECT palisade_fence.protect('whole', 'orders')").await, "PF008");
        assert_eq!(refused(&client, "TRUNCATE child").await, "PF003");
    });
}

#[test]
fn rules_and_cascades_into_partitions_are_fenced() {
    play(async |fixture| {
        let client = fixture.client().await;
        let made = "CREATE TABLE customers (id int PRIMARY KEY); INSERT INTO customers VALUES (1), (101), (102); \
                    CREATE TABLE parts (id int REFERENCES customers ON DELETE CASCADE ON UPDATE CASCADE, n int) PARTITION BY RANGE (id); \
                    CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100); \
                    CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200); INSERT INTO parts VALUES (1, 1), (101, 1); \
                    SELECT palisade_fence.protect('parts', 'orders'); CREATE TABLE inbox (id int); \
                    CREATE RULE forward AS ON INSERT TO inbox DO INSTEAD INSERT INTO orders VALUES (NEW.id, 0)";
        run(&client, made).await;
        seal(&client, 34).await;
        is_fenced(
            &client,
            &[
                "INSERT INTO inbox VALUES (77)",
                "UPDATE customers SET id = 103 WHERE id = 101",
                "DELETE FROM customers WHERE id = 1",
                "TRUNCATE customers CASCADE",
            ],
        )
        .await;
    });
}

#[test]
fn a_part_is_fenced_when_it_is_written_through_the_whole() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, "CREATE TABLE whole (id int, n int); CREATE TABLE part () INHERITS (whole)").await;
        run(&client, "SELECT palisade_fence.protect('part', 'orders')").await;
        seal(&client, 34).await;
        is_fenced(&client, &["INSERT INTO part VALUES (1, 1)", "UPDATE whole SET n = 2", "DELETE FROM whole"]).await;
        run(&client, "INSERT INTO whole VALUES (2, 2)").await;
    });
}

#[test]
fn a_protected_table_cannot_become_a_part_of_another_unseen() {
    play(async |fixture| {
        let client = fixture.client().await;
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
fn an_admission_of_another_transaction_or_token_admits_nothing() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, "CREATE TABLE whole (id int, n int); CREATE TABLE part () INHERITS (whole)").await;
        run(&client, "SELECT palisade_fence.protect('part', 'orders'); SELECT palisade_fence.seal('orders', 34)")
            .await;
        run(&client, &under(34, "INSERT INTO part VALUES (1, 1)")).await;
        let twice = "UPDATE part SET n = 2; SET LOCAL palisade_fence.token = '33'; UPDATE whole SET n = 3";
        assert_eq!(refused(&client, &under(34, twice)).await, "PF001");
        // Nor does an admission for a resource and a token that make the same text.
        run(&client, "CREATE TABLE named (id int); CREATE TABLE named_part () INHERITS (named)").await;
        run(&client, "SELECT palisade_fence.protect('named_part', 'x:orders')").await;
        run(&client, "SELECT palisade_fence.seal('x:orders', 34)").await;
        let mixed =
            "INSERT INTO named_part VALUES (1); SET LOCAL palisade_fence.token = '34:x'; UPDATE whole SET n = 3";
        assert_eq!(refused(&client, &under(34, mixed)).await, "PF006");
        run(&client, "SET palisade_fence.passed = '1:34:orders'").await;
        assert_eq!(refused(&client, "UPDATE whole SET n = 3").await, "PF003");
    });
}

/// A resource's name and a token can have colons, as the text of an admission does.
#[test]
fn an_admission_to_one_resource_is_none_to_another() {
    play(async |fixture| {
        let client = fixture.client().await;
        let seals: u64 = ask(&client, "SELECT last_value FROM palisade_fence.seals").await.parse().expect("a number");
        // After two seals the admission for this resource would be that for `orders` under the token '34:N'.
        let named = format!("{}:orders", seals + 2);
        seal(&client, 35).await;
        run(&client, "CREATE TABLE named (id int)").await;
        run(&client, &format!("SELECT palisade_fence.protect('named', '{named}')")).await;
        run(&client, &format!("SELECT palisade_fence.seal('{named}', 34)")).await;
        run(&client, &under(34, "INSERT INTO named VALUES (1)")).await;
        let mixed =
            format!("BEGIN; SET LOCAL palisade_fence.token = '34:{}'; UPDATE orders SET total = 9", seals + 2);
        assert_eq!(refused(&client, &mixed).await, "PF006");
    });
}

#[test]
fn an_unprotected_table_is_writable_again() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, "SELECT palisade_fence.protect('orders', 'orders')").await;
        run(&client, "SELECT palisade_fence.unprotect('orders')").await;
        run(&client, "DELETE FROM orders").await;
        assert_eq!(ask(&client, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass").await, "0");
    });
}
