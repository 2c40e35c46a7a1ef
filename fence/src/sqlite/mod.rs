//! Tables of a SQLite database.
//!
//! A *resource* is any number of tables under one mark. [`Sqlite::protect`] puts triggers on a table, which refuse every
//! INSERT, UPDATE and DELETE of a transaction that has not presented the token with which the resource is sealed, from
//! whatever client: [`SCHEMA`] shows the few lines of SQL that do it by hand.
//!
//! The check and the changes are one transaction, which is what makes it strict. Numbers are kept too, so that a write
//! whose outcome is unknown can be [settled](crate::Sealed::settle).
//!
//! | not promised | why |
//! |---|---|
//! | `DROP TABLE`, `ALTER TABLE` and `DROP TRIGGER` are not refused | SQLite has no triggers on them |
//! | reads of other clients are not refused | SQLite has no triggers on reads; read in the transaction that writes, or after sealing through a handle |
//! | a row that stays in `palisade_pass` lets changes without a token pass until the next seal, the next write through a handle, or the next [`Sqlite::open`] | SQLite knows nothing that ends with a transaction; with `PRAGMA foreign_keys = ON` such a COMMIT fails. A transaction that is cut off by a crash leaves none |

mod store;
mod work;

pub use store::{Sqlite, mark};
pub use work::Work;

/// The tables, views and triggers that keep the marks. [`Sqlite::open`] makes them.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The triggers that protect a table for a resource, as SQL. [`Sqlite::protect`] makes them.
///
/// ```
/// let sql = palisade_fence::sqlite::protection("orders", "order lines");
/// assert!(sql.contains(r#"BEFORE DELETE ON "order lines""#));
/// ```
pub fn protection(resource: &str, table: &str) -> String {
    let identifier = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let trigger = |change: &str| identifier(&format!("palisade_{table}_{change}"));
    let mut parts = include_str!("protect.sql").split('{');
    let mut sql = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (place, rest) = part.split_once('}').unwrap_or((part, ""));
        sql += &match place {
            "resource" => format!("'{}'", resource.replace('\'', "''")),
            "table" => identifier(table),
            change => trigger(change),
        };
        sql += rest;
    }
    sql
}
