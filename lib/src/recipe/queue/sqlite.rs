//! Queues in SQLite. A transaction that writes excludes all others, so no row needs a lock.

use std::time::Duration;

use palisade_core::Token;
use rusqlite::{Connection, Error as SqliteError, OptionalExtension, Row, Transaction, params};

use super::rules::{Delivery, JobId, KeyState, Settled};
use super::{Job, JobError, JobInfo, JobState, LIST, Listed, PUSH, Policy, Queue, QueueStore, SETTLE, Settle, TAKE};
use crate::recipe::store::Sqlite;
use crate::{BootInstant, Error, ErrorKind};

/// The tables of the queues. The other functions of this module create them if they are missing.
///
/// A key has a row while it has jobs that are not dead. Its `due_ms` is when its first job may be delivered, in milliseconds since the host
/// was booted: no step of the wall clock delivers a job early or late. While a job is in work, that is when its visibility passes;
/// behind a dead letter that blocks, it is `NEVER`, the highest number. `after_ms` is how far ahead it was when it was set. After a
/// reboot, which `boot` shows, that time begins again.
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
    after_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS palisade_queue_boot (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    boot INTEGER NOT NULL
);
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
        let (name, key, payload, boot) = (queue.to_owned(), key.to_owned(), payload.to_owned(), self.boot());
        let push = move |transaction: &Transaction<'_>| {
            push(&Clocked::new(transaction, boot)?, &name, &key, &payload, max_depth)
        };
        self.write((PUSH, queue), SCHEMA, push).await
    }

    async fn take(&self, queue: &str, policy: &Policy) -> Result<Option<(Delivery, Vec<u8>)>, Error> {
        let (name, policy, boot) = (queue.to_owned(), policy.clone(), self.boot());
        let taken = self.write((TAKE, queue), SCHEMA, move |transaction| {
            let database = Clocked::new(transaction, boot)?;
            for _ in 0..LOOKS {
                match take(&database, &name, &policy)? {
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
        let (name, delivery, how, boot) = (queue.to_owned(), delivery.clone(), how.clone(), self.boot());
        let settle =
            move |transaction: &Transaction<'_>| settle(&Clocked::new(transaction, boot)?, &name, &delivery, &how);
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
        let (name, boot) = (queue.to_owned(), self.boot());
        let retry = move |transaction: &Transaction<'_>| {
            let database = Clocked::new(transaction, boot)?;
            let Some((key, dead)) = dead_letter(transaction, &name, id)? else { return Ok(false) };
            let sql = "UPDATE palisade_queue_job SET dead = 0, attempt = 0 WHERE id = ?1";
            transaction.execute(sql, [id.0])?;
            ensure_key(&database, &name, &key)?;
            unblock(&database, &name, &key, dead)?;
            Ok(true)
        };
        self.write(("retry a job of", queue), SCHEMA, retry).await
    }

    async fn discard(&self, queue: &str, id: JobId) -> Result<bool, Error> {
        let (name, boot) = (queue.to_owned(), self.boot());
        let discard = move |transaction: &Transaction<'_>| {
            let Some((key, dead)) = dead_letter(transaction, &name, id)? else { return Ok(false) };
            transaction.execute("DELETE FROM palisade_queue_job WHERE id = ?1", [id.0])?;
            unblock(&Clocked::new(transaction, boot)?, &name, &key, dead)?;
            remove_if_idle(transaction, &name, &key)?;
            Ok(true)
        };
        self.write(("discard a job of", queue), SCHEMA, discard).await
    }
}

/// A database in a transaction, and the time of that transaction.
struct Clocked<'a> {
    connection: &'a Connection,
    /// Milliseconds since the host was booted.
    now_ms: i64,
}

impl Clocked<'_> {
    /// Reads the clock. After a reboot, every time that was set before begins again.
    fn new(connection: &Connection, boot: i64) -> Result<Clocked<'_>, SqliteError> {
        let database = Clocked { connection, now_ms: milliseconds(BootInstant::now().since_boot()) };
        let known =
            connection.prepare_cached("SELECT boot FROM palisade_queue_boot")?.query_row([], |row| row.get(0));
        if known.optional()? != Some(boot) {
            let sql = "UPDATE palisade_queue_key SET due_ms = ?1 + after_ms WHERE due_ms <> ?2";
            connection.execute(sql, [database.now_ms, NEVER])?;
            let sql = "INSERT INTO palisade_queue_boot VALUES (1, ?1) ON CONFLICT DO UPDATE SET boot = excluded.boot";
            connection.execute(sql, [boot])?;
        }
        Ok(database)
    }

    /// Makes a key due after this time. No job of it is in work then, unless `job` says which.
    fn set_due(&self, queue: &str, key: &str, after: Duration, job: Option<JobId>) -> Result<(), SqliteError> {
        let after_ms = milliseconds(after);
        let sql = "UPDATE palisade_queue_key SET due_ms = ?3, after_ms = ?4, job = ?5 WHERE queue = ?1 AND key = ?2";
        let params = params![queue, key, self.now_ms.saturating_add(after_ms), after_ms, job.map(|id| id.0)];
        self.connection.prepare_cached(sql)?.execute(params)?;
        Ok(())
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
    database: &Clocked<'_>,
    queue: &str,
    key: &str,
    payload: &[u8],
    max_depth: Option<u32>,
) -> Result<Option<JobId>, SqliteError> {
    let connection = database.connection;
    if let Some(max_depth) = max_depth {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM palisade_queue_job WHERE queue = ?1 LIMIT ?2)";
        let depth: u32 = connection.prepare_cached(sql)?.query_row(params![queue, max_depth], |row| row.get(0))?;
        if depth >= max_depth {
            return Ok(None);
        }
    }
    ensure_key(database, queue, key)?;
    let sql = "INSERT INTO palisade_queue_job (queue, key, payload) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(sql)?.execute(params![queue, key, payload])?;
    Ok(Some(JobId(connection.last_insert_rowid())))
}

/// Adds the row of a key, unless it is there.
fn ensure_key(database: &Clocked<'_>, queue: &str, key: &str) -> Result<(), SqliteError> {
    let sql =
        "INSERT INTO palisade_queue_key (queue, key, token, due_ms) VALUES (?1, ?2, 0, ?3) ON CONFLICT DO NOTHING";
    database.connection.prepare_cached(sql)?.execute(params![queue, key, database.now_ms])?;
    Ok(())
}

fn take(database: &Clocked<'_>, queue: &str, policy: &Policy) -> Result<Taken, SqliteError> {
    let connection = database.connection;
    let sql = "SELECT key, token, (SELECT floor FROM palisade_queue WHERE queue = ?1) FROM palisade_queue_key
                   WHERE queue = ?1 AND due_ms <= ?2 ORDER BY due_ms LIMIT 1";
    let due = connection.prepare_cached(sql)?.query_row(params![queue, database.now_ms], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<i64>>(2)?))
    });
    let Some((key, last, floor)) = due.optional()? else { return Ok(Taken::Nothing) };
    let sql = "SELECT id, attempt, payload FROM palisade_queue_job WHERE queue = ?1 AND key = ?2 AND dead = 0
                   ORDER BY id LIMIT 1";
    let first = connection
        .prepare_cached(sql)?
        .query_row([queue, &key], |row| Ok((JobId(row.get(0)?), row.get::<_, u32>(1)?, row.get::<_, Vec<u8>>(2)?)));
    let Some((id, attempt, payload)) = first.optional()? else {
        // An application has removed jobs by hand.
        remove_if_idle(connection, queue, &key)?;
        return Ok(Taken::Buried);
    };
    if attempt >= policy.attempts {
        bury(database, queue, &key, id, policy.dead_letters_block, None)?;
        return Ok(Taken::Buried);
    }
    let Some(token) = KeyState::next_token(last, floor.unwrap_or_default()) else { return Ok(Taken::NoToken) };
    let sql = "UPDATE palisade_queue_key SET token = ?3 WHERE queue = ?1 AND key = ?2";
    connection.prepare_cached(sql)?.execute(params![queue, key, number(token)])?;
    database.set_due(queue, &key, policy.visibility, Some(id))?;
    let sql = "UPDATE palisade_queue_job SET attempt = attempt + 1 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute([id.0])?;
    Ok(Taken::Job(Delivery { id, key, attempt: attempt + 1, token }, payload))
}

fn settle(database: &Clocked<'_>, queue: &str, delivery: &Delivery, how: &Settle) -> Result<Settled, SqliteError> {
    let connection = database.connection;
    let Delivery { id, key, .. } = delivery;
    let sql = "SELECT token, job FROM palisade_queue_key WHERE queue = ?1 AND key = ?2";
    let state = connection.prepare_cached(sql)?.query_row([queue, key], |row| {
        Ok(KeyState { token: token(row.get(0)?), job: row.get::<_, Option<i64>>(1)?.map(JobId) })
    });
    let settled = KeyState::settle(state.optional()?, delivery);
    if settled != Settled::Applied {
        return Ok(settled);
    }
    match how {
        Settle::Done => {
            connection.prepare_cached("DELETE FROM palisade_queue_job WHERE id = ?1")?.execute([id.0])?;
            database.set_due(queue, key, Duration::ZERO, None)?;
            remove_if_idle(connection, queue, key)?;
        }
        Settle::Retry { after, reason } => {
            let sql = "UPDATE palisade_queue_job SET reason = ?2 WHERE id = ?1";
            connection.execute(sql, params![id.0, reason])?;
            database.set_due(queue, key, *after, None)?;
        }
        Settle::GiveBack => {
            connection.execute("UPDATE palisade_queue_job SET attempt = attempt - 1 WHERE id = ?1", [id.0])?;
            database.set_due(queue, key, Duration::ZERO, None)?;
        }
        Settle::Bury { is_blocking, reason } => bury(database, queue, key, *id, *is_blocking, Some(reason))?,
        Settle::Extend(visibility) => database.set_due(queue, key, *visibility, Some(*id))?,
    }
    Ok(settled)
}

/// Makes a job a dead letter. Without a reason, the one of its last failure is kept.
fn bury(
    database: &Clocked<'_>,
    queue: &str,
    key: &str,
    id: JobId,
    is_blocking: bool,
    reason: Option<&str>,
) -> Result<(), SqliteError> {
    let sql = "UPDATE palisade_queue_job SET dead = ?2, reason = coalesce(?3, reason, ?4) WHERE id = ?1";
    let dead = if is_blocking { BLOCKING } else { SKIPPED };
    database.connection.execute(sql, params![id.0, dead, reason, super::NOT_SETTLED])?;
    if is_blocking {
        let sql = "UPDATE palisade_queue_key SET job = NULL, due_ms = ?3 WHERE queue = ?1 AND key = ?2";
        database.connection.execute(sql, params![queue, key, NEVER])?;
        return Ok(());
    }
    database.set_due(queue, key, Duration::ZERO, None)?;
    remove_if_idle(database.connection, queue, key)
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
fn unblock(database: &Clocked<'_>, queue: &str, key: &str, dead: i64) -> Result<(), SqliteError> {
    match dead == BLOCKING {
        true => database.set_due(queue, key, Duration::ZERO, None),
        false => Ok(()),
    }
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
            .and_then(|()| Clocked::new(transaction, self.store.boot()))
            .and_then(|database| push(&database, &self.name, key, payload, self.policy.max_depth));
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
        let settled = Clocked::new(transaction, self.queue.store.boot())
            .and_then(|database| settle(&database, &self.queue.name, &self.delivery, &Settle::Done));
        self.outcome(settled.map_err(|error| Sqlite::error(error, SETTLE, &self.queue.name))?, false)
    }
}
