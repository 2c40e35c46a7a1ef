//! Queues in SQLite. A transaction that writes excludes all others, so no row needs a lock.

use std::time::Duration;

use palisade_core::Token;
use rusqlite::{Connection, Error as SqliteError, OptionalExtension, Row, Transaction, params};

use super::rules::{Delivery, JobId, KeyState, Settled};
use super::{Job, JobError, JobInfo, JobState, LIST, Listed, PUSH, Policy, Queue, QueueStore, SETTLE, Settle, TAKE};
use crate::recipe::store::Sqlite;
use crate::{Error, ErrorKind};

/// The tables of the queues. The other functions of this module create them if they are missing.
///
/// A key has a row while it has jobs that are not dead. Its `due_ms` is when its first job may be delivered. While a job is in work, that
/// is when its visibility passes; behind a dead letter that blocks, it is `NEVER`, the highest number.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS palisade_queue (
    queue TEXT PRIMARY KEY,
    floor INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS palisade_queue_key (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    token INTEGER NOT NULL,
    job INTEGER,
    due_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS palisade_queue_key_due ON palisade_queue_key (queue, due_ms);
CREATE TABLE IF NOT EXISTS palisade_queue_job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    payload BLOB NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    reason TEXT
);
CREATE INDEX IF NOT EXISTS palisade_queue_job_live ON palisade_queue_job (queue, key, id) WHERE dead = 0;
CREATE INDEX IF NOT EXISTS palisade_queue_job_dead ON palisade_queue_job (queue, id) WHERE dead <> 0;";

const NOW_MS: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
/// When a key is due that a dead letter blocks.
const NEVER: i64 = i64::MAX;
/// The column `dead` of a job: 0, or one of these.
const SKIPPED: i64 = 1;
const BLOCKING: i64 = 2;
/// Each take looks at no more keys than this whose jobs have become dead letters.
const LOOKS: u32 = 32;

impl QueueStore for Sqlite {
    const NAME: &'static str = "sqlite";

    async fn push(
        &self,
        queue: &str,
        key: &str,
        payload: &[u8],
        max_depth: Option<u32>,
    ) -> Result<Option<JobId>, Error> {
        let (name, key, payload) = (queue.to_owned(), key.to_owned(), payload.to_owned());
        let push = move |transaction: &Transaction<'_>| push(transaction, &name, &key, &payload, max_depth);
        self.write((PUSH, queue), SCHEMA, push).await
    }

    async fn take(&self, queue: &str, policy: &Policy) -> Result<Option<(Delivery, Vec<u8>)>, Error> {
        let (name, policy) = (queue.to_owned(), policy.clone());
        let taken = self.write((TAKE, queue), SCHEMA, move |transaction| {
            for _ in 0..LOOKS {
                match take(transaction, &name, &policy)? {
                    Taken::Buried => {}
                    taken => return Ok(taken),
                }
            }
            Ok(Taken::Nothing)
        });
        match taken.await? {
            Taken::Job(delivery, payload) => Ok(Some((delivery, payload))),
            Taken::Nothing | Taken::Buried => Ok(None),
            Taken::NoToken => {
                let what = "the tokens of the queue are used up".to_owned();
                let kind =
                    ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: false, source: None };
                Err(Error::new(kind, Self::NAME, TAKE).on(queue))
            }
        }
    }

    async fn settle(&self, queue: &str, delivery: &Delivery, how: &Settle) -> Result<Settled, Error> {
        let (name, delivery, how) = (queue.to_owned(), delivery.clone(), how.clone());
        let settle = move |transaction: &Transaction<'_>| settle(transaction, &name, &delivery, &how);
        self.write((SETTLE, queue), SCHEMA, settle).await
    }

    async fn list(&self, queue: &str, listed: Listed, limit: u32) -> Result<Vec<JobInfo>, Error> {
        let name = queue.to_owned();
        self.write((LIST, queue), SCHEMA, move |transaction| list(transaction, &name, listed, limit)).await
    }

    async fn payload(&self, queue: &str, id: JobId) -> Result<Option<Vec<u8>>, Error> {
        let name = queue.to_owned();
        let payload = move |transaction: &Transaction<'_>| {
            let sql = "SELECT payload FROM palisade_queue_job WHERE queue = ?1 AND id = ?2";
            transaction.query_row(sql, params![name, id.0], |row| row.get(0)).optional()
        };
        self.write((LIST, queue), SCHEMA, payload).await
    }

    async fn retry(&self, queue: &str, id: JobId) -> Result<bool, Error> {
        let name = queue.to_owned();
        let retry = move |transaction: &Transaction<'_>| {
            let Some((key, dead)) = dead_letter(transaction, &name, id)? else { return Ok(false) };
            let sql = "UPDATE palisade_queue_job SET dead = 0, attempt = 0 WHERE id = ?1";
            transaction.execute(sql, [id.0])?;
            ensure_key(transaction, &name, &key)?;
            unblock(transaction, &name, &key, dead)?;
            Ok(true)
        };
        self.write(("retry a job of", queue), SCHEMA, retry).await
    }

    async fn discard(&self, queue: &str, id: JobId) -> Result<bool, Error> {
        let name = queue.to_owned();
        let discard = move |transaction: &Transaction<'_>| {
            let Some((key, dead)) = dead_letter(transaction, &name, id)? else { return Ok(false) };
            transaction.execute("DELETE FROM palisade_queue_job WHERE id = ?1", [id.0])?;
            unblock(transaction, &name, &key, dead)?;
            remove_if_idle(transaction, &name, &key)?;
            Ok(true)
        };
        self.write(("discard a job of", queue), SCHEMA, discard).await
    }
}

/// The result of one look for a job.
enum Taken {
    Job(Delivery, Vec<u8>),
    /// No key is due.
    Nothing,
    /// The attempts of a job were used up, so it is a dead letter now. Look again.
    Buried,
    NoToken,
}

fn push(
    connection: &Connection,
    queue: &str,
    key: &str,
    payload: &[u8],
    max_depth: Option<u32>,
) -> Result<Option<JobId>, SqliteError> {
    if let Some(max_depth) = max_depth {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM palisade_queue_job WHERE queue = ?1 LIMIT ?2)";
        let depth: u32 = connection.prepare_cached(sql)?.query_row(params![queue, max_depth], |row| row.get(0))?;
        if depth >= max_depth {
            return Ok(None);
        }
    }
    ensure_key(connection, queue, key)?;
    let sql = "INSERT INTO palisade_queue_job (queue, key, payload) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(sql)?.execute(params![queue, key, payload])?;
    Ok(Some(JobId(connection.last_insert_rowid())))
}

/// Adds the row of a key, unless it is there.
fn ensure_key(connection: &Connection, queue: &str, key: &str) -> Result<(), SqliteError> {
    let sql = format!(
        "INSERT INTO palisade_queue_key (queue, key, token, due_ms) VALUES (?1, ?2, 0, {NOW_MS}) ON CONFLICT DO NOTHING"
    );
    connection.prepare_cached(&sql)?.execute([queue, key])?;
    Ok(())
}

fn take(transaction: &Transaction<'_>, queue: &str, policy: &Policy) -> Result<Taken, SqliteError> {
    let sql = format!(
        "SELECT key, token, (SELECT floor FROM palisade_queue WHERE queue = ?1) FROM palisade_queue_key
             WHERE queue = ?1 AND due_ms <= {NOW_MS} ORDER BY due_ms LIMIT 1"
    );
    let due = transaction.prepare_cached(&sql)?.query_row([queue], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<i64>>(2)?))
    });
    let Some((key, last, floor)) = due.optional()? else { return Ok(Taken::Nothing) };
    let sql = "SELECT id, attempt, payload FROM palisade_queue_job WHERE queue = ?1 AND key = ?2 AND dead = 0
                   ORDER BY id LIMIT 1";
    let first = transaction
        .prepare_cached(sql)?
        .query_row([queue, &key], |row| Ok((JobId(row.get(0)?), row.get::<_, u32>(1)?, row.get::<_, Vec<u8>>(2)?)));
    let Some((id, attempt, payload)) = first.optional()? else {
        // An application has removed jobs by hand.
        remove_if_idle(transaction, queue, &key)?;
        return Ok(Taken::Buried);
    };
    if attempt >= policy.attempts {
        bury(transaction, queue, &key, id, policy.dead_letters_block, None)?;
        return Ok(Taken::Buried);
    }
    let Some(token) = KeyState::next_token(last, floor.unwrap_or_default()) else { return Ok(Taken::NoToken) };
    let sql = format!(
        "UPDATE palisade_queue_key SET token = ?3, job = ?4, due_ms = {NOW_MS} + ?5 WHERE queue = ?1 AND key = ?2"
    );
    let visibility_ms = milliseconds(policy.visibility);
    transaction.prepare_cached(&sql)?.execute(params![queue, key, number(token), id.0, visibility_ms])?;
    let sql = "UPDATE palisade_queue_job SET attempt = attempt + 1 WHERE id = ?1";
    transaction.prepare_cached(sql)?.execute([id.0])?;
    Ok(Taken::Job(Delivery { id, key, attempt: attempt + 1, token }, payload))
}

fn settle(connection: &Connection, queue: &str, delivery: &Delivery, how: &Settle) -> Result<Settled, SqliteError> {
    let Delivery { id, key, .. } = delivery;
    let sql = "SELECT token, job FROM palisade_queue_key WHERE queue = ?1 AND key = ?2";
    let state = connection.prepare_cached(sql)?.query_row([queue, key], |row| {
        Ok(KeyState { token: token(row.get(0)?), job: row.get::<_, Option<i64>>(1)?.map(JobId) })
    });
    let settled = KeyState::settle(state.optional()?, delivery);
    if settled != Settled::Applied {
        return Ok(settled);
    }
    let later = |in_work: &str, time: Duration| -> Result<(), SqliteError> {
        let sql =
            format!("UPDATE palisade_queue_key SET due_ms = {NOW_MS} + ?3{in_work} WHERE queue = ?1 AND key = ?2");
        connection.prepare_cached(&sql)?.execute(params![queue, key, milliseconds(time)])?;
        Ok(())
    };
    match how {
        Settle::Done => {
            connection.prepare_cached("DELETE FROM palisade_queue_job WHERE id = ?1")?.execute([id.0])?;
            later(", job = NULL", Duration::ZERO)?;
            remove_if_idle(connection, queue, key)?;
        }
        Settle::Retry { after, reason } => {
            let sql = "UPDATE palisade_queue_job SET reason = ?2 WHERE id = ?1";
            connection.execute(sql, params![id.0, reason])?;
            later(", job = NULL", *after)?;
        }
        Settle::GiveBack => {
            connection.execute("UPDATE palisade_queue_job SET attempt = attempt - 1 WHERE id = ?1", [id.0])?;
            later(", job = NULL", Duration::ZERO)?;
        }
        Settle::Bury { is_blocking, reason } => bury(connection, queue, key, *id, *is_blocking, Some(reason))?,
        Settle::Extend(visibility) => later("", *visibility)?,
    }
    Ok(settled)
}

/// Makes a job a dead letter. Without a reason, the one of its last failure is kept.
fn bury(
    connection: &Connection,
    queue: &str,
    key: &str,
    id: JobId,
    is_blocking: bool,
    reason: Option<&str>,
) -> Result<(), SqliteError> {
    let sql = "UPDATE palisade_queue_job SET dead = ?2, reason = coalesce(?3, reason, ?4) WHERE id = ?1";
    let dead = if is_blocking { BLOCKING } else { SKIPPED };
    connection.execute(sql, params![id.0, dead, reason, super::NOT_SETTLED])?;
    let due = if is_blocking { NEVER.to_string() } else { NOW_MS.to_owned() };
    let sql = format!("UPDATE palisade_queue_key SET job = NULL, due_ms = {due} WHERE queue = ?1 AND key = ?2");
    connection.execute(&sql, [queue, key])?;
    if !is_blocking {
        remove_if_idle(connection, queue, key)?;
    }
    Ok(())
}

/// Removes the row of a key that has no jobs and no dead letter that blocks it. New rows then get tokens above its last one.
fn remove_if_idle(connection: &Connection, queue: &str, key: &str) -> Result<(), SqliteError> {
    let sql = "DELETE FROM palisade_queue_key WHERE queue = ?1 AND key = ?2 AND due_ms <> ?3 AND NOT EXISTS
                   (SELECT 1 FROM palisade_queue_job WHERE queue = ?1 AND key = ?2 AND dead = 0) RETURNING token";
    let removed = connection.prepare_cached(sql)?.query_row(params![queue, key, NEVER], |row| row.get::<_, i64>(0));
    if let Some(token) = removed.optional()? {
        let sql = "INSERT INTO palisade_queue (queue, floor) VALUES (?1, ?2)
                       ON CONFLICT (queue) DO UPDATE SET floor = max(floor, excluded.floor)";
        connection.prepare_cached(sql)?.execute(params![queue, token])?;
    }
    Ok(())
}

/// Returns the key of a dead letter, and its column `dead`.
fn dead_letter(connection: &Connection, queue: &str, id: JobId) -> Result<Option<(String, i64)>, SqliteError> {
    let sql = "SELECT key, dead FROM palisade_queue_job WHERE id = ?1 AND queue = ?2 AND dead <> 0";
    connection.query_row(sql, params![id.0, queue], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

/// Makes a key due that this dead letter has blocked.
fn unblock(connection: &Connection, queue: &str, key: &str, dead: i64) -> Result<(), SqliteError> {
    if dead == BLOCKING {
        let sql = format!("UPDATE palisade_queue_key SET due_ms = {NOW_MS} WHERE queue = ?1 AND key = ?2");
        connection.execute(&sql, [queue, key])?;
    }
    Ok(())
}

fn list(connection: &Connection, queue: &str, listed: Listed, limit: u32) -> Result<Vec<JobInfo>, SqliteError> {
    let dead = if listed == Listed::Dead { "j.dead <> 0" } else { "j.dead = 0" };
    let sql = format!(
        "SELECT j.id, j.key, j.attempt, j.dead, j.reason, length(j.payload), k.token
             FROM palisade_queue_job j LEFT JOIN palisade_queue_key k ON k.queue = j.queue AND k.key = j.key AND k.job = j.id
             WHERE j.queue = ?1 AND {dead} ORDER BY j.id LIMIT ?2"
    );
    connection.prepare(&sql)?.query_map(params![queue, limit], info)?.collect()
}

fn info(row: &Row<'_>) -> Result<JobInfo, SqliteError> {
    let (dead, in_work) = (row.get::<_, i64>(3)?, row.get::<_, Option<i64>>(6)?.and_then(token));
    let state = match (dead, in_work) {
        (0, Some(token)) => JobState::InWork { token },
        (0, None) => JobState::Waiting,
        (dead, _) => JobState::Dead { is_blocking: dead == BLOCKING },
    };
    let (id, key, attempt) = (JobId(row.get(0)?), row.get(1)?, row.get(2)?);
    Ok(JobInfo { id, key, attempt, state, reason: row.get(4)?, payload_bytes: row.get::<_, u32>(5)?.into() })
}

fn token(number: i64) -> Option<Token> {
    u64::try_from(number).ok().and_then(|number| Token::new(number).ok())
}

fn number(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Queue<Sqlite> {
    /// Adds a job in a transaction of the application, which changes its data and announces the change together: the job exists exactly if
    /// the transaction commits. Begin it as `IMMEDIATE`, in the file of the queue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("shop.db");
    /// use palisade::recipe::{queue::Queue, store::Sqlite};
    /// use rusqlite::{Connection, TransactionBehavior};
    ///
    /// let orders = Queue::new(&Sqlite::open(&file).await?, "orders");
    /// let mut database = Connection::open(&file)?;
    /// database.execute_batch("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")?;
    ///
    /// let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// transaction.execute("INSERT INTO account VALUES (7, 100)", [])?;
    /// orders.push_in(&transaction, "account/7", "welcome")?;
    /// transaction.commit()?;
    ///
    /// let job = orders.next().await?;
    /// let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// transaction.execute("UPDATE account SET balance = balance + 5 WHERE id = 7", [])?;
    /// job.done_in(&transaction)?;                             // the bonus and the end of the job: both or neither
    /// transaction.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The key or the payload is too long; the queue is full; SQLite failed.
    pub fn push_in(
        &self,
        transaction: &Transaction<'_>,
        key: &str,
        payload: impl AsRef<[u8]>,
    ) -> Result<JobId, Error> {
        let payload = payload.as_ref();
        self.check_job(key, payload)?;
        let pushed = transaction
            .execute_batch(SCHEMA)
            .and_then(|()| push(transaction, &self.name, key, payload, self.policy.max_depth));
        let pushed = pushed.map_err(|error| Sqlite::error(error, PUSH, &self.name))?;
        pushed.ok_or_else(|| self.full(key))
    }
}

impl Job<Sqlite> {
    /// Removes the job from the queue in a transaction of the application, which has the result of the work too. So the work is done
    /// exactly once. Begin the transaction as `IMMEDIATE`, in the file of the queue. See [`Queue::push_in`] for an example.
    ///
    /// # Errors
    ///
    /// [`JobError::Stale`] if the job was delivered again: roll the transaction back. SQLite failed.
    pub fn done_in(&self, transaction: &Transaction<'_>) -> Result<(), JobError> {
        let settled = settle(transaction, &self.queue.name, &self.delivery, &Settle::Done);
        self.outcome(settled.map_err(|error| Sqlite::error(error, SETTLE, &self.queue.name))?, false)
    }
}
