//! The marks in the database, and the transactions under them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::Token;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::tables::{self, SchemaState};
use super::{SCHEMA, Work};
use crate::name::check_name;
use crate::off_thread::off_thread;
use crate::{Author, Error, ErrorKind, FenceState, Mark, Pass, Resource, Sealed, Seq, Verdict};

const LONGEST_NAME: usize = 512;

/// Retries while another process has a transaction, for about 10 s. There is no backoff, as in SQLite's own handler:
/// with it, an overtaken holder that writes without a pause could keep its successor from sealing.
const BUSY_RETRIES: i32 = 10_000;
const BUSY_DELAY: Duration = Duration::from_millis(1);

/// Removes all presented tokens.
const CLEAR: &str = "DELETE FROM main.palisade_pass";

/// A resource in a SQLite database: some of its tables, under one mark. All clones share one connection.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use palisade_fence::{Seal, Token, sqlite::Sqlite};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// # rusqlite::Connection::open(&path)?.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")?;
/// let orders = Sqlite::open(&path, "orders").await?;
/// orders.protect("orders").await?;                                // from now on no change without a token
///
/// let mut sealed = orders.seal(Token::new(34)?).await?;           // or: palisade.lock("orders").seal(&orders).acquire()
/// let id = sealed.transaction(|transaction| {
///     transaction.execute("INSERT INTO orders (total) VALUES (?1)", [99])?;
///     Ok(transaction.last_insert_rowid())
/// }).await?;
/// let total: i64 = sealed.query(move |transaction| {
///     transaction.query_row("SELECT total FROM orders WHERE id = ?1", [id], |row| row.get(0))
/// }).await?;
/// assert_eq!(total, 99);
///
/// let plain = rusqlite::Connection::open(&path)?;
/// let error = plain.execute("DELETE FROM orders", []).expect_err("it has no token");
/// assert!(error.to_string().contains("this table is protected"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Sqlite {
    name: Arc<str>,
    resource: Arc<str>,
    file: Arc<DatabaseFile>,
    connection: Arc<Mutex<Connection>>,
}

/// The file that the connection has open.
#[derive(Debug)]
struct DatabaseFile {
    path: PathBuf,
    /// Its device and its number there.
    identity: (u64, u64),
}

impl DatabaseFile {
    fn new(path: &Path) -> io::Result<DatabaseFile> {
        let path = fs::canonicalize(path)?;
        let found = fs::metadata(&path)?;
        Ok(DatabaseFile { path, identity: (found.dev(), found.ino()) })
    }

    /// Refuses a file with several names, because each name has a separate journal. Refuses a file that was removed or
    /// replaced, because writes to it would be lost.
    fn check(&self) -> Result<(), Failure> {
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity && found.nlink() <= 1 => Ok(()),
            Ok(found) if (found.dev(), found.ino()) == self.identity => Err(Failure::Refused(ErrorKind::misuse(
                "the database has several hard links, and each of its names has a separate journal, which breaks it; keep \
                 one of them",
            ))),
            _ => Err(Failure::Refused(ErrorKind::Unavailable {
                what: "another file, or none, is where the database was when it was opened; open it again".to_owned(),
                may_have_taken_effect: false,
                is_retryable: false,
                source: None,
            })),
        }
    }
}

/// The stage at which a transaction failed.
pub(super) enum Failure {
    /// Before anything could be changed.
    Begin(rusqlite::Error),
    /// In its work; it was rolled back.
    Inside(rusqlite::Error),
    /// When it ended.
    Commit(rusqlite::Error),
    /// The mark refuses it.
    Refused(ErrorKind),
}

impl From<rusqlite::Error> for Failure {
    fn from(source: rusqlite::Error) -> Failure {
        Failure::Begin(source)
    }
}

/// The kind of a transaction. Only a write is committed.
#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

impl Kind {
    fn behavior(self) -> TransactionBehavior {
        match self {
            Kind::Read => TransactionBehavior::Deferred,
            Kind::Write => TransactionBehavior::Immediate,
        }
    }
}

impl Sqlite {
    /// Opens the resource of this name in the database of this path. Creates the database and Palisade's tables in it,
    /// if they do not exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: an invalid name; a database with several hard links; what Palisade keeps there was changed
    /// or is of another version. A database that cannot be opened or written.
    pub async fn open(path: impl AsRef<Path>, resource: &str) -> Result<Sqlite, Error> {
        let path = path.as_ref().to_owned();
        let name = format!("SQLite {}, resource {resource}", path.display());
        let fail = |kind| Error::new(kind, name.clone(), "open");
        check_name(resource, LONGEST_NAME).map_err(|what| fail(ErrorKind::misuse(what)))?;
        if path.as_os_str().is_empty() || path == Path::new(":memory:") {
            return Err(fail(ErrorKind::misuse("this is no path of a file, and no other process could find it")));
        }
        let (file, connection) = match off_thread(move || connect(&path)).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(Failure::Refused(kind))) => return Err(fail(kind)),
            Ok(Err(Failure::Begin(source) | Failure::Inside(source) | Failure::Commit(source))) => {
                return Err(fail(ErrorKind::unreached(format!("the database cannot be used: {source}"), source)));
            }
            Err(source) => return Err(fail(ErrorKind::unreached("it was not finished", source))),
        };
        let (file, connection) = (Arc::new(file), Arc::new(Mutex::new(connection)));
        Ok(Sqlite { name: name.into(), resource: resource.into(), file, connection })
    }

    /// Creates triggers on a table that refuse every change without this resource's token, from any client, and checks
    /// that they exist. Can be repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: there is no such table, it is a view or a virtual table, it is protected for another
    /// resource, or what Palisade keeps was changed. The database cannot be written.
    pub async fn protect(&self, table: &str) -> Result<(), Error> {
        let (resource, table) = (self.resource.clone(), table.to_owned());
        let protect = move |transaction: &Transaction<'_>| tables::protect(transaction, &resource, &table);
        self.within(Kind::Write, "protect a table of", None, protect).await
    }

    /// Reads the mark; `None` if the resource was never sealed. Needs no token.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: a table has lost its protection. The database's error.
    pub async fn mark(&self) -> Result<Option<Mark>, Error> {
        let resource = self.resource.clone();
        let read = move |transaction: &Transaction<'_>| read_mark(transaction, &resource);
        self.within(Kind::Read, "read the mark of", None, read).await
    }

    /// Runs blocking work in one transaction, outside the threads that run futures.
    async fn within<T: Send + 'static>(
        &self,
        kind: Kind,
        operation: &'static str,
        token: Option<Token>,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let (connection, file) = (self.connection.clone(), self.file.clone());
        let done = off_thread(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(kind.behavior())?;
            file.check()?;
            let done = work(&transaction)?;
            match kind {
                Kind::Write => transaction.commit().map_err(Failure::Commit)?,
                Kind::Read => transaction.rollback()?,
            }
            Ok(done)
        });
        let kind = match done.await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(Failure::Refused(kind))) => kind,
            Ok(Err(Failure::Begin(source))) => {
                ErrorKind::unreached(format!("the database cannot be used: {source}"), source)
            }
            Ok(Err(Failure::Inside(source))) => {
                ErrorKind::Rejected { what: format!("the database says: {source}"), source: Some(source.into()) }
            }
            Ok(Err(Failure::Commit(source))) => {
                ErrorKind::unknown(format!("the transaction did not end: {source}"), source)
            }
            Err(source) => ErrorKind::unknown("it was not finished", source),
        };
        let error = Error::new(kind, &*self.name, operation);
        Err(match token {
            Some(token) => error.under(token),
            None => error,
        })
    }
}

/// Reads the mark of a resource, without changing the database. `None` if the resource was never sealed.
///
/// # Errors
///
/// [`ErrorKind::Misuse`]: there is no such database, or no fence in it, or a table has lost its protection. The
/// database's error.
pub async fn mark(path: impl AsRef<Path>, resource: &str) -> Result<Option<Mark>, Error> {
    let (path, of) = (path.as_ref().to_owned(), resource.to_owned());
    let name = format!("SQLite {}, resource {resource}", path.display());
    let fail = |kind| Error::new(kind, name.clone(), "read the mark of");
    check_name(resource, LONGEST_NAME).map_err(|what| fail(ErrorKind::misuse(what)))?;
    if !path.is_file() {
        return Err(fail(ErrorKind::misuse("there is no such database")));
    }
    let found = off_thread(move || {
        let mut connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_handler(Some(wait_while_busy))?;
        let transaction = connection.transaction()?;
        read_mark(&transaction, &of)
    });
    match found.await {
        Ok(Ok(mark)) => Ok(mark),
        Ok(Err(Failure::Refused(kind))) => Err(fail(kind)),
        Ok(Err(Failure::Begin(source) | Failure::Inside(source) | Failure::Commit(source))) => {
            Err(fail(ErrorKind::unreached(format!("the database cannot be used: {source}"), source)))
        }
        Err(source) => Err(fail(ErrorKind::unreached("it was not finished", source))),
    }
}

fn connect(path: &Path) -> Result<(DatabaseFile, Connection), Failure> {
    let open_file = || -> Result<DatabaseFile, Failure> {
        let file = DatabaseFile::new(path).map_err(|source| {
            Failure::Refused(ErrorKind::unreached(
                format!("the database's file cannot be inspected: {source}"),
                source,
            ))
        })?;
        file.check()?;
        Ok(file)
    };
    // Opening it would create a journal for the name that is refused.
    if path.exists() {
        open_file()?;
    }
    let mut connection = open_connection(path)?;
    let file = open_file()?;
    install(&mut connection)?;
    clear(&mut connection)?;
    Ok((file, connection))
}

fn open_connection(path: &Path) -> rusqlite::Result<Connection> {
    // A path that looks like a URI is a path all the same.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait_while_busy))?;
    // An acknowledged write must survive a power cut, in every journal mode.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(connection)
}

/// Creates the schema, unless it exists.
fn install(connection: &mut Connection) -> Result<(), Failure> {
    if let SchemaState::Current = tables::schema_state(connection)? {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    match tables::schema_state(&transaction)? {
        SchemaState::Current => Ok(()),
        SchemaState::Changed(name) => Err(tables::schema_changed(&name)),
        SchemaState::Missing => {
            transaction.execute_batch(SCHEMA)?;
            Ok(transaction.commit()?)
        }
    }
}

/// Verifies the protection of a resource's tables, and reads its mark.
fn read_mark(transaction: &Transaction<'_>, resource: &str) -> Result<Option<Mark>, Failure> {
    tables::verify(transaction, resource)?;
    Ok(state(transaction, resource)?.mark())
}

/// Removes tokens that a committed transaction has left presented, as a client without foreign keys can. A transaction that
/// may write excludes all others, so no running transaction needs them.
fn clear(connection: &mut Connection) -> rusqlite::Result<()> {
    let is_left = "SELECT EXISTS (SELECT 1 FROM main.palisade_pass)";
    if connection.query_row(is_left, [], |row| row.get(0))? {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute(CLEAR, [])?;
        transaction.commit()?;
    }
    Ok(())
}

fn wait_while_busy(retries: i32) -> bool {
    std::thread::sleep(BUSY_DELAY);
    retries < BUSY_RETRIES
}

/// Reads the fence's state in this transaction.
fn state(transaction: &Transaction<'_>, resource: &str) -> Result<FenceState<Value>, Failure> {
    let sql = "SELECT token, seq, author, is_applied, outcome FROM main.palisade_mark WHERE resource = ?1";
    let mut statement = transaction.prepare_cached(sql)?;
    let row = statement.query_row([resource], |row| {
        Ok((unsigned(row, 0)?, unsigned(row, 1)?, unsigned(row, 2)?, row.get::<_, bool>(3)?, row.get(4)?))
    });
    let Some((token, seq, author, is_applied, outcome)) = row.optional()? else {
        return Ok(FenceState::default());
    };
    let damaged = |bad| {
        Failure::Begin(rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Integer, Box::new(bad)))
    };
    let mark = Mark { token: Token::new(token).map_err(damaged)?, seq: Seq::new(seq).map_err(damaged)? };
    Ok(FenceState::of(mark, Author::new(author).map_err(damaged)?, is_applied.then_some(outcome)))
}

/// Numbers below 2^53 are the same with and without a sign.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

fn signed(number: impl Into<u64>) -> i64 {
    i64::try_from(number.into()).unwrap_or(i64::MAX)
}

fn refused<O>(verdict: &Verdict<O>) -> Failure {
    Failure::Refused(ErrorKind::refused(verdict).unwrap_or(ErrorKind::NotSealed))
}

impl Resource for Sqlite {
    type Query = Work;
    type Answer = Value;
    type Change = Work;
    type Outcome = Value;

    fn name(&self) -> String {
        self.name.to_string()
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let resource = self.resource.clone();
        let raise = move |transaction: &Transaction<'_>| {
            tables::verify(transaction, &resource)?;
            let mut state = state(transaction, &resource)?;
            let superseded = |seen| Failure::Refused(ErrorKind::Superseded { seen });
            let mark = state.seal(token).map_err(|by| superseded(by.seen))?;
            let sql = "INSERT INTO main.palisade_seal (resource, token) VALUES (?1, ?2)";
            transaction.execute(sql, params![&*resource, signed(token)])?;
            Ok(mark)
        };
        self.within(Kind::Write, "seal", Some(token), raise).await
    }

    async fn read(&self, pass: &Pass, query: Work) -> Result<Value, Error> {
        let (resource, token) = (self.resource.clone(), pass.token);
        let read = move |transaction: &Transaction<'_>| {
            state(transaction, &resource)?.admit_read(token).map_err(|verdict| refused(&verdict))?;
            query.run(transaction).map_err(Failure::Inside)
        };
        self.within(Kind::Read, "read", Some(token), read).await
    }

    async fn write(&self, pass: &Pass, change: Option<Work>) -> Result<Option<Value>, Error> {
        let (resource, stamp) = (self.resource.clone(), pass.stamp());
        let write = move |transaction: &Transaction<'_>| {
            match state(transaction, &resource)?.admit(stamp) {
                Verdict::Admitted => {}
                Verdict::Duplicate(outcome) => return Ok(outcome),
                verdict => return Err(refused(&verdict)),
            }
            // Tokens that other transactions have left presented.
            transaction.execute(CLEAR, [])?;
            let present = "INSERT INTO main.palisade_present (resource, token) VALUES (?1, ?2)";
            transaction.execute(present, params![&*resource, signed(stamp.token)])?;
            let outcome = change.map(|change| change.run(transaction)).transpose().map_err(Failure::Inside)?;
            if transaction.is_autocommit() {
                let what =
                    "the work has ended the transaction that it was run in; result that to the handle".to_owned();
                return Err(Failure::Refused(ErrorKind::Rejected { what, source: None }));
            }
            let sql = "UPDATE main.palisade_mark SET seq = ?2, author = ?3, is_applied = ?4, outcome = ?5 WHERE resource = ?1";
            let (seq, author, is_applied) = (signed(stamp.seq), signed(stamp.author), outcome.is_some());
            let recorded = transaction.execute(sql, params![&*resource, seq, author, is_applied, outcome]);
            recorded.and_then(|_| transaction.execute(CLEAR, [])).map_err(Failure::Inside)?;
            Ok(outcome)
        };
        self.within(Kind::Write, "write", Some(stamp.token), write).await
    }
}

crate::sealable!(Sqlite);

impl Sealed<Sqlite> {
    /// Reads in one transaction. What it changes is not kept.
    ///
    /// # Errors
    ///
    /// As [`Sealed::read`]; [`ErrorKind::Rejected`] for an error of the work itself.
    pub async fn query<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (work, found) = once(work);
        self.read(work).await?;
        found.take(self.resource(), self.token(), "read")
    }

    /// Changes the database in one transaction, with the token presented. All of it happens, or nothing.
    ///
    /// # Cancellation
    ///
    /// It may have happened: [`settle`](Sealed::settle) finds out.
    ///
    /// # Errors
    ///
    /// As [`Sealed::write`]; [`ErrorKind::Rejected`] for an error of the work itself.
    pub async fn transaction<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (work, found) = once(work);
        self.write(work).await?;
        found.take(self.resource(), self.token(), "write")
    }
}

/// The result of work that runs once.
struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Slot<T> {
    fn take(&self, resource: &Sqlite, token: Token, operation: &'static str) -> Result<T, Error> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let kind =
            || ErrorKind::unknown("it was done, but what came of it is not known", "the work was not run here");
        found.ok_or_else(|| Error::new(kind(), resource.name(), operation).under(token))
    }
}

/// Wraps a closure that runs once, and returns the slot for its result.
fn once<T: Send + 'static>(
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> (Work, Slot<T>) {
    let found = Arc::new(Mutex::new(None));
    let (result, work) = (found.clone(), Mutex::new(Some(work)));
    let work = Work::new(move |transaction| {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let work = work.ok_or(rusqlite::Error::InvalidQuery)?;
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(work(transaction)?);
        Ok(Value::Null)
    });
    (work, Slot(found))
}
