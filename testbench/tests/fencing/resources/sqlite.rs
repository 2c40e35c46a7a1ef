//! The fence in SQLite, from Rust and from the shell `sqlite3`.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use palisade_fence::sqlite::{Sqlite, Work};
use palisade_fence::{Error, ErrorKind, Sealed, Token};
use palisade_testbench::bounded::output;
use palisade_testbench::fencing::{Subject, Wire};
use rusqlite::Connection;
use rusqlite::types::Value;
use tempfile::TempDir;

use super::check;

/// Each resource is a separate database with a protected table.
#[derive(Clone)]
struct Tables(Arc<TempDir>);

impl Tables {
    fn new() -> Tables {
        Tables(Arc::new(tempfile::tempdir().expect("a folder")))
    }
}

impl Subject for Tables {
    type Resource = Sqlite;

    async fn open(&self, name: &str) -> Result<Sqlite, Error> {
        let file = if name.len() < 100 { name.replace(['\n', '\0'], "_") } else { "long".to_owned() };
        let path = self.0.path().join(format!("{file}.db"));
        let resource = Sqlite::open(&path, name).await?;
        let plain = Connection::open(&path).expect("it is there");
        plain.execute_batch("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)").expect("it can be written");
        resource.protect("numbers").await?;
        Ok(resource)
    }

    fn get(&self) -> Work {
        Work::new(|transaction| transaction.query_row("SELECT max(number) FROM numbers", [], |row| row.get(0)))
    }

    fn set(&self, number: u64) -> Work {
        let number = i64::try_from(number).expect("a small number");
        Work::new(move |transaction| {
            transaction.execute("DELETE FROM numbers", [])?;
            transaction.execute("INSERT INTO numbers VALUES (?1)", [number])?;
            Ok(Value::Integer(transaction.last_insert_rowid() + number))
        })
    }

    fn number(&self, answer: Value) -> u64 {
        match answer {
            Value::Integer(number) => u64::try_from(number).expect("a number"),
            _ => 0,
        }
    }

    fn bad_names(&self) -> Vec<String> {
        vec![String::new(), "two\nlines".to_owned(), "nul\0".to_owned(), "x".repeat(600)]
    }

    fn impossible(&self) -> Vec<Work> {
        let work = |sql| Work::new(move |transaction| transaction.execute_batch(sql).map(|()| Value::Null));
        // The handle ends the transaction.
        let ended = ["DELETE FROM numbers; COMMIT", "DELETE FROM numbers; ROLLBACK"].map(work);
        ["INSERT INTO numbers VALUES (1, 2)", "UPDATE absent SET number = 7"]
            .map(work)
            .into_iter()
            .chain(ended)
            .collect()
    }
}

palisade_testbench::fencing!(tables, Tables::new());

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// Runs SQL in the shell, which continues after an error.
fn shell(path: &Path, sql: &str) -> Output {
    let shell = output(Command::new("sqlite3").arg(path).arg(sql));
    shell.expect("sqlite3 is not installed: run scripts/setup")
}

fn refused(output: &Output, wanted: &str) {
    let reply = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && reply.contains(wanted), "{reply}");
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn shop(folder: &TempDir) -> Sqlite {
    let path = folder.path().join("shop.db");
    let plain = Connection::open(&path).expect("it can be made");
    plain.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").expect("it can be written");
    plain.execute_batch("INSERT INTO orders VALUES (1, 10)").expect("nothing protects it yet");
    let orders = Sqlite::open(&path, "orders").await.expect("it is there");
    orders.protect("orders").await.expect("the table is there");
    orders.protect("orders").await.expect("again is no error");
    orders
}

#[test]
fn the_plain_shell_is_refused_without_a_token_and_with_an_old_one() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (orders, path) = (shop(&folder).await, folder.path().join("shop.db"));
        for change in ["INSERT INTO orders VALUES (2, 20)", "UPDATE orders SET total = 0", "DELETE FROM orders"] {
            refused(&shell(&path, change), "palisade: no token");
        }
        let present = |token: u64| {
            format!(
                "BEGIN IMMEDIATE; INSERT INTO palisade_present (resource, token) VALUES ('orders', {token}); \
             UPDATE orders SET total = total + 1; DELETE FROM palisade_pass; COMMIT;"
            )
        };
        refused(&shell(&path, &present(33)), "palisade: not sealed");
        done(&shell(&path, "INSERT INTO palisade_seal (resource, token) VALUES ('orders', 33)"));
        done(&shell(&path, &present(33)));
        let mut sealed = Sealed::seal(orders, token(34)).await.expect("it is newer");
        refused(&shell(&path, &present(33)), "palisade: stale");
        refused(
            &shell(&path, "INSERT INTO palisade_seal (resource, token) VALUES ('orders', 33)"),
            "palisade: superseded",
        );
        let add =
            |transaction: &rusqlite::Transaction<'_>| transaction.execute("UPDATE orders SET total = total + 1", []);
        sealed.transaction(add).await.expect("it is sealed");
        done(&shell(&path, &present(34)));
        assert_eq!(done(&shell(&path, "SELECT total FROM orders")), "13");
        refused(&shell(&path, "UPDATE palisade_mark SET token = 1"), "palisade: a mark only goes up");
        refused(&shell(&path, "DELETE FROM palisade_mark"), "palisade: marks are kept");
    });
}

#[test]
fn invalid_tokens_are_refused_in_sql_too() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (_orders, path) = (shop(&folder).await, folder.path().join("shop.db"));
        for token in ["0", "-1", "9007199254740992", "NULL", "'34'", "3.5", "x'00'"] {
            let seal =
                shell(&path, &format!("INSERT INTO palisade_seal (resource, token) VALUES ('orders', {token})"));
            assert!(!seal.status.success() || token == "'34'", "{token}");
        }
        refused(&shell(&path, "INSERT INTO palisade_seal (resource, token) VALUES ('', 1)"), "CHECK");
    });
}

#[test]
fn a_pass_that_is_left_behind_cannot_be_committed_where_foreign_keys_are_enforced() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (_orders, path) = (shop(&folder).await, folder.path().join("shop.db"));
        done(&shell(&path, "INSERT INTO palisade_seal (resource, token) VALUES ('orders', 33)"));
        let left = "PRAGMA foreign_keys = ON; INSERT INTO palisade_present (resource, token) VALUES ('orders', 33);";
        refused(&shell(&path, left), "FOREIGN KEY");
        refused(&shell(&path, "UPDATE orders SET total = 0"), "palisade: no token");
    });
}

#[test]
fn a_rejected_statement_leaves_the_handle_as_it_was() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sealed = Sealed::seal(shop(&folder).await, token(1)).await.expect("it is new");
        let twice = |transaction: &rusqlite::Transaction<'_>| {
            transaction.execute("UPDATE orders SET total = 99", [])?;
            transaction.execute("INSERT INTO orders VALUES (1, 10)", [])
        };
        let error = sealed.transaction(twice).await.expect_err("the key is taken");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error:?}");
        assert!(!error.may_have_taken_effect() && sealed.is_settled());
        let total = |transaction: &rusqlite::Transaction<'_>| {
            transaction.query_row("SELECT total FROM orders", [], |row| row.get::<_, i64>(0))
        };
        assert_eq!(sealed.query(total).await.expect("it is sealed"), 10, "nothing of it was kept");
        let add = |transaction: &rusqlite::Transaction<'_>| transaction.execute("UPDATE orders SET total = 11", []);
        sealed.transaction(add).await.expect("the handle is as good as before");
        assert_eq!(sealed.query(total).await.expect("it is sealed"), 11);
    });
}

#[test]
fn a_repeated_rejected_write_is_neither_applied_nor_taken_for_another() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let wire = Wire::to(shop(&folder).await);
        let plain = Connection::open(folder.path().join("shop.db")).expect("it is there");
        plain.execute_batch("CREATE TABLE stock (one INTEGER NOT NULL)").expect("it can be written");
        let mut sealed = Sealed::seal(wire.clone(), token(1)).await.expect("it is new");
        let sell = Work::new(|transaction| {
            transaction.query_row("SELECT one FROM stock", [], |_| Ok(()))?;
            transaction.execute("UPDATE orders SET total = 99", [])?;
            Ok(Value::Null)
        });
        let error = sealed.write(sell).await.expect_err("there is no stock");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error:?}");
        plain.execute_batch("INSERT INTO stock VALUES (1)").expect("it is not protected");
        assert_eq!(wire.deliver_again(0).await.expect("an answer"), None, "its number is used up, for nothing");
        let total = |transaction: &rusqlite::Transaction<'_>| {
            transaction.execute("UPDATE orders SET total = total + 1", [])?;
            transaction.query_row("SELECT total FROM orders", [], |row| row.get(0))
        };
        assert_eq!(sealed.write(Work::new(total)).await.expect("it is sealed"), Value::Integer(11));
    });
}

#[test]
fn changes_of_a_query_are_not_kept() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let orders = shop(&folder).await;
        let plain = Connection::open(folder.path().join("shop.db")).expect("it is there");
        plain.execute_batch("CREATE TABLE unprotected (number INTEGER)").expect("it can be written");
        let sealed = Sealed::seal(orders, token(1)).await.expect("it is new");
        let insert =
            |transaction: &rusqlite::Transaction<'_>| transaction.execute("INSERT INTO unprotected VALUES (1)", []);
        sealed.query(insert).await.expect("it is sealed");
        let count = plain.query_row("SELECT count(*) FROM unprotected", [], |row| row.get::<_, i64>(0));
        assert_eq!(count.expect("it can be read"), 0);
    });
}

#[test]
fn hostile_names_of_tables_and_resources_are_quoted() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shop.db");
        let plain = Connection::open(&path).expect("it can be made");
        let table = "a\"; DROP TABLE x; -- {resource} {table}";
        let quoted = table.replace('"', "\"\"");
        plain.execute_batch(&format!("CREATE TABLE \"{quoted}\" (n INTEGER)")).expect("any name will do");
        let resource = Sqlite::open(&path, "o'rders {table}").await.expect("any name will do");
        resource.protect(table).await.expect("the table is there");
        assert!(resource.protect("not there").await.is_err());
        let insert = format!("INSERT INTO \"{quoted}\" VALUES (1)");
        assert!(plain.execute_batch(&insert).is_err(), "it is protected");
        let mut sealed = Sealed::seal(resource, token(1)).await.expect("it is new");
        sealed.transaction(move |transaction| transaction.execute_batch(&insert)).await.expect("it is sealed");
    });
}

#[test]
fn a_token_left_behind_expires_soon() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (orders, path) = (shop(&folder).await, folder.path().join("shop.db"));
        let mut sealed = Sealed::seal(orders, token(33)).await.expect("it is new");
        // The shell enforces no foreign keys: without a transaction around it, the presented token stays.
        let leave = "INSERT INTO palisade_present (resource, token) VALUES ('orders', 33)";
        let change = "UPDATE orders SET total = total + 1";
        done(&shell(&path, leave));
        done(&shell(&path, change));
        Sqlite::open(&path, "another").await.expect("it is there");
        refused(&shell(&path, change), "palisade: no token");
        done(&shell(&path, leave));
        sealed.transaction(move |transaction| transaction.execute(change, [])).await.expect("it is sealed");
        refused(&shell(&path, change), "palisade: no token");
        done(&shell(&path, leave));
        sealed.transaction(|_| Ok(())).await.expect("it is sealed");
        refused(&shell(&path, change), "palisade: no token");
    });
}
