//! Marks in a file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::{LockName, Token};
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};
use tokio::sync::OwnedMutexGuard;

use super::turns::Turns;
use super::{Ending, Kept, Later, Marks, MarksError, Turn};
use crate::{Author, Mark, Seq};

/// For a process that is just ending.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of the table and of what is in it.
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
    turns: Arc<Turns>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl SqliteMarks {
    /// Opens the file, or makes it.
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
        Ok(SqliteMarks { file: Arc::new(File { path, connection: Mutex::new(connection) }), turns: Arc::default() })
    }
}

impl SqliteMarks {
    /// The mark of a resource in a file that no process uses: nothing is made or changed there. `None` if nothing has ever
    /// sealed the resource.
    ///
    /// # Errors
    ///
    /// A process uses the file, or it is not such a file.
    pub async fn look(path: impl AsRef<Path>, resource: &LockName) -> Result<Option<Mark>, MarksError> {
        let (path, name) = (path.as_ref().to_owned(), resource.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
            let found = connection.and_then(|connection| {
                connection.busy_timeout(PATIENCE)?;
                Ok(read(&connection, &name)?.mark)
            });
            found.map_err(|error| MarksError::new(format!("the marks in {} {}", path.display(), why(&error)), error))
        });
        looked.await.map_err(|error| MarksError::new("the marks could not be read", error))?
    }
}

/// Takes the file for this process, and makes the table if it is new. Says which format it is.
fn prepare(connection: &Connection) -> rusqlite::Result<i64> {
    connection.busy_timeout(PATIENCE)?;
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
    /// Where nothing else waits for the disk.
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
    fn peek<'a>(&'a self, resource: &'a LockName) -> Later<'a, Option<Mark>> {
        let name = resource.clone();
        Box::pin(self.file.with(move |connection| {
            let mut select = connection.prepare_cached("SELECT token, seq FROM marks WHERE resource = ?")?;
            select.query_row([name.as_str()], |row| mark(row.get(0)?, row.get(1)?)).optional()
        }))
    }

    fn turn<'a>(&'a self, resource: &'a LockName) -> Later<'a, Box<dyn Turn>> {
        let resource = resource.clone();
        Box::pin(async move {
            let turn = self.turns.wait(&resource).await;
            let name = resource.clone();
            let kept = self.file.with(move |connection| read(connection, &name)).await?;
            let turn: Box<dyn Turn> =
                Box::new(Taken { file: self.file.clone(), resource, kept, turn: Arc::new(turn) });
            Ok(turn)
        })
    }
}

struct Taken {
    file: Arc<File>,
    resource: LockName,
    kept: Kept,
    turn: Arc<OwnedMutexGuard<()>>,
}

impl Turn for Taken {
    fn kept(&self) -> &Kept {
        &self.kept
    }

    fn keep(&mut self, kept: Kept) -> Later<'_, ()> {
        let (name, written) = (self.resource.clone(), kept.clone());
        // If nobody waits for it any more, it is written all the same: the turn must not end before.
        let turn = self.turn.clone();
        Box::pin(async move {
            let write = move |connection: &Connection| {
                let written = write(connection, &name, &written);
                drop(turn);
                written
            };
            self.file.with(write).await?;
            self.kept = kept;
            Ok(())
        })
    }
}

fn read(connection: &Connection, resource: &LockName) -> rusqlite::Result<Kept> {
    let mut select =
        connection.prepare_cached("SELECT token, seq, author, ending, answer FROM marks WHERE resource = ?")?;
    let kept = select.query_row([resource.as_str()], |row| {
        let (ending, answer): (String, Option<Vec<u8>>) = (row.get(3)?, row.get(4)?);
        let ending = match (ending.as_str(), answer) {
            ("nothing", _) => Ending::Nothing,
            ("begun", _) => Ending::Begun,
            (_, answer) => {
                let answer = postcard::from_bytes(&answer.unwrap_or_default());
                Ending::Answered(Arc::new(answer.map_err(|error| damaged(4, error))?))
            }
        };
        let author = number(2, row.get(2)?, Author::new)?;
        Ok(Kept { mark: Some(mark(row.get(0)?, row.get(1)?)?), author, ending })
    });
    Ok(kept.optional()?.unwrap_or_default())
}

fn write(connection: &Connection, resource: &LockName, kept: &Kept) -> rusqlite::Result<()> {
    let Some(mark) = kept.mark else { return Ok(()) };
    let (ending, answer) = match &kept.ending {
        Ending::Nothing => ("nothing", None),
        Ending::Begun => ("begun", None),
        Ending::Answered(answer) => {
            let encoded = postcard::to_stdvec(&**answer);
            ("answered", Some(encoded.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?))
        }
    };
    let mut replace = connection.prepare_cached("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?)")?;
    let numbers = [mark.token.get(), mark.seq.get(), kept.author.get()].map(|number| number as i64);
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
