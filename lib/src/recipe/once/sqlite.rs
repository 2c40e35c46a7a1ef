//! Records in SQLite.

use std::time::Duration;

use rusqlite::{Error as SqliteError, OptionalExtension, Transaction, params};

use super::record::{number, stored_token};
use super::{Attempt, Begun, Finished, OnceStore, Record};
use crate::Error;
use crate::recipe::store::Sqlite;

/// The table of the records. The other functions of this module create it if it is missing.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS palisade_once (
    key TEXT PRIMARY KEY,
    token INTEGER NOT NULL,
    request BLOB,
    outcome BLOB,
    keep_until_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS palisade_once_keep_until ON palisade_once (keep_until_ms);";

const NOW_MS: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// Each attempt removes up to this many records whose time has passed, so that they do not pile up.
const REMOVED_PER_ATTEMPT: u32 = 4;

impl OnceStore for Sqlite {
    async fn find(&self, key: &str) -> Result<Option<Record>, Error> {
        let owned = key.to_owned();
        let record = self.write(("read the record of", key), SCHEMA, move |transaction| find(transaction, &owned));
        Ok(record.await?.filter(|record| !record.is_expired))
    }

    async fn begin(&self, key: &str, attempt: &Attempt) -> Result<Begun, Error> {
        let (owned, attempt) = (key.to_owned(), attempt.clone());
        let begin = move |transaction: &Transaction<'_>| {
            let record = find(transaction, &owned)?;
            let begun = Record::begin(record.as_ref(), attempt.token, attempt.request.as_deref());
            if let Begun::Run { .. } = begun {
                let (token, request) =
                    (number(attempt.token), Record::request(record.as_ref(), attempt.request.as_deref()));
                store(transaction, &owned, token, request, None, attempt.keep_unfinished())?;
            }
            let sql = format!(
                "DELETE FROM palisade_once WHERE key IN
                     (SELECT key FROM palisade_once WHERE keep_until_ms < {NOW_MS} AND key <> ?1 LIMIT ?2)"
            );
            transaction.execute(&sql, params![owned, REMOVED_PER_ATTEMPT])?;
            Ok(begun)
        };
        self.write(("begin", key), SCHEMA, begin).await
    }

    async fn finish(&self, key: &str, attempt: &Attempt, outcome: &[u8]) -> Result<Finished, Error> {
        let (owned, attempt, outcome) = (key.to_owned(), attempt.clone(), outcome.to_owned());
        let finish = move |transaction: &Transaction<'_>| {
            let record = find(transaction, &owned)?;
            let finished = Record::finish(record.as_ref(), attempt.token);
            if let (Finished::Kept, Some(record)) = (finished, record) {
                let (token, request) = (number(attempt.token), record.request.as_deref());
                store(transaction, &owned, token, request, Some(&outcome), attempt.keep)?;
            }
            Ok(finished)
        };
        self.write(("keep the outcome of", key), SCHEMA, finish).await
    }
}

fn find(transaction: &Transaction<'_>, key: &str) -> Result<Option<Record>, SqliteError> {
    let sql = format!("SELECT token, request, outcome, keep_until_ms < {NOW_MS} FROM palisade_once WHERE key = ?1");
    let record = transaction.prepare_cached(&sql)?.query_row([key], |row| {
        let (token, request) = (stored_token(row.get(0)?), row.get(1)?);
        Ok(Record { token, request, outcome: row.get(2)?, is_expired: row.get(3)? })
    });
    record.optional()
}

fn store(
    transaction: &Transaction<'_>,
    key: &str,
    token: i64,
    request: Option<&[u8]>,
    outcome: Option<&[u8]>,
    keep: Duration,
) -> Result<(), SqliteError> {
    let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    let sql = format!(
        "INSERT OR REPLACE INTO palisade_once (key, token, request, outcome, keep_until_ms)
             VALUES (?1, ?2, ?3, ?4, {NOW_MS} + ?5)"
    );
    transaction.prepare_cached(&sql)?.execute(params![key, token, request, outcome, keep_ms])?;
    Ok(())
}

/// The result of [`claim_in_sqlite`].
#[derive(Debug)]
pub enum SqliteClaim<'a> {
    /// This transaction is the first. Do the work in it, then [`keep`](FirstInSqlite::keep) its outcome.
    First(FirstInSqlite<'a>),
    /// An earlier transaction has done the work, with this outcome.
    Done(Vec<u8>),
    /// [`Once`](super::Once) began an attempt that has not finished. Let it finish, or take it over there.
    Unfinished,
}

/// A claim of a key by a transaction. Unless it keeps an outcome and commits, the next caller does the work.
#[derive(Debug)]
#[must_use = "without an outcome the next caller does the work again"]
pub struct FirstInSqlite<'a> {
    transaction: &'a Transaction<'a>,
    key: &'a str,
}

impl FirstInSqlite<'_> {
    /// Keeps the outcome for this long, once the transaction commits.
    ///
    /// # Errors
    ///
    /// Those of SQLite.
    pub fn keep(self, outcome: &[u8], keep: Duration) -> Result<(), SqliteError> {
        store(self.transaction, self.key, 0, None, Some(outcome), keep)
    }
}

/// Claims a key in a transaction of the application. Work that changes only this database then happens exactly once, without a lock:
/// the record and the work are committed together. Begin the transaction as `IMMEDIATE`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use palisade::recipe::once::{KEEP, SqliteClaim, claim_in_sqlite};
/// use rusqlite::{Connection, TransactionBehavior};
///
/// let mut database = Connection::open_in_memory()?;
/// database.execute_batch("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER); INSERT INTO account VALUES (7, 100)")?;
/// for _delivery in 1..=2 {
///     let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     match claim_in_sqlite(&transaction, "payment/42")? {
///         SqliteClaim::First(claim) => {
///             transaction.execute("UPDATE account SET balance = balance - 5 WHERE id = 7", [])?;
///             claim.keep(b"paid", KEEP)?;
///         }
///         SqliteClaim::Done(outcome) => assert_eq!(outcome, b"paid"),
///         SqliteClaim::Unfinished => panic!("no attempt with a lock uses this key"),
///     }
///     transaction.commit()?;
/// }
/// let balance: i64 = database.query_row("SELECT balance FROM account", [], |row| row.get(0))?;
/// assert_eq!(balance, 95);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Those of SQLite.
pub fn claim_in_sqlite<'a>(transaction: &'a Transaction<'a>, key: &'a str) -> Result<SqliteClaim<'a>, SqliteError> {
    transaction.execute_batch(SCHEMA)?;
    match find(transaction, key)?.filter(|record| !record.is_expired) {
        None => Ok(SqliteClaim::First(FirstInSqlite { transaction, key })),
        Some(Record { outcome: Some(outcome), .. }) => Ok(SqliteClaim::Done(outcome)),
        Some(_) => Ok(SqliteClaim::Unfinished),
    }
}
