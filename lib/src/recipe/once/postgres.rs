//! Records in PostgreSQL.

use std::time::Duration;

use tokio_postgres::{Client, Error as PgError, Row, Transaction};

use super::record::{number, stored_token};
use super::{Attempt, Begun, Finished, OnceStore, Record};
use crate::Error;
use crate::recipe::store::{Call, Postgres, big, bytes, float, is_missing, milliseconds, text};

/// The table of the records. A recipe creates it if it is missing and the role may do so.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS palisade_once (
    key text COLLATE \"C\" PRIMARY KEY,
    token bigint NOT NULL,
    request bytea,
    outcome bytea,
    keep_until timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS palisade_once_keep_until ON palisade_once (keep_until);";

const FIND: &str = "SELECT token, request, outcome, keep_until < clock_timestamp() FROM palisade_once WHERE key = $1";
/// Also waits for a transaction that has inserted the row and not committed yet.
const CLAIM: &str = "INSERT INTO palisade_once (key, token, request, keep_until)
    VALUES ($1, $2, $3, clock_timestamp() + $4 * interval '1 ms') ON CONFLICT (key) DO NOTHING";
const LOCK: &str =
    "SELECT token, request, outcome, keep_until < clock_timestamp() FROM palisade_once WHERE key = $1 FOR UPDATE";
const TAKE_OVER: &str = "UPDATE palisade_once SET token = $2, request = $3, outcome = NULL,
    keep_until = clock_timestamp() + $4 * interval '1 ms' WHERE key = $1";
const KEEP: &str = "UPDATE palisade_once SET outcome = $3, keep_until = clock_timestamp() + $4 * interval '1 ms'
    WHERE key = $1 AND token = $2";
/// Each attempt removes some records whose time has passed, so that they do not pile up. Those that another transaction uses are
/// left for the next attempt.
const REMOVE: &str = "DELETE FROM palisade_once WHERE key IN (SELECT key FROM palisade_once
    WHERE keep_until < clock_timestamp() AND key <> $1 LIMIT 4 FOR UPDATE SKIP LOCKED)";

/// Stored for an attempt without a lock.
const NO_TOKEN: i64 = 0;

impl OnceStore for Postgres {
    async fn find(&self, key: &str) -> Result<Option<Record>, Error> {
        const OPERATION: &str = "read the record of";
        let call = Call { operation: OPERATION, key, writes: false };
        let work = async {
            let connection = self.connection(OPERATION, key).await?;
            let found = connection.query_typed_opt(FIND, &[text(&key)]).await;
            connection.keep();
            match found.and_then(|row| row.as_ref().map(record).transpose()) {
                Ok(record) => Ok(record.filter(|record| !record.is_expired)),
                Err(error) if is_missing(&error) => Ok(None),
                Err(error) => Err(self.error(error, false, OPERATION, key)),
            }
        };
        self.bounded(call, work).await
    }

    async fn begin(&self, key: &str, attempt: &Attempt) -> Result<Begun, Error> {
        const OPERATION: &str = "begin";
        let call = Call { operation: OPERATION, key, writes: true };
        let work = async {
            let mut connection = self.connection(OPERATION, key).await?;
            let mut begun = begin(&mut connection, key, attempt).await;
            if begun.as_ref().is_err_and(|failed| is_missing(&failed.error)) {
                self.create(&connection, (SCHEMA, "palisade_once"), (OPERATION, key)).await?;
                begun = begin(&mut connection, key, attempt).await;
            }
            connection.keep();
            begun.map_err(|failed| self.error(failed.error, failed.is_committing, OPERATION, key))
        };
        self.bounded(call, work).await
    }

    async fn finish(&self, key: &str, attempt: &Attempt, outcome: &[u8]) -> Result<Finished, Error> {
        const OPERATION: &str = "keep the outcome of";
        let call = Call { operation: OPERATION, key, writes: true };
        let work = async {
            let mut connection = self.connection(OPERATION, key).await?;
            let finished = finish(&mut connection, key, attempt, outcome).await;
            connection.keep();
            match finished {
                // The table was dropped while the work was done, and its record with it.
                Err(failed) if is_missing(&failed.error) => Ok(Finished::Refused { by: None }),
                finished => finished.map_err(|failed| self.error(failed.error, failed.is_committing, OPERATION, key)),
            }
        };
        self.bounded(call, work).await
    }
}

/// A statement that failed.
struct Failed {
    error: PgError,
    /// Whether it was the commit.
    is_committing: bool,
}

impl From<PgError> for Failed {
    fn from(error: PgError) -> Failed {
        Failed { error, is_committing: false }
    }
}

async fn commit(transaction: Transaction<'_>) -> Result<(), Failed> {
    transaction.commit().await.map_err(|error| Failed { error, is_committing: true })
}

async fn begin(client: &mut Client, key: &str, attempt: &Attempt) -> Result<Begun, Failed> {
    let (token, request, keep_ms) =
        (number(attempt.token), attempt.request.as_deref(), milliseconds(attempt.keep_unfinished()));
    let claim = [text(&key), big(&token), bytes(&request), float(&keep_ms)];
    let transaction = client.transaction().await?;
    let begun = loop {
        if transaction.execute_typed(CLAIM, &claim).await? == 1 {
            break Begun::Run { previous: None };
        }
        // If the row is gone, another attempt has just removed it, because its time has passed.
        let Some(row) = transaction.query_typed_opt(LOCK, &[text(&key)]).await? else { continue };
        let record = record(&row)?;
        let begun = Record::begin(Some(&record), attempt.token, request);
        if let Begun::Run { .. } = begun {
            let request = Record::request(Some(&record), request);
            let claim = [text(&key), big(&token), bytes(&request), float(&keep_ms)];
            transaction.execute_typed(TAKE_OVER, &claim).await?;
        }
        break begun;
    };
    transaction.execute_typed(REMOVE, &[text(&key)]).await?;
    commit(transaction).await?;
    Ok(begun)
}

async fn finish(client: &mut Client, key: &str, attempt: &Attempt, outcome: &[u8]) -> Result<Finished, Failed> {
    let transaction = client.transaction().await?;
    let record = transaction.query_typed_opt(LOCK, &[text(&key)]).await?.as_ref().map(record).transpose()?;
    let finished = Record::finish(record.as_ref(), attempt.token);
    if finished == Finished::Kept {
        let (token, keep_ms) = (number(attempt.token), milliseconds(attempt.keep));
        let kept = [text(&key), big(&token), bytes(&outcome), float(&keep_ms)];
        transaction.execute_typed(KEEP, &kept).await?;
    }
    commit(transaction).await?;
    Ok(finished)
}

fn record(row: &Row) -> Result<Record, PgError> {
    let (token, request) = (stored_token(row.try_get(0)?), row.try_get(1)?);
    Ok(Record { token, request, outcome: row.try_get(2)?, is_expired: row.try_get(3)? })
}

/// The result of [`claim_in_postgres`].
#[derive(Debug)]
pub enum PostgresClaim {
    /// This transaction is the first. Do the work in it, then [`keep`](FirstInPostgres::keep) its outcome.
    First(FirstInPostgres),
    /// An earlier transaction has done the work, with this outcome.
    Done(Vec<u8>),
    /// [`Once`](super::Once) began an attempt that has not finished. Let it finish, or take it over there.
    Unfinished,
}

/// A claim of a key by a transaction. Unless it keeps an outcome and commits, the next caller does the work.
#[derive(Debug)]
#[must_use = "without an outcome the next caller does the work again"]
pub struct FirstInPostgres {
    key: String,
}

impl FirstInPostgres {
    /// Keeps the outcome for this long, once the transaction commits.
    ///
    /// # Errors
    ///
    /// Those of PostgreSQL.
    pub async fn keep(
        self,
        transaction: &Transaction<'_>,
        outcome: &[u8],
        keep: Duration,
    ) -> Result<(), tokio_postgres::Error> {
        let keep_ms = milliseconds(keep);
        let kept = [text(&self.key), big(&NO_TOKEN), bytes(&outcome), float(&keep_ms)];
        transaction.execute_typed(KEEP, &kept).await?;
        Ok(())
    }
}

/// Claims a key in a transaction of the application. Work that changes only this database then happens exactly once, without a lock:
/// the record and the work are committed together. While another transaction has claimed the key, this waits for its end. The table of
/// [`POSTGRES_SCHEMA`](super::POSTGRES_SCHEMA) must exist, and the isolation level must be PostgreSQL's default.
///
/// ```no_run
/// # async fn pay(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use palisade::recipe::once::{KEEP, PostgresClaim, claim_in_postgres};
///
/// let transaction = client.transaction().await?;
/// if let PostgresClaim::First(claim) = claim_in_postgres(&transaction, "payment/42").await? {
///     transaction.execute("UPDATE account SET balance = balance - 5 WHERE id = 7", &[]).await?;
///     claim.keep(&transaction, b"paid", KEEP).await?;
/// }
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Those of PostgreSQL.
pub async fn claim_in_postgres(
    transaction: &Transaction<'_>,
    key: &str,
) -> Result<PostgresClaim, tokio_postgres::Error> {
    let (no_request, keep_ms) = (None::<&[u8]>, milliseconds(super::KEEP));
    let claim = [text(&key), big(&NO_TOKEN), bytes(&no_request), float(&keep_ms)];
    loop {
        if transaction.execute_typed(CLAIM, &claim).await? == 1 {
            return Ok(PostgresClaim::First(FirstInPostgres { key: key.to_owned() }));
        }
        let Some(row) = transaction.query_typed_opt(LOCK, &[text(&key)]).await? else { continue };
        let record = record(&row)?;
        // Without a token and an outcome: a transaction has claimed it, and committed nevertheless.
        if record.is_expired || (record.token.is_none() && record.outcome.is_none()) {
            transaction.execute_typed(TAKE_OVER, &claim).await?;
            return Ok(PostgresClaim::First(FirstInPostgres { key: key.to_owned() }));
        }
        return Ok(record.outcome.map_or(PostgresClaim::Unfinished, PostgresClaim::Done));
    }
}
