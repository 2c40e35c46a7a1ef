//! Tables of a SQLite database.
//!
//! A *resource* is any number of tables under one mark. [`Sqlite::protect`] puts triggers on a table, which refuse
//! every INSERT, UPDATE and DELETE of a transaction that has not presented the token with which the resource is sealed,
//! from any client. [`SCHEMA`] shows the SQL that presents a token.
//!
//! The check and the changes are one transaction, so no seal can come in between. Numbers are kept too, so that a write
//! whose outcome is unknown can be [settled](crate::Sealed::settle).
//!
//! Protection is verified: [`Sqlite::protect`] reads the triggers back, and every seal checks that the protected tables still
//! have them. A migration that recreates a table loses its triggers; the next seal is then refused until
//! the table is protected again. A table belongs to one resource.
//!
//! | not promised | why |
//! |---|---|
//! | `DROP TABLE`, `ALTER TABLE`, `DROP TRIGGER` and `PRAGMA writable_schema` are not refused | SQLite has no triggers on them; the next seal notices |
//! | incremental writes of a blob (`sqlite3_blob_write`) are not refused | SQLite fires no triggers for them; it has none on tables `WITHOUT ROWID` |
//! | a client that switches triggers off (`SQLITE_DBCONFIG_ENABLE_TRIGGER`) is not refused | it says so to its own connection |
//! | views, virtual tables and their shadow tables cannot be protected | SQLite has no such triggers on them |
//! | reads of other clients are not refused | SQLite has no triggers on reads; read in the transaction that writes, or after sealing through a handle |
//! | a row that stays in `palisade_pass` lets changes without a token pass until the next seal, the next write through a handle, or the next [`Sqlite::open`] | SQLite knows nothing that ends with a transaction; with `PRAGMA foreign_keys = ON` such a COMMIT fails. A transaction that is cut off by a crash leaves none |

mod store;
mod tables;
mod work;

pub use store::{Sqlite, mark};
pub use tables::protection;
pub use work::Work;

/// The tables, views and triggers that keep the marks. [`Sqlite::open`] makes them.
pub const SCHEMA: &str = include_str!("schema.sql");
