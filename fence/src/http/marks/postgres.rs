//! Marks in PostgreSQL, for several instances of a service.

use std::str::FromStr;
use std::sync::Arc;

use palisade_core::{LockName, Token};
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Row, SimpleQueryMessage, Socket};

use super::resource_locks::ResourceLocks;
use super::{MarkLock, MarkRecord, Marks, MarksError, MarksFuture, WriteState};
use crate::postgres::{Connections, literal};
use crate::{Author, Mark, Seq};

/// The most locks at one time. Each needs a connection, and PostgreSQL allows 100 by default.
const MAX_LOCKS: usize = 32;

/// Creates the table under a lock: two instances that start at once would both create it. It is in a separate schema, so that
/// every role and every `search_path` finds the same table. Once it exists, no right to create anything is needed.
const SCHEMA: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(hashtextextended('palisade_http_marks', 0));
    DO $$
    BEGIN
        IF to_regclass('palisade_http.marks') IS NULL THEN
            CREATE SCHEMA IF NOT EXISTS palisade_http;
            CREATE TABLE palisade_http.marks (
                resource text COLLATE \"C\" PRIMARY KEY,
                token    bigint NOT NULL,
                seq      bigint NOT NULL,
                author   bigint NOT NULL,
                ending   text NOT NULL CHECK (ending IN ('nothing', 'begun', 'answered')),
                answer   bytea,
                version  bigint NOT NULL
            );
        END IF;
    END $$;
    COMMIT";

/// Acknowledged marks are durable. Keep-alives release the lock of a dead host within 25 seconds instead of two hours. There
/// is no idle timeout, because a connection with a lock is idle while the service works.
const SESSION: &str = "
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
    SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('idle_session_timeout', true) <> '0';
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3";

/// How often to check for a pooler, which may give two clients different sessions by chance.
const POOLER_PROBES: usize = 5;

/// Marks in a table of PostgreSQL, `palisade_http.marks`, that several instances of a service share. All clones are the
/// same marks. There is one row for each resource. It is never removed, because without it old tokens would be accepted
/// again.
///
/// ```no_run
/// use palisade_fence::http::{FenceLayer, Limits, PostgresMarks, Scope};
/// # async fn example() -> Result<FenceLayer, Box<dyn std::error::Error>> {
/// let marks = PostgresMarks::connect("postgres://app@db/shop", tokio_postgres::NoTls).await?;
/// let limits = Limits { quarantine: std::time::Duration::from_secs(60), ..Limits::default() };
/// let fence = FenceLayer::with_limits(Scope::one("orders")?, marks, limits);
/// # Ok(fence) }
/// ```
///
/// A writer holds an advisory lock on a separate connection; the other instances wait for it. A row is changed only if its
/// version is unchanged, so an instance that has lost its connection, and with it its lock, cannot undo a newer change. Its
/// write may still be running: [`Limits::quarantine`](super::super::Limits) must be longer than a write can take, as behind a
/// proxy. A connection pooler must be in session mode: one that gives each transaction another connection would lose the
/// lock, and is refused when it is noticed.
#[derive(Clone)]
pub struct PostgresMarks {
    connections: Connections,
    locks: Arc<ResourceLocks>,
    permits: Arc<Semaphore>,
}

impl PostgresMarks {
    /// Connects to a database, and makes the table if it is not there. The URL is libpq's; `tls` is a connector of your
    /// choice, or `NoTls`. Needs a Tokio runtime, here and later.
    ///
    /// # Errors
    ///
    /// It is no such URL; the database cannot be reached, or the table cannot be made; a pooler in transaction mode is in
    /// between.
    pub async fn connect<T>(url: &str, tls: T) -> Result<PostgresMarks, MarksError>
    where
        T: MakeTlsConnect<Socket, Stream: Send, TlsConnect: Send> + Clone + Send + Sync + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
        T::Stream: 'static,
    {
        // The driver's error may quote the URL, which has passwords in it.
        let misuse = "it looks like postgres://user:password@host:5432/database";
        let config = Config::from_str(url).map_err(|_| MarksError::new("this is no PostgreSQL URL", misuse))?;
        let connections = Connections::to(config, tls);
        let marks =
            PostgresMarks { connections, locks: Arc::default(), permits: Arc::new(Semaphore::new(MAX_LOCKS)) };
        marks.refuse_pooler().await?;
        let client = marks.connections.take().await.map_err(failed)?;
        client.batch_execute(SCHEMA).await.map_err(failed)?;
        Ok(marks)
    }

    /// Refuses a pooler in transaction mode. It shows itself by giving two connections the same session of the server.
    async fn refuse_pooler(&self) -> Result<(), MarksError> {
        let (one, other) =
            (self.connections.take().await.map_err(failed)?, self.connections.take().await.map_err(failed)?);
        for _ in 0..POOLER_PROBES {
            let mut sessions = Vec::with_capacity(2);
            for client in [&one, &other] {
                let found = client.simple_query("SELECT pg_backend_pid()").await.map_err(failed)?;
                sessions.extend(found.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                }));
            }
            if sessions.windows(2).any(|pair| pair[0] == pair[1]) {
                let what = "a pooler in transaction mode is in between: locks would be lost; connect to the server itself, or \
                            through a pooler in session mode";
                return Err(MarksError::new("the marks in PostgreSQL", what));
            }
        }
        self.connections.keep(one);
        self.connections.keep(other);
        Ok(())
    }

    /// Returns a connection that has the lock of this resource, in one round trip.
    async fn locked(&self, resource: &LockName) -> Result<Client, MarksError> {
        let client = self.connections.take().await.map_err(failed)?;
        let name = literal(&format!("palisade_http_marks {resource}"));
        let lock = format!("{SESSION}; SELECT pg_advisory_lock(hashtextextended({name}, 0))");
        client.batch_execute(&lock).await.map_err(failed)?;
        Ok(client)
    }
}

fn failed(error: tokio_postgres::Error) -> MarksError {
    // The error's own text is only `db error`.
    let message = std::error::Error::source(&error).map(ToString::to_string);
    MarksError::new(
        message.map_or("the marks in PostgreSQL".to_owned(), |message| format!("the marks in PostgreSQL: {message}")),
        error,
    )
}

impl Marks for PostgresMarks {
    fn peek<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Option<Mark>> {
        Box::pin(async {
            let client = self.connections.take().await.map_err(failed)?;
            let select = "SELECT token, seq FROM palisade_http.marks WHERE resource = $1";
            let row = client.query_opt(select, &[&resource.as_str()]).await.map_err(failed)?;
            self.connections.keep(client);
            row.map(|row| mark(&row)).transpose()
        })
    }

    fn lock<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Box<dyn MarkLock>> {
        Box::pin(async {
            let lock = self.locks.lock(resource).await;
            let permits = self.permits.clone().acquire_owned().await;
            let permits = permits.map_err(|error| MarksError::new("the marks in PostgreSQL", error))?;
            let client = self.locked(resource).await?;
            // In a separate statement, so that its snapshot has the changes of the lock's last holder.
            let select =
                "SELECT token, seq, author, ending, answer, version FROM palisade_http.marks WHERE resource = $1";
            let row = client.query_opt(select, &[&resource.as_str()]).await.map_err(failed)?;
            let (record, version) = row.map(|row| record(&row)).transpose()?.unwrap_or_default();
            let held = Some(HeldLock { client, connections: self.connections.clone(), _permits: (lock, permits) });
            let lock: Box<dyn MarkLock> =
                Box::new(PostgresMarkLock { held, resource: resource.clone(), record, version });
            Ok(lock)
        })
    }
}

struct PostgresMarkLock {
    /// `None` only while it is dropped.
    held: Option<HeldLock>,
    resource: LockName,
    record: MarkRecord,
    /// The version of the row; 0 if there is none.
    version: i64,
}

/// The lock in the database, by its connection, and the permits of this process.
struct HeldLock {
    client: Client,
    connections: Connections,
    _permits: (OwnedMutexGuard<()>, OwnedSemaphorePermit),
}

impl HeldLock {
    async fn give_back(self) {
        // A broken connection has no locks.
        if self.client.batch_execute("SELECT pg_advisory_unlock_all()").await.is_ok() {
            self.connections.keep(self.client);
        }
    }
}

impl Drop for PostgresMarkLock {
    fn drop(&mut self) {
        // Without a runtime the connection is closed, which ends the lock too.
        if let (Some(held), Ok(runtime)) = (self.held.take(), Handle::try_current()) {
            runtime.spawn(held.give_back());
        }
    }
}

impl MarkLock for PostgresMarkLock {
    fn record(&self) -> &MarkRecord {
        &self.record
    }

    fn save(&mut self, record: MarkRecord) -> MarksFuture<'_, ()> {
        Box::pin(async move {
            let (Some(held), Some(mark)) = (&self.held, record.mark) else { return Ok(()) };
            let (ending, answer) = encoded(&record.last_write)?;
            let [token, seq, author] =
                [mark.token.get(), mark.seq.get(), record.author.get()].map(|number| number.cast_signed());
            let write = match self.version {
                0 => {
                    "INSERT INTO palisade_http.marks VALUES ($1, $2, $3, $4, $5, $6, $7::bigint + 1) ON CONFLICT DO NOTHING"
                }
                _ => {
                    "UPDATE palisade_http.marks SET token = $2, seq = $3, author = $4, ending = $5, answer = $6, \
                     version = $7::bigint + 1 WHERE resource = $1 AND version = $7"
                }
            };
            let name = self.resource.as_str();
            let written =
                held.client.execute(write, &[&name, &token, &seq, &author, &ending, &answer, &self.version]).await;
            if written.map_err(failed)? != 1 {
                let what = "another instance has had the lock since: the connection of this one was lost";
                return Err(MarksError::new("the marks in PostgreSQL", what));
            }
            (self.record, self.version) = (record, self.version + 1);
            Ok(())
        })
    }
}

fn encoded(last_write: &WriteState) -> Result<(&'static str, Option<Vec<u8>>), MarksError> {
    Ok(match last_write {
        WriteState::Nothing => ("nothing", None),
        WriteState::Begun => ("begun", None),
        WriteState::Answered(answer) => {
            let encoded = postcard::to_stdvec(&**answer);
            ("answered", Some(encoded.map_err(|error| MarksError::new("the answer cannot be stored", error))?))
        }
    })
}

fn record(row: &Row) -> Result<(MarkRecord, i64), MarksError> {
    let answer: Option<&[u8]> = row.try_get(4).map_err(failed)?;
    let last_write = match row.try_get(3).map_err(failed)? {
        "nothing" => WriteState::Nothing,
        "begun" => WriteState::Begun,
        _ => WriteState::Answered(Arc::new(postcard::from_bytes(answer.unwrap_or_default()).map_err(damaged)?)),
    };
    let record = MarkRecord { mark: Some(mark(row)?), author: number(row, 2, Author::new)?, last_write };
    Ok((record, row.try_get(5).map_err(failed)?))
}

fn mark(row: &Row) -> Result<Mark, MarksError> {
    Ok(Mark { token: number(row, 0, Token::new)?, seq: number(row, 1, Seq::new)? })
}

fn number<N>(row: &Row, column: usize, of: fn(u64) -> Result<N, crate::BadNumber>) -> Result<N, MarksError> {
    let number: i64 = row.try_get(column).map_err(failed)?;
    of(u64::try_from(number).map_err(damaged)?).map_err(damaged)
}

fn damaged(error: impl std::error::Error + Send + Sync + 'static) -> MarksError {
    MarksError::new("a row of palisade_http.marks is invalid: another program has changed it; restore the row", error)
}

impl std::fmt::Debug for PostgresMarks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresMarks").finish_non_exhaustive()
    }
}
