//! The marks in the database, and the transactions under them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::Token;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::{SCHEMA, Work, protection};
use crate::name::check_name;
use crate::off_thread::off_thread;
use crate::{Author, Error, ErrorKind, Gate, Mark, Pass, Resource, Sealed, Seq, Verdict};

const LONGEST_NAME: usize = 512;

/// How often, and how long between, it asks while another process has its transaction. SQLite's own handler asks ever
/// more seldom, and a holder that was overtaken but writes without a pause could keep its successor from sealing.
const ASKS: i32 = 10_000;
const BETWEEN: Duration = Duration::from_millis(1);

const CLEAR: &str = "DELETE FROM palisade_pass";

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
    connection: Arc<Mutex<Connection>>,
}

/// What went wrong in a transaction.
enum Failure {
    /// Before anything could be changed.
    Begin(rusqlite::Error),
    /// By what was done in it; it was rolled back.
    Inside(rusqlite::Error),
    /// When it ended.
    Commit(rusqlite::Error),
    /// The mark says no.
    Refused(ErrorKind),
}

/// Whether a transaction is kept.
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
    /// A resource of this name in the database of this path. The database, and what Palisade keeps in it, is made if it
    /// is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: a name that is none. A database that cannot be opened or written.
    pub async fn open(path: impl AsRef<Path>, resource: &str) -> Result<Sqlite, Error> {
        let path = path.as_ref().to_owned();
        let name = format!("SQLite {}, resource {resource}", path.display());
        let fail = |kind| Error::new(kind, name.clone(), "open");
        check_name(resource, LONGEST_NAME).map_err(|what| fail(ErrorKind::misuse(what)))?;
        let opened = off_thread(move || connect(&path)).await;
        let connection = match opened {
            Ok(Ok(connection)) => connection,
            Ok(Err(source)) => {
                return Err(fail(ErrorKind::unreached(format!("the database cannot be used: {source}"), source)));
            }
            Err(source) => return Err(fail(ErrorKind::unreached("it was not finished", source))),
        };
        let connection = Arc::new(Mutex::new(connection));
        Ok(Sqlite { name: name.into(), resource: resource.into(), connection })
    }

    /// Puts triggers on a table that refuse every change without this resource's token, from whatever client. Again is
    /// no error.
    ///
    /// # Errors
    ///
    /// There is no such table; the database cannot be written.
    pub async fn protect(&self, table: &str) -> Result<(), Error> {
        let sql = protection(&self.resource, table);
        let protect = move |transaction: &Transaction<'_>| transaction.execute_batch(&sql).map_err(Failure::Inside);
        self.within(Kind::Write, "protect a table of", None, protect).await
    }

    /// How far it has come; `None` if nothing has ever sealed it. Anybody may look.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn mark(&self) -> Result<Option<Mark>, Error> {
        let resource = self.resource.clone();
        let look = move |transaction: &Transaction<'_>| Ok(gate(transaction, &resource)?.mark());
        self.within(Kind::Read, "look at the mark of", None, look).await
    }

    /// Does something in one transaction, away from the threads that run futures.
    async fn within<T: Send + 'static>(
        &self,
        kind: Kind,
        operation: &'static str,
        token: Option<Token>,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let connection = self.connection.clone();
        let done = off_thread(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(kind.behavior()).map_err(Failure::Begin)?;
            let done = work(&transaction)?;
            match kind {
                Kind::Write => transaction.commit().map_err(Failure::Commit)?,
                Kind::Read => transaction.rollback().map_err(Failure::Begin)?,
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

/// The mark of a resource, from a database that is only read: nothing is made there. `None` if nothing has ever sealed it.
///
/// # Errors
///
/// [`ErrorKind::Misuse`]: there is no such database, or no fence in it. What the database says.
pub async fn mark(path: impl AsRef<Path>, resource: &str) -> Result<Option<Mark>, Error> {
    let (path, of) = (path.as_ref().to_owned(), resource.to_owned());
    let name = format!("SQLite {}, resource {resource}", path.display());
    let fail = |kind| Error::new(kind, name.clone(), "look at the mark of");
    check_name(resource, LONGEST_NAME).map_err(|what| fail(ErrorKind::misuse(what)))?;
    if !path.is_file() {
        return Err(fail(ErrorKind::misuse("there is no such database")));
    }
    let found = off_thread(move || {
        let mut connection =
            Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(Failure::Begin)?;
        connection.busy_handler(Some(wait_a_moment)).map_err(Failure::Begin)?;
        let transaction = connection.transaction().map_err(Failure::Begin)?;
        let has_marks = "SELECT 1 FROM sqlite_schema WHERE name = 'palisade_mark'";
        match transaction.query_row(has_marks, [], |_| Ok(())).optional().map_err(Failure::Begin)? {
            Some(()) => Ok(gate(&transaction, &of)?.mark()),
            None => Err(Failure::Refused(ErrorKind::misuse(
                "there is no fence in this database: Sqlite::protect makes it",
            ))),
        }
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

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection.busy_handler(Some(wait_a_moment))?;
    // What was acknowledged must be there after a power cut, in whatever mode the database is.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    let has_schema = "SELECT 1 FROM sqlite_schema WHERE name = 'palisade_present_insert'";
    if connection.query_row(has_schema, [], |_| Ok(())).optional()?.is_none() {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(SCHEMA)?;
        transaction.commit()?;
    }
    clear(&mut connection)?;
    Ok(connection)
}

/// Takes away tokens that a transaction has presented and left behind when it was committed: a client that does not enforce
/// foreign keys can. In a transaction that may write, nobody else is in the midst of one.
fn clear(connection: &mut Connection) -> rusqlite::Result<()> {
    let is_left = "SELECT EXISTS (SELECT 1 FROM palisade_pass)";
    if connection.query_row(is_left, [], |row| row.get(0))? {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute(CLEAR, [])?;
        transaction.commit()?;
    }
    Ok(())
}

fn wait_a_moment(asked: i32) -> bool {
    std::thread::sleep(BETWEEN);
    asked < ASKS
}

/// The mark and the last outcome, as they are in this transaction.
fn gate(transaction: &Transaction<'_>, resource: &str) -> Result<Gate<Value>, Failure> {
    let sql = "SELECT token, seq, author, is_applied, outcome FROM palisade_mark WHERE resource = ?1";
    let mut statement = transaction.prepare_cached(sql).map_err(Failure::Begin)?;
    let row = statement.query_row([resource], |row| {
        Ok((unsigned(row, 0)?, unsigned(row, 1)?, unsigned(row, 2)?, row.get::<_, bool>(3)?, row.get(4)?))
    });
    let Some((token, seq, author, is_applied, outcome)) = row.optional().map_err(Failure::Begin)? else {
        return Ok(Gate::default());
    };
    let damaged = |bad| {
        Failure::Begin(rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Integer, Box::new(bad)))
    };
    let mark = Mark { token: Token::new(token).map_err(damaged)?, seq: Seq::new(seq).map_err(damaged)? };
    Ok(Gate::of(mark, Author::new(author).map_err(damaged)?, is_applied.then_some(outcome)))
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
            let mut gate = gate(transaction, &resource)?;
            let superseded = |seen| Failure::Refused(ErrorKind::Superseded { seen });
            let mark = gate.seal(token).map_err(|by| superseded(by.seen))?;
            let sql = "INSERT INTO palisade_seal (resource, token) VALUES (?1, ?2)";
            transaction.execute(sql, params![&*resource, signed(token)]).map_err(Failure::Begin)?;
            Ok(mark)
        };
        self.within(Kind::Write, "seal", Some(token), raise).await
    }

    async fn read(&self, pass: &Pass, query: Work) -> Result<Value, Error> {
        let (resource, token) = (self.resource.clone(), pass.token);
        let read = move |transaction: &Transaction<'_>| {
            gate(transaction, &resource)?.admit_read(token).map_err(|verdict| refused(&verdict))?;
            query.run(transaction).map_err(Failure::Inside)
        };
        self.within(Kind::Read, "read", Some(token), read).await
    }

    async fn write(&self, pass: &Pass, change: Option<Work>) -> Result<Option<Value>, Error> {
        let (resource, stamp) = (self.resource.clone(), pass.stamp());
        let write = move |transaction: &Transaction<'_>| {
            match gate(transaction, &resource)?.admit(stamp) {
                Verdict::Admitted => {}
                Verdict::Duplicate(outcome) => return Ok(outcome),
                verdict => return Err(refused(&verdict)),
            }
            // Of others who have left theirs.
            transaction.execute(CLEAR, []).map_err(Failure::Begin)?;
            let present = "INSERT INTO palisade_present (resource, token) VALUES (?1, ?2)";
            transaction.execute(present, params![&*resource, signed(stamp.token)]).map_err(Failure::Begin)?;
            let outcome = change.map(|change| change.run(transaction)).transpose().map_err(Failure::Inside)?;
            let sql =
                "UPDATE palisade_mark SET seq = ?2, author = ?3, is_applied = ?4, outcome = ?5 WHERE resource = ?1";
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
    /// As [`Sealed::read`]; [`ErrorKind::Rejected`] for what the work itself says.
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
    /// As [`Sealed::write`]; [`ErrorKind::Rejected`] for what the work itself says.
    pub async fn transaction<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (work, found) = once(work);
        self.write(work).await?;
        found.take(self.resource(), self.token(), "write")
    }
}

/// Where work that is done once leaves what it has found.
struct Found<T>(Arc<Mutex<Option<T>>>);

impl<T> Found<T> {
    fn take(&self, resource: &Sqlite, token: Token, operation: &'static str) -> Result<T, Error> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let kind =
            || ErrorKind::unknown("it was done, but what came of it is not known", "the work was not run here");
        found.ok_or_else(|| Error::new(kind(), resource.name(), operation).under(token))
    }
}

/// Work that can be done once only, and the place where it leaves what it has found.
fn once<T: Send + 'static>(
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> (Work, Found<T>) {
    let found = Arc::new(Mutex::new(None));
    let (leave, work) = (found.clone(), Mutex::new(Some(work)));
    let work = Work::new(move |transaction| {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let work = work.ok_or(rusqlite::Error::InvalidQuery)?;
        *leave.lock().unwrap_or_else(PoisonError::into_inner) = Some(work(transaction)?);
        Ok(Value::Null)
    });
    (work, Found(found))
}
