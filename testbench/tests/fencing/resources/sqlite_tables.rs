//! Protection of SQLite tables: against which changes, and how missing protection is noticed.

use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_fence::sqlite::{self, Sqlite};
use palisade_fence::{Error, ErrorKind, Sealed, Token};
use palisade_testbench::bounded::output;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tempfile::TempDir;

use super::check;

struct Shop {
    folder: TempDir,
    plain: Connection,
}

impl Shop {
    /// A database in which a plain client has run these statements.
    fn new(sql: &str) -> Shop {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = Connection::open(folder.path().join("shop.db")).expect("it can be made");
        plain.execute_batch(sql).expect("it can be written");
        Shop { folder, plain }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    async fn open(&self, resource: &str) -> Sqlite {
        Sqlite::open(self.path(), resource).await.expect("it is there")
    }

    /// Asserts that a trigger refuses each of these statements, and that the tables are unchanged.
    fn refuses(&self, changes: &[&str]) {
        let before = self.dump();
        for change in changes {
            let error = self.plain.execute_batch(change).expect_err(change);
            assert!(error.to_string().contains("palisade: "), "{change}: {error}");
            if !self.plain.is_autocommit() {
                self.plain.execute_batch("ROLLBACK").expect("it can be undone");
            }
            assert_eq!(self.dump(), before, "{change}");
        }
    }

    fn dump(&self) -> String {
        let dumped = output(Command::new("sqlite3").arg(self.path()).arg(".dump"));
        String::from_utf8(dumped.expect("sqlite3 is not installed: run scripts/setup").stdout).expect("text")
    }

    fn run(&self, sql: &str) {
        self.plain.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// Asserts a permanent refusal with these words that has changed nothing.
#[track_caller]
fn misuse<T>(result: Result<T, Error>, words: &[&str]) {
    let Err(error) = result else { panic!("it must be refused") };
    assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error} ({:?})", error.kind());
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

const CHANGES: [&str; 3] = ["INSERT INTO {} VALUES (2, 20)", "UPDATE {} SET total = 0", "DELETE FROM {}"];

fn changes(table: &str) -> Vec<String> {
    CHANGES.iter().map(|change| change.replace("{}", &format!("\"{}\"", table.replace('"', "\"\"")))).collect()
}

fn create(table: &str) -> String {
    let table = format!("\"{}\"", table.replace('"', "\"\""));
    format!("CREATE TABLE {table} (id INTEGER PRIMARY KEY, total INTEGER); INSERT INTO {table} VALUES (1, 10);")
}

#[test]
fn a_table_is_protected_whatever_it_is_called() {
    check(async {
        let names = [
            "present",
            "seal",
            "mark",
            "pass",
            "on",
            "x_insert",
            "x",
            "ORDERS",
            "a\"b",
            "a'b",
            "{table}",
            "x WHERE resource = 'y'",
            "a b",
            "",
        ];
        for name in names {
            let shop = Shop::new(&create(name));
            let orders = shop.open("orders").await;
            orders.protect(name).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
            orders.protect(&name.to_lowercase()).await.expect("again is no error, and it is the same table");
            let refused = changes(name);
            shop.refuses(&refused.iter().map(String::as_str).collect::<Vec<_>>());
            let mut sealed = Sealed::seal(orders, token(34)).await.expect("it is new");
            for change in changes(name) {
                let done = sealed.transaction(move |transaction| transaction.execute_batch(&change)).await;
                done.unwrap_or_else(|error| panic!("{name:?}: {error}"));
            }
        }
    });
}

#[test]
fn tables_of_all_these_names_are_protected_in_one_database() {
    check(async {
        let names = ["present", "seal", "mark", "x", "x_insert", "x_insert_insert", "x_2"];
        let shop = Shop::new(&names.map(create).concat());
        let orders = shop.open("orders").await;
        for name in names {
            orders.protect(name).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        }
        for name in names {
            let refused = changes(name);
            shop.refuses(&refused.iter().map(String::as_str).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_table_that_was_renamed_and_created_again_is_protected_again() {
    check(async {
        let shop = Shop::new(&create("orders"));
        let orders = shop.open("orders").await;
        orders.protect("orders").await.expect("the table is there");
        let sealed = Sealed::seal(orders.clone(), token(1)).await.expect("it is new");
        shop.run("ALTER TABLE orders RENAME TO before");
        let old = changes("before");
        let old: Vec<&str> = old.iter().map(String::as_str).collect();
        shop.refuses(&old);
        shop.run(&create("orders"));
        let lost = ["'orders'", "protect"];
        misuse(Sealed::seal(orders.clone(), token(2)).await, &lost);
        misuse(sqlite::mark(shop.path(), "orders").await, &lost);
        assert_eq!(sealed.token(), token(1));
        orders.protect("orders").await.expect("the table is there");
        let new = changes("orders");
        shop.refuses(&new.iter().map(String::as_str).collect::<Vec<_>>());
        shop.refuses(&old);
        let _ = Sealed::seal(orders.clone(), token(2)).await.expect("all is as it was asked for");
        orders.protect("before").await.expect("it is protected already");
        let _ = Sealed::seal(orders, token(3)).await.expect("all is as it was asked for");
    });
}

#[test]
fn a_table_that_a_migration_has_recreated_is_noticed() {
    check(async {
        let shop = Shop::new(&create("orders"));
        let orders = shop.open("orders").await;
        orders.protect("orders").await.expect("the table is there");
        shop.run("CREATE TABLE new_orders (id INTEGER PRIMARY KEY, total INTEGER, note TEXT)");
        shop.run("INSERT INTO new_orders (id, total) SELECT id, total FROM orders; DROP TABLE orders");
        let _ = Sealed::seal(orders.clone(), token(1)).await.expect("there is nothing that could be changed");
        shop.run("ALTER TABLE new_orders RENAME TO orders");
        misuse(Sealed::seal(orders.clone(), token(2)).await, &["'orders'", "protect"]);
        orders.protect("orders").await.expect("the table is there");
        let _ = Sealed::seal(orders, token(2)).await.expect("all is as it was asked for");
        shop.refuses(&["UPDATE orders SET note = 'x'"]);
    });
}

#[test]
fn a_table_has_one_resource() {
    check(async {
        let shop = Shop::new(&(create("orders") + &create("stock")));
        let (orders, other) = (shop.open("orders").await, shop.open("other").await);
        orders.protect("orders").await.expect("the table is there");
        orders.protect("stock").await.expect("a resource may have several tables");
        for table in ["orders", "ORDERS"] {
            misuse(other.protect(table).await, &["'orders'", "one resource"]);
        }
        shop.run("ALTER TABLE stock RENAME TO before");
        misuse(other.protect("before").await, &["'orders'", "one resource"]);
        let _ = Sealed::seal(other.clone(), token(1)).await.expect("it has no table");
        let _ = Sealed::seal(orders, token(1)).await.expect("all is as it was asked for");
        // A new table may have another resource.
        shop.run("DROP TABLE before; DELETE FROM palisade_protected WHERE name = 'stock'");
        shop.run(&create("stock"));
        other.protect("stock").await.expect("the table is there");
    });
}

#[test]
fn triggers_that_were_dropped_or_changed_are_noticed() {
    check(async {
        let trigger = |shop: &Shop, which: i64| -> String {
            let sql =
                "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'orders' LIMIT 1 OFFSET ?1";
            shop.plain.query_row(sql, [which], |row| row.get(0)).expect("there are three")
        };
        for which in 0..3 {
            let shop = Shop::new(&create("orders"));
            let orders = shop.open("orders").await;
            orders.protect("orders").await.expect("the table is there");
            let name = trigger(&shop, which);
            shop.run(&format!("DROP TRIGGER \"{name}\""));
            misuse(Sealed::seal(orders.clone(), token(1)).await, &["'orders'", "protect"]);
            misuse(sqlite::mark(shop.path(), "orders").await, &["'orders'", "protect"]);
            orders.protect("orders").await.expect("the table is there");
            let _ = Sealed::seal(orders.clone(), token(1)).await.expect("all is as it was asked for");
            shop.refuses(&["INSERT INTO orders VALUES (2, 20)", "UPDATE orders SET total = 0", "DELETE FROM orders"]);
            // Tables that were made to look alike.
            let name = trigger(&shop, which);
            shop.run(&format!("DROP TRIGGER \"{name}\""));
            shop.run(&format!("CREATE TRIGGER \"{name}\" BEFORE DELETE ON orders WHEN 0 BEGIN SELECT 1; END"));
            misuse(Sealed::seal(orders.clone(), token(2)).await, &["'orders'"]);
            misuse(orders.protect("orders").await, &[&name, "DROP TRIGGER"]);
            shop.run(&format!("DROP TRIGGER \"{name}\""));
            orders.protect("orders").await.expect("the table is there");
            let _ = Sealed::seal(orders, token(2)).await.expect("all is as it was asked for");
        }
    });
}

#[test]
fn the_fences_own_tables_are_verified_too() {
    check(async {
        let damages = [
            "DROP TRIGGER palisade_mark_rises",
            "DROP VIEW palisade_present",
            "DROP TABLE palisade_mark",
            "DROP TABLE palisade_pass; CREATE TABLE palisade_pass (resource, token, is_left)",
            "PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE name = 'palisade_mark_stays'",
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'BEFORE UPDATE', 'BEFORE DELETE') \
         WHERE name = 'palisade_mark_rises'",
        ];
        for damage in damages {
            let shop = Shop::new(&create("orders"));
            let orders = shop.open("orders").await;
            orders.protect("orders").await.expect("the table is there");
            let _ = Sealed::seal(orders.clone(), token(34)).await.expect("it is new");
            shop.run(damage);
            misuse(Sealed::seal(orders, token(35)).await, &["palisade_"]);
            misuse(Sqlite::open(shop.path(), "orders").await, &["palisade_"]);
            misuse(sqlite::mark(shop.path(), "orders").await, &["palisade_"]);
        }
    });
}

#[test]
fn only_a_table_can_be_protected() {
    check(async {
        let shop = Shop::new(&create("orders"));
        shop.run("CREATE VIEW viewed AS SELECT * FROM orders; CREATE INDEX indexed ON orders (total)");
        shop.run("CREATE VIRTUAL TABLE found USING fts5(text)");
        shop.run("CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT)");
        let orders = shop.open("orders").await;
        let before = shop.dump();
        for (name, why) in [
            ("viewed", "view"),
            ("found", "virtual"),
            ("found_content", "shadow"),
            ("indexed", "no table"),
            ("absent", "no table"),
            ("main.orders", "no table"),
            ("sqlite_schema", "SQLite's own"),
            ("sqlite_sequence", "SQLite's own"),
            ("palisade_mark", "Palisade's own"),
            ("PALISADE_PASS", "Palisade's own"),
        ] {
            misuse(orders.protect(name).await, &[&format!("'{name}'"), why]);
        }
        assert_eq!(shop.dump(), before);
        // A temporary table of the same name, in the same connection, must not be protected instead.
        let mut sealed = Sealed::seal(orders.clone(), token(1)).await.expect("it is new");
        let shadow = "CREATE TEMP TABLE orders (id INTEGER PRIMARY KEY, total INTEGER); CREATE TEMP TABLE gone (n INTEGER); \
                  CREATE TEMP TABLE palisade_mark (resource, token, seq, author, is_applied, outcome)";
        sealed.transaction(move |transaction| transaction.execute_batch(shadow)).await.expect("it is sealed");
        misuse(orders.protect("gone").await, &["no table"]);
        orders.protect("orders").await.expect("the table is there");
        shop.refuses(&["INSERT INTO orders VALUES (2, 20)", "UPDATE orders SET total = 0", "DELETE FROM orders"]);
        let _ = Sealed::seal(orders, token(2)).await.expect("it is newer");
        let mark = sqlite::mark(shop.path(), "orders").await.expect("it is there").expect("it is sealed");
        assert_eq!(mark.token, token(2));
    });
}

#[test]
fn every_kind_of_change_is_refused_without_a_token() {
    check(async {
        for tail in ["", "WITHOUT ROWID"] {
            for recursive in ["OFF", "ON"] {
                let shop = Shop::new(&format!("PRAGMA recursive_triggers = {recursive}; PRAGMA foreign_keys = ON"));
                shop.run(&format!("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER UNIQUE) {tail}"));
                shop.run("INSERT INTO orders VALUES (1, 10), (2, 20)");
                shop.run("CREATE TABLE customers (id INTEGER PRIMARY KEY); INSERT INTO customers VALUES (1), (2)");
                shop.run(&format!(
                    "CREATE TABLE bills (id INTEGER PRIMARY KEY, \
                 customer INTEGER REFERENCES customers ON DELETE CASCADE ON UPDATE CASCADE) {tail}"
                ));
                shop.run("INSERT INTO bills VALUES (1, 1)");
                shop.run("CREATE TABLE inbox (n INTEGER)");
                shop.run(
                    "CREATE TRIGGER relay AFTER INSERT ON inbox BEGIN REPLACE INTO orders VALUES (1, NEW.n); END",
                );
                shop.run("CREATE VIEW cheap AS SELECT * FROM orders WHERE total < 15");
                shop.run(
                "CREATE TRIGGER cheaper INSTEAD OF DELETE ON cheap BEGIN DELETE FROM orders WHERE id = OLD.id; END",
            );
                let orders = shop.open("orders").await;
                orders.protect("orders").await.expect("the table is there");
                orders.protect("bills").await.expect("the table is there");
                let _sealed = Sealed::seal(orders, token(34)).await.expect("it is new");
                shop.refuses(&[
                    "INSERT INTO orders VALUES (3, 30)",
                    "INSERT OR IGNORE INTO orders VALUES (3, 30)",
                    "INSERT OR FAIL INTO orders VALUES (3, 30)",
                    "INSERT OR ROLLBACK INTO orders VALUES (3, 30)",
                    "REPLACE INTO orders VALUES (1, 99)",
                    "REPLACE INTO orders VALUES (3, 10)",
                    "INSERT INTO orders VALUES (1, 99) ON CONFLICT DO UPDATE SET total = 99",
                    "INSERT INTO orders SELECT id + 10, total + 10 FROM orders",
                    "UPDATE orders SET total = 99 WHERE id = 1",
                    "UPDATE OR REPLACE orders SET total = 20 WHERE id = 1",
                    "UPDATE OR IGNORE orders SET total = 99 WHERE id = 1",
                    "DELETE FROM orders",
                    "DELETE FROM orders WHERE id = 1",
                    "INSERT INTO inbox VALUES (99)",
                    "DELETE FROM cheap",
                    "DELETE FROM customers WHERE id = 1",
                    "UPDATE customers SET id = 9 WHERE id = 1",
                    "REPLACE INTO customers VALUES (1)",
                    "BEGIN; UPDATE orders SET total = 99 WHERE id = 1",
                ]);
            }
        }
    });
}

#[test]
fn a_database_that_is_attached_is_protected_all_the_same() {
    check(async {
        let shop = Shop::new(&create("orders"));
        let orders = shop.open("orders").await;
        orders.protect("orders").await.expect("the table is there");
        let _ = Sealed::seal(orders, token(34)).await.expect("it is new");
        let other = Connection::open_in_memory().expect("it can be made");
        other.execute("ATTACH ?1 AS shop", [shop.path().to_str().expect("text")]).expect("it is there");
        // Tables of the same names in other databases are not used.
        other
            .execute_batch(
                "CREATE TABLE palisade_pass (resource, token); CREATE TABLE palisade_mark (resource, token)",
            )
            .expect("ours");
        other
            .execute_batch(
                "INSERT INTO palisade_pass VALUES ('orders', 34); INSERT INTO palisade_mark VALUES ('orders', 34)",
            )
            .expect("ours");
        other
            .execute_batch("CREATE TEMP TABLE palisade_pass AS SELECT 'orders' AS resource, 34 AS token")
            .expect("ours");
        let error = other.execute_batch("UPDATE shop.orders SET total = 0").expect_err("it has no token");
        assert!(error.to_string().contains("palisade: no token"), "{error}");
        let error =
            other.execute_batch("INSERT INTO shop.palisade_seal VALUES ('orders', 33)").expect_err("it is older");
        assert!(error.to_string().contains("palisade: superseded"), "{error}");
    });
}

#[test]
fn a_mark_never_goes_back_whatever_statement_tries() {
    check(async {
        for recursive in ["OFF", "ON"] {
            let shop = Shop::new(&format!("PRAGMA recursive_triggers = {recursive};"));
            shop.run(&create("orders"));
            let (orders, other) = (shop.open("orders").await, shop.open("other").await);
            orders.protect("orders").await.expect("the table is there");
            let mut sealed = Sealed::seal(orders, token(34)).await.expect("it is new");
            sealed.transaction(|_| Ok(())).await.expect("it is sealed");
            let _ = Sealed::seal(other, token(5)).await.expect("it is new");
            shop.refuses(&[
            "INSERT OR REPLACE INTO palisade_mark (resource, token) VALUES ('orders', 33)",
            "INSERT OR REPLACE INTO palisade_mark (resource, token) VALUES ('orders', 34)",
            "INSERT OR REPLACE INTO palisade_mark (resource, token) VALUES ('orders', 35)",
            "INSERT INTO palisade_mark (resource, token) VALUES ('orders', 33) ON CONFLICT DO UPDATE SET token = 33",
            "UPDATE palisade_mark SET token = 33 WHERE resource = 'orders'",
            "UPDATE palisade_mark SET seq = 0 WHERE resource = 'orders'",
            "UPDATE OR REPLACE palisade_mark SET resource = 'orders' WHERE resource = 'other'",
            "DELETE FROM palisade_mark",
            "INSERT INTO palisade_seal (resource, token) VALUES ('orders', 33)",
            "INSERT OR IGNORE INTO palisade_seal (resource, token) VALUES ('orders', 33)",
            "INSERT OR REPLACE INTO palisade_seal (resource, token) VALUES ('orders', 33)",
            "INSERT OR IGNORE INTO palisade_seal (resource, token) VALUES ('orders', 0)",
            "INSERT OR IGNORE INTO palisade_seal (resource, token) VALUES ('orders', NULL)",
            "INSERT OR IGNORE INTO palisade_seal (resource, token) VALUES ('new', NULL)",
            "INSERT OR IGNORE INTO palisade_seal (resource, token) VALUES (NULL, 35)",
            "INSERT OR IGNORE INTO palisade_seal (resource, token) VALUES ('new', 3.5)",
            "INSERT OR IGNORE INTO palisade_seal (resource, token) VALUES ('new', 9007199254740992)",
            "INSERT OR IGNORE INTO palisade_present (resource, token) VALUES ('orders', 33)",
            "INSERT OR REPLACE INTO palisade_present (resource, token) VALUES ('orders', 35)",
            "INSERT OR IGNORE INTO palisade_present (resource, token) VALUES ('orders', NULL)",
        ]);
            let by_rowid = "INSERT OR REPLACE INTO palisade_mark (rowid, resource, token) SELECT 1, 'third', 1";
            assert!(shop.plain.execute_batch(by_rowid).is_err(), "rows have no other name than the resource");
            shop.run("INSERT OR REPLACE INTO palisade_seal (resource, token) VALUES ('orders', 35)");
            shop.refuses(&["INSERT INTO palisade_seal (resource, token) VALUES ('orders', 34)"]);
            assert!(sealed.transaction(|_| Ok(())).await.expect_err("it is overtaken").overtaken_by().is_some());
        }
    });
}

#[test]
fn a_database_with_two_names_or_another_file_in_its_place_is_refused() {
    check(async {
        for mode in ["DELETE", "WAL"] {
            let shop = Shop::new(&format!("PRAGMA journal_mode = {mode};"));
            shop.run(&create("orders"));
            let orders = shop.open("orders").await;
            orders.protect("orders").await.expect("the table is there");
            let mut sealed = Sealed::seal(orders.clone(), token(1)).await.expect("it is new");
            let second = shop.folder.path().join("second.db");
            std::fs::hard_link(shop.path(), &second).expect("a link");
            for path in [&shop.path(), &second] {
                misuse(Sqlite::open(path, "orders").await, &["hard link"]);
            }
            let error = sealed.transaction(|_| Ok(())).await.expect_err("it has two names");
            assert!(!error.may_have_taken_effect() && error.to_string().contains("hard link"), "{error}");
            assert!(!shop.folder.path().join("second.db-wal").exists(), "nothing was made");
            std::fs::remove_file(&second).expect("it is there");
            sealed.transaction(|_| Ok(())).await.expect("the handle is as good as before");
            // A backup is restored correctly: all old files are moved away first.
            let backup = shop.folder.path().join("backup.db");
            std::fs::copy(shop.path(), &backup).expect("it is there");
            std::fs::rename(&backup, shop.path()).expect("it is there");
            let error = sealed.transaction(|_| Ok(())).await.expect_err("its file was moved away");
            assert!(error.to_string().contains("another file"), "{error}");
            assert!(Sealed::seal(orders, token(2)).await.is_err());
        }
    });
}

#[test]
fn one_database_has_one_fence_however_its_path_is_spelled() {
    check(async {
        let shop = Shop::new(&create("orders"));
        std::os::unix::fs::symlink("shop.db", shop.folder.path().join("link.db")).expect("a link");
        let orders = shop.open("orders").await;
        orders.protect("orders").await.expect("the table is there");
        let _ = Sealed::seal(orders, token(34)).await.expect("it is new");
        for spelling in ["link.db", "./shop.db", "../NAME/shop.db"] {
            let name = shop.folder.path().file_name().expect("a name").to_str().expect("text");
            let path: PathBuf = shop.folder.path().join(spelling.replace("NAME", name));
            let other = Sqlite::open(&path, "orders").await.expect("it is there");
            assert_eq!(Sealed::seal(other, token(33)).await.expect_err("older").overtaken_by(), Some(token(34)));
        }
        for path in ["", ":memory:"] {
            misuse(Sqlite::open(Path::new(path), "orders").await, &["path of a file"]);
        }
    });
}

/// SQLite cannot refuse these writes, as the documentation says.
#[test]
fn writes_that_fire_no_triggers_are_not_refused() {
    check(async {
        let shop =
            Shop::new("CREATE TABLE files (id INTEGER PRIMARY KEY, body BLOB); INSERT INTO files VALUES (1, x'00')");
        shop.run(
            "CREATE TABLE safe (id INTEGER PRIMARY KEY, body BLOB) WITHOUT ROWID; INSERT INTO safe VALUES (1, x'00')",
        );
        let orders = shop.open("orders").await;
        orders.protect("files").await.expect("the table is there");
        orders.protect("safe").await.expect("the table is there");
        let _sealed = Sealed::seal(orders, token(1)).await.expect("it is new");
        shop.refuses(&["UPDATE files SET body = x'01'", "UPDATE safe SET body = x'01'"]);
        let blob = shop.plain.blob_open("main", "files", "body", 1, false);
        std::io::Write::write_all(&mut blob.expect("it is there"), b"\x01").expect("no trigger sees it");
        let body: Vec<u8> =
            shop.plain.query_row("SELECT body FROM files", [], |row| row.get(0)).expect("it is there");
        assert_eq!(body, b"\x01", "incremental writes of a blob are not fenced");
        let refused = shop.plain.blob_open("main", "safe", "body", 1, false);
        assert!(refused.is_err(), "a table WITHOUT ROWID has no such writes");

        shop.plain.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).expect("it can be set");
        shop.run("UPDATE safe SET body = x'02'");
    });
}
