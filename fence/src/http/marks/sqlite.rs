//! Marks in a file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::{LockName, Token};
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};
use tokio::sync::OwnedMutexGuard;

use super::resource_locks::ResourceLocks;
use super::{MarkLock, MarkRecord, Marks, MarksError, MarksFuture, WriteState};
use crate::{Author, Mark, Seq};

/// How long to wait for the file lock of a process that is about to end.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// The version of the table's format.
const FORMAT: i64 = 1;

const SCHEMA: &str = "
    CREATE TABLE marks (
        resource TEXT PRIMARY KEY,
        token    INTEGER NOT NULL,
        seq      INTEGER NOT NULL,
        author   INTEGER NOT NULL,
        ending   TEXT NOT NULL CHECK (ending IN ('nothing', 'begun', 'answered')),
        answer   BLOB
    ) STRICT, WITHOUT ROWID;
    PRAGMA user_version = 1;";

/// Marks in one SQLite file, on the disk before anything is answered. One process at a time uses it. All clones are the
/// same marks.
#[derive(Debug, Clone)]
pub struct SqliteMarks {
    file: Arc<File>,
    locks: Arc<ResourceLocks>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl SqliteMarks {
    /// Opens or creates the file.
    ///
    /// # Errors
    ///
    /// It cannot be opened, another process uses it, or it is not such a file.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteMarks, MarksError> {
        let path = path.as_ref().to_owned();
        let cannot = |what: &str| format!("the marks in {} {what}", path.display());
        let connection =
            Connection::open(&path).map_err(|error| MarksError::new(cannot("cannot be opened"), error))?;
        let format = prepare(&connection).map_err(|error| MarksError::new(cannot(why(&error)), error))?;
        if format != FORMAT {
            let other = format!("they are of format {format}, and this program knows {FORMAT}");
            return Err(MarksError::new(cannot("cannot be used"), other));
        }
        Ok(SqliteMarks { file: Arc::new(File { path, connection: Mutex::new(connection) }), locks: Arc::default() })
    }
}

impl SqliteMarks {
    /// Reads the mark of a resource in a file that no process uses, without changing the file. `None` if the resource was
    /// never sealed.
    ///
    /// # Errors
    ///
    /// A process uses the file, or it is not such a file.
    pub async fn look(path: impl AsRef<Path>, resource: &LockName) -> Result<Option<Mark>, MarksError> {
        let (path, name) = (path.as_ref().to_owned(), resource.clone());
        let found_mark = tokio::task::spawn_blocking(move || {
            let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
            let found = connection.and_then(|connection| {
                connection.busy_timeout(BUSY_TIMEOUT)?;
                Ok(read(&connection, &name)?.mark)
            });
            found.map_err(|error| MarksError::new(format!("the marks in {} {}", path.display(), why(&error)), error))
        });
        found_mark.await.map_err(|error| MarksError::new("the marks could not be read", error))?
    }
}

/// Locks the file for this process, creates the table if the file is new, and returns its format.
fn prepare(connection: &Connection) -> rusqlite::Result<i64> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
    let format = |connection: &Connection| connection.query_row("PRAGMA user_version", [], |row| row.get(0));
    let transaction = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 && format(&transaction)? == 0 {
        transaction.execute_batch(SCHEMA)?;
    }
    transaction.commit()?;
    format(connection)
}

fn why(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => "are in use by another process; only one at a time may use them",
        _ => "cannot be used",
    }
}

impl File {
    /// Runs work on a thread that may block.
    async fn with<T: Send + 'static>(
        self: &Arc<File>,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, MarksError> {
        let file = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            work(&file.connection.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let failed = || format!("the marks in {} failed", self.path.display());
        match done.await {
            Ok(done) => done.map_err(|error| MarksError::new(failed(), error)),
            Err(error) => Err(MarksError::new(failed(), error)),
        }
    }
}

impl Marks for SqliteMarks {
    fn peek<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Option<Mark>> {
        let name = resource.clone();
        Box::pin(self.file.with(move |connection| {
            let mut select = connection.prepare_cached("SELECT token, seq FROM marks WHERE resource = ?")?;
            select.query_row([name.as_str()], |row| mark(row.get(0)?, row.get(1)?)).optional()
        }))
    }

    fn lock<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Box<dyn MarkLock>> {
        let resource = resource.clone();
        Box::pin(async move {
            let lock = self.locks.lock(&resource).await;
            let name = resource.clone();
            let record = self.file.with(move |connection| read(connection, &name)).await?;
            let lock: Box<dyn MarkLock> =
                Box::new(SqliteMarkLock { file: self.file.clone(), resource, record, lock: Arc::new(lock) });
            Ok(lock)
        })
    }
}

struct SqliteMarkLock {
    file: Arc<File>,
    resource: LockName,
    record: MarkRecord,
    lock: Arc<OwnedMutexGuard<()>>,
}

impl MarkLock for SqliteMarkLock {
    fn record(&self) -> &MarkRecord {
        &self.record
    }

    fn save(&mut self, record: MarkRecord) -> MarksFuture<'_, ()> {
        let (name, written) = (self.resource.clone(), record.clone());
        // The write continues when its future is dropped, and the lock must last until it is done.
        let lock = self.lock.clone();
        Box::pin(async move {
            let write = move |connection: &Connection| {
                let written = write(connection, &name, &written);
                drop(lock);
                written
            };
            self.file.with(write).await?;
            self.record = record;
            Ok(())
        })
    }
}

fn read(connection: &Connection, resource: &LockName) -> rusqlite::Result<MarkRecord> {
    let mut select =
        connection.prepare_cached("SELECT token, seq, author, ending, answer FROM marks WHERE resource = ?")?;
    let record = select.query_row([resource.as_str()], |row| {
        let (ending, answer): (String, Option<Vec<u8>>) = (row.get(3)?, row.get(4)?);
        let last_write = match (ending.as_str(), answer) {
            ("nothing", _) => WriteState::Nothing,
            ("begun", _) => WriteState::Begun,
            (_, answer) => {
                let answer = postcard::from_bytes(&answer.unwrap_or_default());
                WriteState::Answered(Arc::new(answer.map_err(|error| damaged(4, error))?))
            }
        };
        let author = number(2, row.get(2)?, Author::new)?;
        Ok(MarkRecord { mark: Some(mark(row.get(0)?, row.get(1)?)?), author, last_write })
    });
    Ok(record.optional()?.unwrap_or_default())
}

fn write(connection: &Connection, resource: &LockName, record: &MarkRecord) -> rusqlite::Result<()> {
    let Some(mark) = record.mark else { return Ok(()) };
    let (ending, answer) = match &record.last_write {
        WriteState::Nothing => ("nothing", None),
        WriteState::Begun => ("begun", None),
        WriteState::Answered(answer) => {
            let encoded = postcard::to_stdvec(&**answer);
            ("answered", Some(encoded.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?))
        }
    };
    let mut replace = connection.prepare_cached("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?)")?;
    let numbers = [mark.token.get(), mark.seq.get(), record.author.get()].map(|number| number as i64);
    replace.execute(params![resource.as_str(), numbers[0], numbers[1], numbers[2], ending, answer])?;
    Ok(())
}

fn mark(token: i64, seq: i64) -> rusqlite::Result<Mark> {
    Ok(Mark { token: number(0, token, Token::new)?, seq: number(1, seq, Seq::new)? })
}

fn number<N>(column: usize, number: i64, of: fn(u64) -> Result<N, crate::BadNumber>) -> rusqlite::Result<N> {
    let number = u64::try_from(number).map_err(|error| damaged(column, error))?;
    of(number).map_err(|error| damaged(column, error))
}

fn damaged(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Integer, error.into())
}
