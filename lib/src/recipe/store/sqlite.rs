//! SQLite.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Error as SqliteError, ErrorCode, Transaction, TransactionBehavior};
use rustix::fs::{Access, access};

use crate::engine::embedded::boot;
use crate::{Error, ErrorKind};

const ENGINE: &str = "sqlite";
/// How long a transaction waits for those of other processes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A SQLite database, for the processes of one host. Work runs on a blocking thread of the Tokio runtime, if there is one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
/// use palisade::recipe::store::Sqlite;
/// let database = Sqlite::open(":memory:").await?;                 // or a file
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sqlite {
    connection: Arc<Mutex<Connection>>,
    /// Identifies the boot of the host.
    boot: i64,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sqlite")
    }
}

impl Sqlite {
    /// Opens a file, and creates it if it is missing. Use a local disk: SQLite's locks do not work on most network file systems.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or is no database.
    pub async fn open(path: impl AsRef<Path>) -> Result<Sqlite, Error> {
        let path = path.as_ref().to_owned();
        let name = path.display().to_string();
        let boot = boot().map_err(|why| unavailable(why, "open", &name))?;
        let file = path.clone();
        let opened = off_thread(move || {
            let connection = Connection::open(path)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            // A record counts only once it is on disk.
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "full")?;
            Ok(connection)
        });
        let connection = opened.await.map_err(|failure| match refusal_of(&file) {
            Some(refusal) => unavailable(refusal, "open", &name),
            None => failure.error("open", &name),
        })?;
        Ok(Sqlite { connection: Arc::new(Mutex::new(connection)), boot: boot.cast_signed() })
    }

    /// Returns a number that differs after each boot of the host.
    pub(crate) fn boot(&self) -> i64 {
        self.boot
    }

    /// Runs work in a transaction that writes, and commits it. `schema` creates the tables of the recipe that are missing. The
    /// work continues when the future is dropped.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        (operation, key): (&'static str, &str),
        schema: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, Error> {
        let connection = self.connection.clone();
        let done = off_thread(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(schema)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        });
        done.await.map_err(|failure| failure.error(operation, key))
    }

    /// Classifies an error of a statement in a transaction of the application.
    pub(crate) fn error(error: SqliteError, operation: &'static str, key: &str) -> Error {
        Failure::Sqlite(error).error(operation, key)
    }
}

/// Returns why the system lets this user not write a file, which SQLite does not say.
fn refusal_of(file: &Path) -> Option<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let checked = if file.exists() { file } else { folder };
    // Not by opening it: to close it would end SQLite's locks of this process.
    let error = io::Error::from(access(checked, Access::READ_OK | Access::WRITE_OK).err()?);
    Some(format!(
        "{}: {error}; every user of the store must be able to write the file and its folder",
        checked.display()
    ))
}

fn unavailable(what: String, operation: &'static str, key: &str) -> Error {
    let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: false, source: None };
    Error::new(kind, ENGINE, operation).on(key)
}

/// Why work on a database failed.
enum Failure {
    Sqlite(SqliteError),
    /// The work panicked, or the runtime is shutting down.
    Unfinished(tokio::task::JoinError),
}

impl Failure {
    fn error(self, operation: &'static str, key: &str) -> Error {
        let kind = match self {
            Failure::Sqlite(error) => {
                let code = error.sqlite_error_code();
                let is_retryable = matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked));
                ErrorKind::Outage {
                    what: error.to_string(),
                    // After a failed commit the transaction is rolled back, unless the disk fails.
                    may_have_taken_effect: code == Some(ErrorCode::SystemIoFailure),
                    is_retryable,
                    source: Some(Box::new(error)),
                }
            }
            Failure::Unfinished(error) => ErrorKind::Outage {
                what: "the work was not finished".to_owned(),
                may_have_taken_effect: true,
                is_retryable: false,
                source: Some(Box::new(error)),
            },
        };
        Error::new(kind, ENGINE, operation).on(key)
    }
}

/// Runs the work on a blocking thread of the Tokio runtime, or, without a runtime, on this thread.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SqliteError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.map_err(Failure::Unfinished)?.map_err(Failure::Sqlite),
        Err(_) => work().map_err(Failure::Sqlite),
    }
}
