//! Records in MySQL.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error as MysqlError, Row, Transaction, TxOpts, Value};

use super::record::{number, stored_token};
use super::{Attempt, Begun, Finished, OnceStore, Record};
use crate::Error;
use crate::recipe::store::{Call, Mysql, is_contention, is_missing_in_mysql};

/// The table of the records. A recipe creates it if it is missing and the user may do so.
///
/// Keys are compared byte by byte, in every collation of the database.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS palisade_once (
    `key` VARBINARY(1024) PRIMARY KEY,
    token BIGINT NOT NULL,
    request VARBINARY(1024),
    outcome LONGBLOB,
    keep_until_ms BIGINT NOT NULL,
    INDEX keep_until (keep_until_ms)
) ENGINE = InnoDB";

/// Milliseconds since 1970. The sessions of the store use UTC: in a time zone with summer time, two moments can have the same number.
const NOW_MS: &str = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)";

/// A deadlock or a row lock that does not become free fails a transaction. It is repeated this often.
const ATTEMPTS: u32 = 8;

impl OnceStore for Mysql {
    async fn find(&self, key: &str) -> Result<Option<Record>, Error> {
        const OPERATION: &str = "read the record of";
        let call = Call { operation: OPERATION, key, writes: false };
        let work = async {
            let mut conn = self.connection(OPERATION, key).await?;
            match find(&mut conn, key, "").await {
                Ok(record) => Ok(record.filter(|record| !record.is_expired)),
                Err(error) if is_missing_in_mysql(&error) => Ok(None),
                Err(error) => Err(self.error(error, false, OPERATION, key)),
            }
        };
        self.bounded(call, work).await
    }

    async fn begin(&self, key: &str, attempt: &Attempt) -> Result<Begun, Error> {
        const OPERATION: &str = "begin";
        let call = Call { operation: OPERATION, key, writes: true };
        let work = async {
            let mut conn = self.connection(OPERATION, key).await?;
            let mut failures = 0;
            loop {
                match begin(&mut conn, key, attempt).await {
                    Err(failed) if is_missing_in_mysql(&failed.error) && failures == 0 => {
                        conn.query_drop(SCHEMA).await.map_err(|error| self.error(error, false, OPERATION, key))?;
                    }
                    Err(failed) if is_contention(&failed.error) && failures < ATTEMPTS => {}
                    begun => {
                        return begun
                            .map_err(|failed| self.error(failed.error, failed.is_committing, OPERATION, key));
                    }
                }
                failures += 1;
            }
        };
        self.bounded(call, work).await
    }

    async fn finish(&self, key: &str, attempt: &Attempt, outcome: &[u8]) -> Result<Finished, Error> {
        const OPERATION: &str = "keep the outcome of";
        let call = Call { operation: OPERATION, key, writes: true };
        let work = async {
            let mut conn = self.connection(OPERATION, key).await?;
            let mut failures = 0;
            loop {
                match finish(&mut conn, key, attempt, outcome).await {
                    // The table was dropped while the work was done, and its record with it.
                    Err(failed) if is_missing_in_mysql(&failed.error) => return Ok(Finished::Refused { by: None }),
                    Err(failed) if is_contention(&failed.error) && failures < ATTEMPTS => {}
                    done => {
                        return done.map_err(|failed| self.error(failed.error, failed.is_committing, OPERATION, key));
                    }
                }
                failures += 1;
            }
        };
        self.bounded(call, work).await
    }
}

/// A statement that failed.
struct Failed {
    error: MysqlError,
    /// Whether it was the commit.
    is_committing: bool,
}

impl From<MysqlError> for Failed {
    fn from(error: MysqlError) -> Failed {
        Failed { error, is_committing: false }
    }
}

async fn commit(transaction: Transaction<'_>) -> Result<(), Failed> {
    transaction.commit().await.map_err(|error| Failed { error, is_committing: true })
}

async fn begin(conn: &mut Conn, key: &str, attempt: &Attempt) -> Result<Begun, Failed> {
    let mut transaction = conn.start_transaction(TxOpts::new()).await?;
    let params = |request: Option<&[u8]>| {
        let (token, keep_ms) = (number(attempt.token), milliseconds(attempt.keep_unfinished()));
        (key.as_bytes().to_owned(), token, request.map(<[u8]>::to_owned), keep_ms)
    };
    let request = attempt.request.as_deref();
    let values = format!("INTO palisade_once VALUES (?, ?, ?, NULL, {NOW_MS} + ?)");
    let begun = loop {
        // Also waits for a transaction that has inserted the row and not committed yet.
        let claimed = transaction.exec_iter(format!("INSERT IGNORE {values}"), params(request)).await?;
        if claimed.affected_rows() == 1 {
            drop(claimed);
            break Begun::Run { previous: None };
        }
        drop(claimed);
        // If the row is gone, another attempt has just removed it, because its time has passed.
        let Some(record) = find(&mut transaction, key, " FOR UPDATE").await? else { continue };
        let begun = Record::begin(Some(&record), attempt.token, request);
        if let Begun::Run { .. } = begun {
            let request = Record::request(Some(&record), request);
            transaction.exec_drop(format!("REPLACE {values}"), params(request)).await?;
        }
        break begun;
    };
    commit(transaction).await?;
    // Each attempt removes some records whose time has passed, so that they do not pile up. Another attempt that does the same
    // can make this fail, which does no harm.
    let remove = format!("DELETE FROM palisade_once WHERE keep_until_ms < {NOW_MS} AND `key` <> ? LIMIT 4");
    if let Err(error) = conn.exec_drop(remove, (key.as_bytes(),)).await {
        tracing::debug!(%error, "removing old records failed");
    }
    Ok(begun)
}

async fn finish(conn: &mut Conn, key: &str, attempt: &Attempt, outcome: &[u8]) -> Result<Finished, Failed> {
    let mut transaction = conn.start_transaction(TxOpts::new()).await?;
    let record = find(&mut transaction, key, " FOR UPDATE").await?;
    let finished = Record::finish(record.as_ref(), attempt.token);
    if finished == Finished::Kept {
        let sql = format!("UPDATE palisade_once SET outcome = ?, keep_until_ms = {NOW_MS} + ? WHERE `key` = ?");
        transaction.exec_drop(sql, (outcome, milliseconds(attempt.keep), key.as_bytes())).await?;
    }
    commit(transaction).await?;
    Ok(finished)
}

async fn find(conn: &mut impl Queryable, key: &str, lock: &str) -> Result<Option<Record>, MysqlError> {
    let sql =
        format!("SELECT token, request, outcome, keep_until_ms < {NOW_MS} FROM palisade_once WHERE `key` = ?{lock}");
    let row: Option<Row> = conn.exec_first(sql, (key.as_bytes(),)).await?;
    row.map(|row| {
        let [token, request, outcome, is_expired] =
            <[Value; 4]>::try_from(row.unwrap()).map_err(|_| unexpected("another number of columns"))?;
        let number = |value| match value {
            Value::Int(number) => Ok(number),
            Value::UInt(number) => i64::try_from(number).map_err(|_| unexpected("a number out of range")),
            _ => Err(unexpected("no number")),
        };
        let bytes = |value| match value {
            Value::NULL => Ok(None),
            Value::Bytes(bytes) => Ok(Some(bytes)),
            _ => Err(unexpected("no bytes")),
        };
        let (token, is_expired) = (stored_token(number(token)?), number(is_expired)? != 0);
        Ok(Record { token, request: bytes(request)?, outcome: bytes(outcome)?, is_expired })
    })
    .transpose()
}

fn unexpected(what: &str) -> MysqlError {
    MysqlError::Other(format!("the table palisade_once has {what} where a record is expected").into())
}

fn milliseconds(keep: Duration) -> i64 {
    i64::try_from(keep.as_millis()).unwrap_or(i64::MAX)
}
