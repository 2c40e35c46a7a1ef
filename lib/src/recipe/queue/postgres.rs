//! Queues in PostgreSQL.
//!
//! A delivery locks the row of its key, and skips rows that others have locked. A push takes the weakest lock on the row of its key
//! (`FOR KEY SHARE`), as a foreign key does. So an application's transaction that has pushed a job, and is still open, holds up neither the
//! delivery of earlier jobs of the key nor other pushes. The strongest lock (`FOR UPDATE`) excludes pushes. It is needed to declare a
//! key idle: a push that is not committed yet would otherwise be forgotten.

use std::time::Duration;

use palisade_core::Token;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error as PgError, Row, Transaction};

use super::rules::{Delivery, JobId, KeyState, Settled};
use super::{Job, JobError, JobInfo, JobState, LIST, Listed, PUSH, Policy, Queue, QueueStore, SETTLE, Settle, TAKE};
use crate::recipe::random::random;
use crate::recipe::store::{Call, Postgres, big, float, is_missing, milliseconds, text};
use crate::{Error, ErrorKind};

/// The tables of the queues. A recipe creates them if they are missing and the role may do so.
///
/// The `due_at` of a key is when its first job may be delivered. While a job is in work, that is when its visibility passes; behind a dead
/// letter that blocks, it is `infinity`. It is null while the key has no jobs; such a row is removed later.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS palisade_queue (
    queue text COLLATE \"C\" PRIMARY KEY,
    floor bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS palisade_queue_key (
    queue text COLLATE \"C\" NOT NULL,
    key text COLLATE \"C\" NOT NULL,
    token bigint NOT NULL,
    job bigint,
    due_at timestamptz,
    PRIMARY KEY (queue, key)
);
CREATE INDEX IF NOT EXISTS palisade_queue_key_due ON palisade_queue_key (queue, due_at);
CREATE TABLE IF NOT EXISTS palisade_queue_job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE \"C\" NOT NULL,
    key text COLLATE \"C\" NOT NULL,
    payload bytea NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    dead smallint NOT NULL DEFAULT 0,
    reason text
);
CREATE INDEX IF NOT EXISTS palisade_queue_job_live ON palisade_queue_job (queue, key, id) WHERE dead = 0;
CREATE INDEX IF NOT EXISTS palisade_queue_job_dead ON palisade_queue_job (queue, id) WHERE dead <> 0;";

/// The column `dead` of a job: 0, or one of these.
const SKIPPED: i16 = 1;
const BLOCKING: i16 = 2;
/// Each take looks at no more keys than this that have nothing to deliver.
const LOOKS: u32 = 32;
/// When a key is looked at again whose only job may be in a transaction that has not committed yet.
const UNCOMMITTED: Duration = Duration::from_millis(100);

const DEPTH: &str = "SELECT count(*) FROM (SELECT FROM palisade_queue_job WHERE queue = $1 LIMIT $2) AS jobs";
/// Waits while a key is being declared idle or removed, and then finds it idle or not at all.
const SHARE_KEY: &str = "SELECT due_at IS NULL FROM palisade_queue_key WHERE queue = $1 AND key = $2 FOR KEY SHARE";
const ADD_KEY: &str = "INSERT INTO palisade_queue_key (queue, key, token, due_at)
    VALUES ($1, $2, 0, clock_timestamp()) ON CONFLICT DO NOTHING";
const WAKE_KEY: &str = "UPDATE palisade_queue_key SET due_at = clock_timestamp()
    WHERE queue = $1 AND key = $2 AND due_at IS NULL";
const ADD_JOB: &str = "INSERT INTO palisade_queue_job (queue, key, payload) VALUES ($1, $2, $3) RETURNING id";
/// The time of the statement lets the index end the search. The time of the clock would make it read all keys.
const LOCK_DUE: &str = "SELECT key FROM palisade_queue_key WHERE queue = $1 AND due_at <= statement_timestamp()
    ORDER BY due_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED";
const FIRST_JOB: &str = "SELECT id, attempt, payload FROM palisade_queue_job
    WHERE queue = $1 AND key = $2 AND dead = 0 ORDER BY id LIMIT 1";
/// A row of a key that was removed and added again can only be seen together with the floor that its removal left.
const LAST_TOKEN: &str = "SELECT token, coalesce((SELECT floor FROM palisade_queue WHERE queue = $1), 0)
    FROM palisade_queue_key WHERE queue = $1 AND key = $2";
const DELIVER: &str = "WITH delivered AS (UPDATE palisade_queue_job SET attempt = attempt + 1 WHERE id = $4)
    UPDATE palisade_queue_key SET token = $3, job = $4, due_at = clock_timestamp() + $5 * interval '1 ms'
    WHERE queue = $1 AND key = $2";
const LOCK_KEY: &str = "SELECT token, job FROM palisade_queue_key WHERE queue = $1 AND key = $2 FOR NO KEY UPDATE";
/// Fails to lock the row exactly if a push is open.
const EXCLUDE_PUSHES: &str = "SELECT FROM palisade_queue_key WHERE queue = $1 AND key = $2 FOR UPDATE SKIP LOCKED";
/// Only called after `EXCLUDE_PUSHES`, in a statement of its own that sees what was committed before the lock.
const FREE_KEY: &str = "UPDATE palisade_queue_key k SET job = NULL, due_at = CASE
        WHEN EXISTS (SELECT FROM palisade_queue_job j WHERE j.queue = k.queue AND j.key = k.key AND j.dead = 0)
            THEN clock_timestamp()
        WHEN $3 THEN NULL
        ELSE clock_timestamp() + $4 * interval '1 ms' END
    WHERE queue = $1 AND key = $2";
const BLOCK_KEY: &str = "UPDATE palisade_queue_key SET job = NULL, due_at = 'infinity' WHERE queue = $1 AND key = $2";
const PAYLOAD: &str = "SELECT payload FROM palisade_queue_job WHERE queue = $1 AND id = $2";
const REMOVE_JOB: &str = "DELETE FROM palisade_queue_job WHERE id = $1";
const KEEP_REASON: &str = "UPDATE palisade_queue_job SET reason = $2 WHERE id = $1";
const BURY: &str = "UPDATE palisade_queue_job SET dead = $2, reason = coalesce($3, reason, $4) WHERE id = $1";
const UNCOUNT: &str = "UPDATE palisade_queue_job SET attempt = attempt - 1 WHERE id = $1";
const RETRY_LATER: &str = "UPDATE palisade_queue_key SET job = NULL,
    due_at = clock_timestamp() + $3 * interval '1 ms' WHERE queue = $1 AND key = $2";
const EXTEND: &str = "UPDATE palisade_queue_key SET due_at = clock_timestamp() + $3 * interval '1 ms'
    WHERE queue = $1 AND key = $2";
const DEAD_LETTER: &str = "SELECT key, dead FROM palisade_queue_job
    WHERE id = $1 AND queue = $2 AND dead <> 0 FOR UPDATE";
const REVIVE: &str = "UPDATE palisade_queue_job SET dead = 0, attempt = 0 WHERE id = $1";
const UNBLOCK: &str = "UPDATE palisade_queue_key SET due_at = clock_timestamp()
    WHERE queue = $1 AND key = $2 AND due_at = 'infinity'";
/// Removes some rows of idle keys, and raises the floor of new rows above their tokens in the same transaction.
const REMOVE_IDLE: &str = "WITH idle AS (
        SELECT key FROM palisade_queue_key WHERE queue = $1 AND due_at IS NULL LIMIT 64 FOR UPDATE SKIP LOCKED),
    removed AS (DELETE FROM palisade_queue_key k USING idle WHERE k.queue = $1 AND k.key = idle.key RETURNING k.token)
    INSERT INTO palisade_queue (queue, floor) SELECT $1, max(token) FROM removed HAVING count(*) > 0
    ON CONFLICT (queue) DO UPDATE SET floor = greatest(palisade_queue.floor, excluded.floor)";

impl QueueStore for Postgres {
    const NAME: &'static str = "postgres";

    async fn push(
        &self,
        queue: &str,
        key: &str,
        payload: &[u8],
        max_depth: Option<u32>,
    ) -> Result<Option<JobId>, Error> {
        self.transact((PUSH, queue), Missing::Create, &Push { queue, key, payload, max_depth }).await
    }

    async fn take(&self, queue: &str, policy: &Policy) -> Result<Option<(Delivery, Vec<u8>)>, Error> {
        for _ in 0..LOOKS {
            match self.transact((TAKE, queue), Missing::Empty, &Take { queue, policy }).await? {
                Taken::Job(delivery, payload) => return Ok(Some((delivery, payload))),
                Taken::NothingToDeliver => {}
                Taken::NoToken => return Err(no_token(queue)),
                Taken::Nothing => {
                    // The queue has time for it now.
                    self.remove_idle(queue).await;
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    async fn settle(&self, queue: &str, delivery: &Delivery, how: &Settle) -> Result<Settled, Error> {
        let settled = self.transact((SETTLE, queue), Missing::Empty, &Settling { queue, delivery, how }).await?;
        // Keys may be used once each, and the queue may never be empty. So some deliveries clean up, at random.
        if *how == Settle::Done && random().is_multiple_of(16) {
            self.remove_idle(queue).await;
        }
        Ok(settled)
    }

    async fn list(&self, queue: &str, listed: Listed, limit: u32) -> Result<Vec<JobInfo>, Error> {
        self.transact((LIST, queue), Missing::Empty, &List { queue, listed, limit }).await
    }

    async fn payload(&self, queue: &str, id: JobId) -> Result<Option<Vec<u8>>, Error> {
        self.transact((LIST, queue), Missing::Empty, &Payload { queue, id }).await
    }

    async fn retry(&self, queue: &str, id: JobId) -> Result<bool, Error> {
        self.transact(("retry a job of", queue), Missing::Empty, &Retry { queue, id }).await
    }

    async fn discard(&self, queue: &str, id: JobId) -> Result<bool, Error> {
        self.transact(("discard a job of", queue), Missing::Empty, &Discard { queue, id }).await
    }
}

/// What to do if the tables are missing.
#[derive(Clone, Copy)]
enum Missing {
    /// Create them, and try again.
    Create,
    /// Return the result for an empty queue, if there is one.
    Empty,
}

/// Work in a transaction. Futures of async closures are not known to be `Send`, so each kind of work is a type.
trait Work: Sync {
    type Output: Send;

    fn run(&self, transaction: &Transaction<'_>) -> impl Future<Output = Result<Self::Output, PgError>> + Send;

    /// Returns the result for an empty queue.
    fn of_nothing(&self) -> Option<Self::Output> {
        None
    }
}

impl Postgres {
    /// Runs work in a transaction, and commits it.
    async fn transact<W: Work>(
        &self,
        (operation, queue): (&'static str, &str),
        missing: Missing,
        work: &W,
    ) -> Result<W::Output, Error> {
        let transacted = async {
            let mut connection = self.connection(operation, queue).await?;
            let mut done = transact(&mut connection, work).await;
            if done.as_ref().is_err_and(|(error, _)| is_missing(error)) {
                match missing {
                    Missing::Create => {
                        self.create(&connection, (SCHEMA, "palisade_queue_job"), (operation, queue)).await?;
                        done = transact(&mut connection, work).await;
                    }
                    Missing::Empty => done = work.of_nothing().map_or(done, Ok),
                }
            }
            connection.keep();
            done.map_err(|(error, is_committing)| self.error(error, is_committing, operation, queue))
        };
        self.bounded(Call { operation, key: queue, writes: operation != LIST }, transacted).await
    }

    /// Removes rows of idle keys. A failure does no harm.
    async fn remove_idle(&self, queue: &str) {
        if let Err(error) = self.transact(("clean up", queue), Missing::Empty, &RemoveIdle { queue }).await {
            tracing::debug!(%error, "removing idle keys failed");
        }
    }
}

/// Runs work in a transaction, and commits it. An error comes with whether it was the commit that failed.
async fn transact<W: Work>(client: &mut Client, work: &W) -> Result<W::Output, (PgError, bool)> {
    let transaction = client.transaction().await.map_err(|error| (error, false))?;
    let done = work.run(&transaction).await.map_err(|error| (error, false))?;
    transaction.commit().await.map_err(|error| (error, true))?;
    Ok(done)
}

fn no_token(queue: &str) -> Error {
    let what = "the tokens of the queue are used up".to_owned();
    let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: false, source: None };
    Error::new(kind, Postgres::NAME, TAKE).on(queue)
}

struct Push<'a> {
    queue: &'a str,
    key: &'a str,
    payload: &'a [u8],
    max_depth: Option<u32>,
}

impl Work for Push<'_> {
    type Output = Option<JobId>;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<Option<JobId>, PgError> {
        push(transaction, self.queue, self.key, self.payload, self.max_depth).await
    }
}

struct Take<'a> {
    queue: &'a str,
    policy: &'a Policy,
}

impl Work for Take<'_> {
    type Output = Taken;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<Taken, PgError> {
        take(transaction, self.queue, self.policy).await
    }

    fn of_nothing(&self) -> Option<Taken> {
        Some(Taken::Nothing)
    }
}

struct Settling<'a> {
    queue: &'a str,
    delivery: &'a Delivery,
    how: &'a Settle,
}

impl Work for Settling<'_> {
    type Output = Settled;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<Settled, PgError> {
        settle(transaction, self.queue, self.delivery, self.how).await
    }
}

struct List<'a> {
    queue: &'a str,
    listed: Listed,
    limit: u32,
}

impl Work for List<'_> {
    type Output = Vec<JobInfo>;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<Vec<JobInfo>, PgError> {
        let dead = if self.listed == Listed::Dead { "j.dead <> 0" } else { "j.dead = 0" };
        let sql = format!(
            "SELECT j.id, j.key, j.attempt, j.dead, j.reason, length(j.payload), k.token
                 FROM palisade_queue_job j
                 LEFT JOIN palisade_queue_key k ON k.queue = j.queue AND k.key = j.key AND k.job = j.id
                 WHERE j.queue = $1 AND {dead} ORDER BY j.id LIMIT $2"
        );
        let rows = transaction.query_typed(&sql, &[text(&self.queue), big(&i64::from(self.limit))]).await?;
        rows.iter().map(info).collect()
    }

    fn of_nothing(&self) -> Option<Vec<JobInfo>> {
        Some(Vec::new())
    }
}

struct Retry<'a> {
    queue: &'a str,
    id: JobId,
}

impl Work for Retry<'_> {
    type Output = bool;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<bool, PgError> {
        let Retry { queue, id } = *self;
        let Some((key, dead)) = dead_letter(transaction, queue, id).await? else { return Ok(false) };
        ensure_key(transaction, queue, &key).await?;
        transaction.execute_typed(REVIVE, &[big(&id.0)]).await?;
        if dead == BLOCKING {
            transaction.execute_typed(UNBLOCK, &[text(&queue), text(&key)]).await?;
        }
        Ok(true)
    }

    fn of_nothing(&self) -> Option<bool> {
        Some(false)
    }
}

struct Payload<'a> {
    queue: &'a str,
    id: JobId,
}

impl Work for Payload<'_> {
    type Output = Option<Vec<u8>>;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<Option<Vec<u8>>, PgError> {
        let found = transaction.query_typed_opt(PAYLOAD, &[text(&self.queue), big(&self.id.0)]).await?;
        found.map(|row| row.try_get(0)).transpose()
    }

    fn of_nothing(&self) -> Option<Option<Vec<u8>>> {
        Some(None)
    }
}

struct Discard<'a> {
    queue: &'a str,
    id: JobId,
}

impl Work for Discard<'_> {
    type Output = bool;

    async fn run(&self, transaction: &Transaction<'_>) -> Result<bool, PgError> {
        let Discard { queue, id } = *self;
        let Some((key, dead)) = dead_letter(transaction, queue, id).await? else { return Ok(false) };
        transaction.execute_typed(REMOVE_JOB, &[big(&id.0)]).await?;
        if dead == BLOCKING {
            transaction.query_typed(LOCK_KEY, &[text(&queue), text(&key)]).await?;
            free(transaction, queue, &key).await?;
        }
        Ok(true)
    }

    fn of_nothing(&self) -> Option<bool> {
        Some(false)
    }
}

struct RemoveIdle<'a> {
    queue: &'a str,
}

impl Work for RemoveIdle<'_> {
    type Output = ();

    async fn run(&self, transaction: &Transaction<'_>) -> Result<(), PgError> {
        transaction.execute_typed(REMOVE_IDLE, &[text(&self.queue)]).await.map(drop)
    }
}

/// The result of one look for a job.
enum Taken {
    Job(Delivery, Vec<u8>),
    /// No key is due.
    Nothing,
    /// The key that was due has no job to deliver. Look again.
    NothingToDeliver,
    NoToken,
}

async fn push(
    transaction: &Transaction<'_>,
    queue: &str,
    key: &str,
    payload: &[u8],
    max_depth: Option<u32>,
) -> Result<Option<JobId>, PgError> {
    if let Some(max_depth) = max_depth {
        let max_depth = i64::from(max_depth);
        let depth: i64 = transaction.query_typed_one(DEPTH, &[text(&queue), big(&max_depth)]).await?.try_get(0)?;
        if depth >= max_depth {
            return Ok(None);
        }
    }
    ensure_key(transaction, queue, key).await?;
    let job = [text(&queue), text(&key), (&payload as &(dyn ToSql + Sync), Type::BYTEA)];
    Ok(Some(JobId(transaction.query_typed_one(ADD_JOB, &job).await?.try_get(0)?)))
}

/// Makes sure that the key has a row, which is due when it is due, and which stays until this transaction ends.
async fn ensure_key(transaction: &Transaction<'_>, queue: &str, key: &str) -> Result<(), PgError> {
    let names = [text(&queue), text(&key)];
    loop {
        if let Some(row) = transaction.query_typed_opt(SHARE_KEY, &names).await? {
            if row.try_get(0)? {
                transaction.execute_typed(WAKE_KEY, &names).await?;
            }
            return Ok(());
        }
        // If another transaction has added it meanwhile, it must be locked.
        if transaction.execute_typed(ADD_KEY, &names).await? == 1 {
            return Ok(());
        }
    }
}

async fn take(transaction: &Transaction<'_>, queue: &str, policy: &Policy) -> Result<Taken, PgError> {
    let Some(row) = transaction.query_typed_opt(LOCK_DUE, &[text(&queue)]).await? else {
        return Ok(Taken::Nothing);
    };
    let key: String = row.try_get(0)?;
    let names = [text(&queue), text(&key)];
    // Statements of their own, which see what was committed before the lock.
    let (first, last) = tokio::try_join!(
        transaction.query_typed_opt(FIRST_JOB, &names),
        transaction.query_typed_one(LAST_TOKEN, &names)
    )?;
    let Some(row) = first else {
        free(transaction, queue, &key).await?;
        return Ok(Taken::NothingToDeliver);
    };
    let (id, attempt, payload) = (JobId(row.try_get(0)?), row.try_get::<_, i32>(1)?.unsigned_abs(), row.try_get(2)?);
    if attempt >= policy.attempts {
        bury(transaction, queue, &key, id, policy.dead_letters_block, None).await?;
        return Ok(Taken::NothingToDeliver);
    }
    let Some(token) = KeyState::next_token(last.try_get(0)?, last.try_get(1)?) else { return Ok(Taken::NoToken) };
    let (number, visibility_ms) = (i64::try_from(token.get()).unwrap_or(i64::MAX), milliseconds(policy.visibility));
    let delivery = [text(&queue), text(&key), big(&number), big(&id.0), float(&visibility_ms)];
    transaction.execute_typed(DELIVER, &delivery).await?;
    Ok(Taken::Job(Delivery { id, key, attempt: attempt + 1, token }, payload))
}

async fn settle(
    transaction: &Transaction<'_>,
    queue: &str,
    delivery: &Delivery,
    how: &Settle,
) -> Result<Settled, PgError> {
    let Delivery { id, key, .. } = delivery;
    let names = [text(&queue), text(key)];
    let state = match transaction.query_typed_opt(LOCK_KEY, &names).await? {
        Some(row) => {
            Some(KeyState { token: token(row.try_get(0)?), job: row.try_get::<_, Option<i64>>(1)?.map(JobId) })
        }
        None => None,
    };
    let settled = KeyState::settle(state, delivery);
    if settled != Settled::Applied {
        return Ok(settled);
    }
    match how {
        Settle::Done => {
            transaction.execute_typed(REMOVE_JOB, &[big(&id.0)]).await?;
            free(transaction, queue, key).await?;
        }
        Settle::Retry { after, reason } => {
            transaction.execute_typed(KEEP_REASON, &[big(&id.0), text(reason)]).await?;
            let after_ms = milliseconds(*after);
            let later = [text(&queue), text(key), float(&after_ms)];
            transaction.execute_typed(RETRY_LATER, &later).await?;
        }
        Settle::GiveBack => {
            transaction.execute_typed(UNCOUNT, &[big(&id.0)]).await?;
            let now = [text(&queue), text(key), float(&0.0)];
            transaction.execute_typed(RETRY_LATER, &now).await?;
        }
        Settle::Bury { is_blocking, reason } => {
            bury(transaction, queue, key, *id, *is_blocking, Some(reason)).await?;
        }
        Settle::Extend(visibility) => {
            let visibility_ms = milliseconds(*visibility);
            let later = [text(&queue), text(key), float(&visibility_ms)];
            transaction.execute_typed(EXTEND, &later).await?;
        }
    }
    Ok(settled)
}

/// Makes a key due if it has a job, and else idle, unless a push to it is open.
async fn free(transaction: &Transaction<'_>, queue: &str, key: &str) -> Result<(), PgError> {
    let names = [text(&queue), text(&key)];
    let is_excluded = transaction.query_typed_opt(EXCLUDE_PUSHES, &names).await?.is_some();
    let uncommitted_ms = milliseconds(UNCOMMITTED);
    let params =
        [text(&queue), text(&key), (&is_excluded as &(dyn ToSql + Sync), Type::BOOL), float(&uncommitted_ms)];
    transaction.execute_typed(FREE_KEY, &params).await.map(drop)
}

/// Makes a job a dead letter. Without a reason, the one of its last failure is kept.
async fn bury(
    transaction: &Transaction<'_>,
    queue: &str,
    key: &str,
    id: JobId,
    is_blocking: bool,
    reason: Option<&str>,
) -> Result<(), PgError> {
    let dead = if is_blocking { BLOCKING } else { SKIPPED };
    let (reason, usual) = (&reason as &(dyn ToSql + Sync), super::NOT_SETTLED);
    let params = [big(&id.0), (&dead as &(dyn ToSql + Sync), Type::INT2), (reason, Type::TEXT), text(&usual)];
    transaction.execute_typed(BURY, &params).await?;
    match is_blocking {
        true => transaction.execute_typed(BLOCK_KEY, &[text(&queue), text(&key)]).await.map(drop),
        false => free(transaction, queue, key).await,
    }
}

/// Locks a dead letter, and returns its key and its column `dead`.
async fn dead_letter(
    transaction: &Transaction<'_>,
    queue: &str,
    id: JobId,
) -> Result<Option<(String, i16)>, PgError> {
    match transaction.query_typed_opt(DEAD_LETTER, &[big(&id.0), text(&queue)]).await? {
        Some(row) => Ok(Some((row.try_get(0)?, row.try_get(1)?))),
        None => Ok(None),
    }
}

fn info(row: &Row) -> Result<JobInfo, PgError> {
    let (dead, in_work) = (row.try_get::<_, i16>(3)?, row.try_get::<_, Option<i64>>(6)?.and_then(token));
    let state = match (dead, in_work) {
        (0, Some(token)) => JobState::InWork { token },
        (0, None) => JobState::Waiting,
        (dead, _) => JobState::Dead { is_blocking: dead == BLOCKING },
    };
    let (attempt, size) = (row.try_get::<_, i32>(2)?.unsigned_abs(), row.try_get::<_, i32>(5)?.unsigned_abs());
    let (id, key, reason) = (JobId(row.try_get(0)?), row.try_get(1)?, row.try_get(4)?);
    Ok(JobInfo { id, key, attempt, state, reason, payload_bytes: size.into() })
}

fn token(number: i64) -> Option<Token> {
    u64::try_from(number).ok().and_then(|number| Token::new(number).ok())
}

impl Queue<Postgres> {
    /// Adds a job in a transaction of the application, which changes its data and announces the change together: the job exists exactly if
    /// the transaction commits. The tables of [`POSTGRES_SCHEMA`](super::POSTGRES_SCHEMA) must exist, and the isolation level must be
    /// PostgreSQL's default. Two transactions that each push to several new or idle keys can wait for each other; PostgreSQL then ends
    /// one of them. Push to keys in a fixed order to avoid it.
    ///
    /// ```no_run
    /// # async fn f(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use palisade::recipe::{queue::Queue, store::Postgres};
    ///
    /// let database = Postgres::connect("postgres://app@db.example/shop").await?;
    /// let orders = Queue::new(&database, "orders");
    /// let transaction = client.transaction().await?;
    /// transaction.execute("INSERT INTO account VALUES (7, 100)", &[]).await?;
    /// orders.push_in(&transaction, "account/7", "welcome").await?;
    /// transaction.commit().await?;
    ///
    /// let job = orders.next().await?;
    /// let transaction = client.transaction().await?;
    /// transaction.execute("UPDATE account SET balance = balance + 5 WHERE id = 7", &[]).await?;
    /// job.done_in(&transaction).await?;                       // the bonus and the end of the job: both or neither
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, roll the transaction back.
    ///
    /// # Errors
    ///
    /// The key or the payload is too long; the queue is full; PostgreSQL failed.
    pub async fn push_in(
        &self,
        transaction: &Transaction<'_>,
        key: &str,
        payload: impl AsRef<[u8]>,
    ) -> Result<JobId, Error> {
        let payload = payload.as_ref();
        self.check_job(key, payload)?;
        let pushed = push(transaction, &self.name, key, payload, self.policy.max_depth).await;
        let pushed = pushed.map_err(|error| self.store.error(error, false, PUSH, &self.name))?;
        pushed.ok_or_else(|| self.full(key))
    }
}

impl Job<Postgres> {
    /// Removes the job from the queue in a transaction of the application, which has the result of the work too. So the work is done
    /// exactly once. The isolation level must be PostgreSQL's default. See [`Queue::push_in`] for an example.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, roll the transaction back.
    ///
    /// # Errors
    ///
    /// [`JobError::Stale`] if the job was delivered again: roll the transaction back. PostgreSQL failed.
    pub async fn done_in(&self, transaction: &Transaction<'_>) -> Result<(), JobError> {
        let (store, queue) = (&self.queue.store, &self.queue.name);
        let settled = settle(transaction, queue, &self.delivery, &Settle::Done).await;
        self.outcome(settled.map_err(|error| store.error(error, false, SETTLE, queue))?, false)
    }
}
