//! The log: batches of commands and a snapshot, in one SQLite file.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_core::{Command, Limits, Machine, RequestNo, RestoreError, SNAPSHOT_VERSION, Token};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::access::Access;
use super::binding::{Binding, BindingId, Identity};
use super::database_lock::DatabaseLock;
use super::error::StoreError;
use super::lease::live_owners;
use super::log_lock::LogLock;
use super::open_count::OpenCount;
use super::paths::{Inode, Paths, inode_of};

/// "PLSD": distinguishes our files from those of other programs.
const APPLICATION_ID: i64 = 0x504c_5344;

/// The version of the file format. Raised when older builds would misread the file, or apply its commands
/// differently.
const FORMAT: i64 = 2;

/// How long SQLite waits for transactions of other programs. Our own writers wait for the log's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of tokens that one flush of the lock file covers.
const RESERVATION: u64 = 1_000;

/// The least distance from the highest known token to the next one, in a database that may have issued unknown tokens
/// (an old copy, or one that was moved). No user takes as many tokens between two backups.
const TOKEN_GAP: u64 = 1 << 32;

/// Commands that were committed together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Batch {
    /// The boot in which it was written.
    pub(super) boot: u64,
    /// The time on that boot's clock. Writers exclude each other, so it is unique within a boot.
    pub(super) at_boot_ns: u64,
    /// The writing process.
    pub(super) pid: u32,
    /// The wall-clock time, for people only.
    pub(super) at_unix_ms: u64,
    pub(super) commands: Vec<Command>,
}

/// Facts about grants that the machine does not store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    pub(super) granted: BTreeMap<Token, Granted>,
    /// The end of each withheld grant: the boot, and the nanoseconds on its clock.
    pub(super) withheld_at: BTreeMap<Token, (u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Granted {
    /// In milliseconds since 1970. For people only.
    pub(super) at_unix_ms: u64,
    /// The request's number, if it had one.
    pub(super) number: Option<RequestNo>,
}

/// A batch in the log.
pub(super) struct Row {
    pub(super) seq: u64,
    pub(super) size: u64,
    pub(super) sum: u32,
    pub(super) batch: Batch,
}

/// A snapshot in the log.
pub(super) struct Snapshot {
    pub(super) seq: u64,
    pub(super) size: u64,
    pub(super) machine: Machine,
    pub(super) notes: Notes,
}

/// An open log.
pub(super) struct Log {
    connection: Connection,
    /// Declared after the connection, which must be closed first.
    database_lock: RefCell<DatabaseLock>,
    _open_count: OpenCount,
    paths: Paths,
    access: Access,
    /// The file of the log's lock, which holds the binding.
    lock_file: File,
    /// The binding at the time of opening.
    previous: Option<Binding>,
    /// Whether the binding was damaged. Unknown tokens may have been issued then.
    is_damaged: bool,
    /// Whether the files next to the database belong to it.
    is_bound: Cell<bool>,
    /// Whether this process has created or filled the database.
    is_new: Cell<bool>,
    /// The files that must not be replaced while they are in use.
    pinned: RefCell<Vec<(PathBuf, Inode)>>,
    durability: Cell<Durability>,
    #[cfg(test)]
    pub(super) fault: Cell<Option<Fault>>,
}

/// The time of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// Before the commit returns.
    Flushed,
    /// With the next commit that is flushed. A power cut may undo it, the death of a process does not.
    Deferred,
}

/// A failure of a commit that a test injects.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing is written.
    BeforeCommit,
    /// The commit is written, but reported as failed.
    AfterCommit,
}

/// The contents of a database.
enum Contents {
    Empty,
    Ours,
}

/// An SQLite transaction with cached statements. Dropping it rolls it back.
pub(super) struct Transaction<'a>(&'a Connection);

impl<'a> Transaction<'a> {
    fn begin(connection: &'a Connection, statement: &str) -> rusqlite::Result<Transaction<'a>> {
        connection.prepare_cached(statement)?.execute([])?;
        Ok(Transaction(connection))
    }

    fn commit(self) -> rusqlite::Result<()> {
        self.0.prepare_cached("COMMIT")?.execute([]).map(drop)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            // If this fails, SQLite rolls back when the file is opened next.
            drop(self.0.prepare_cached("ROLLBACK").and_then(|mut rollback| rollback.execute([])));
        }
    }
}

impl Log {
    /// Opens the log's lock. Creates its file, unless the database belongs to another program or is in use under
    /// another name: then nothing is created.
    pub(super) fn open_lock(paths: &Paths) -> Result<LogLock, StoreError> {
        OpenCount::check(&paths.file)?;
        LogLock::open(paths, || check_existing(paths))
    }

    /// Opens the database, or creates it. The caller has the log's lock.
    pub(super) fn open(paths: &Paths, lock: &LogLock) -> Result<Log, StoreError> {
        let file = &paths.file;
        let io_error = |error| StoreError::io("inspect", file, error);
        let pinned = vec![(paths.lock.clone(), lock.inode()?)];
        let lock_file = lock.file()?;
        if inode_of(file).map_err(io_error)?.is_none() {
            // A process that still owns a session has not noticed that the database is gone.
            refuse_if_used(paths, live_owners(&paths.sessions))?;
            let directory = paths.directory().metadata().map_err(io_error)?;
            let created = Access::of_directory(&directory).create(file);
            created.map_err(|error| StoreError::io("create", file, error))?;
        }
        let found = fs::symlink_metadata(file).map_err(io_error)?;
        let database_lock = DatabaseLock::acquire(file)?;
        let previous = Binding::read(&lock_file).map_err(|error| StoreError::io("read", &paths.lock, error))?;
        let is_damaged =
            Binding::is_damaged(&lock_file).map_err(|error| StoreError::io("read", &paths.lock, error))?;
        let is_bound = match previous {
            Some(previous) => previous.database == Identity::of(file).map_err(io_error)?,
            None => false,
        };
        if !is_bound {
            refuse_if_used(paths, users(paths, &database_lock))?;
        }
        let files = [inode_number(&paths.wal), inode_number(&paths.shm)];
        match previous {
            // Other users of the database have the files open that the binding names.
            Some(previous) if is_bound && !database_lock.is_exclusive() && files != [previous.wal, previous.shm] => {
                return Err(StoreError::in_use(file, database_lock.users()));
            }
            // The database was replaced. SQLite would apply the log of the previous one to it.
            Some(previous) if !is_bound && previous.wal != 0 && files[0] == previous.wal => {
                let mut aside = paths.wal.clone().into_os_string();
                aside.push(".replaced");
                fs::rename(&paths.wal, aside).map_err(|error| StoreError::io("move away", &paths.wal, error))?;
            }
            _ => {}
        }
        let open_count = OpenCount::add(file)?;
        let connection = connect(file)?;
        identify(&connection, file)?;
        if connection.is_readonly("main").map_err(|error| StoreError::sqlite(file, error))? {
            return Err(StoreError::ReadOnly(file.clone()));
        }
        Ok(Log {
            connection,
            _open_count: open_count,
            database_lock: RefCell::new(database_lock),
            access: Access::of_file(&found),
            paths: paths.clone(),
            lock_file,
            previous,
            is_damaged,
            is_bound: Cell::new(is_bound),
            is_new: Cell::new(false),
            pinned: RefCell::new([vec![(file.clone(), Inode::of(&found))], pinned].concat()),
            durability: Cell::new(Durability::Deferred),
            #[cfg(test)]
            fault: Cell::new(None),
        })
    }

    /// Returns the owner, group and mode of the files next to the database.
    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// Verifies that the database is the one that the files next to it belong to, has all issued tokens, and is of
    /// this boot. If not, the database is refused while other processes use it. Returns the token that all new ones
    /// must exceed.
    pub(super) fn verify_identity(&self, last: Option<Token>, boot: u64) -> Result<u64, StoreError> {
        let last = last.map_or(0, Token::get);
        let id = self.id()?;
        let previous = self.previous.filter(|previous| self.is_bound.get() && previous.id == id);
        self.is_bound.set(previous.is_some());
        let is_older = previous.is_some_and(|previous| previous.boot == boot && last < previous.issued);
        if previous.is_none() || is_older {
            refuse_if_used(&self.paths, users(&self.paths, &self.database_lock.borrow()))?;
        }
        if self.boot()?.is_some_and(|known| known != boot_name(boot)) {
            let users = users(&self.paths, &self.database_lock.borrow());
            if !users.is_empty() {
                return Err(StoreError::other_clock(self.file(), users));
            }
        }
        Ok(match previous {
            Some(previous) if previous.boot == boot => previous.issued,
            // After a power cut the database may lack issued tokens.
            Some(previous) => previous.reserved,
            None => match self.previous.map_or(0, |previous| previous.reserved).max(last) {
                0 if self.is_new.get() && !self.is_damaged => 0,
                highest => (highest + TOKEN_GAP).max(unix_micros()),
            },
        })
    }

    /// Binds the files next to the database to it, and allows other processes to use it. After this, the removal or
    /// replacement of one of them is noticed.
    pub(super) fn bind(&self, last: Option<Token>, boot: u64) -> Result<(), StoreError> {
        let last = last.map_or(0, Token::get);
        let io_error = |error| StoreError::io("write", &self.paths.lock, error);
        let id = self.id()?;
        let is_exclusive = self.database_lock.borrow().is_exclusive();
        if is_exclusive {
            let (wal, shm) = (inode_number(&self.paths.wal), inode_number(&self.paths.shm));
            [&self.paths.wal, &self.paths.shm].into_iter().for_each(|path| self.access.apply_to(path));
            let database = Identity::of(self.file()).map_err(io_error)?;
            let reserved = self.previous.map_or(0, |previous| previous.reserved).max(last);
            Binding { id, database, wal, shm, boot, issued: last, reserved }
                .write(&self.lock_file)
                .map_err(io_error)?;
            if !self.is_bound.replace(true) {
                self.lock_file.sync_all().map_err(io_error)?;
                // Without this, a database that loses its WAL file would look new.
                let copied = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
                copied.map_err(|error| self.sqlite_error(error))?;
            }
        }
        self.database_lock.borrow_mut().downgrade()?;
        for path in [&self.paths.wal, &self.paths.shm] {
            let inode = inode_of(path).map_err(|error| StoreError::io("inspect", path, error))?;
            let inode = inode.ok_or_else(|| StoreError::Replaced(path.clone()))?;
            self.pinned.borrow_mut().push((path.clone(), inode));
        }
        // While the lock was downgraded, a process may have bound the database under another name. Or its last other
        // user has closed it, and SQLite has replaced its files.
        let files = [inode_number(&self.paths.wal), inode_number(&self.paths.shm)];
        match self.binding()? {
            Some(now) if now.id == id && self.id()? == id && files == [now.wal, now.shm] => Ok(()),
            _ => Err(StoreError::in_use(self.file(), self.database_lock.borrow().users())),
        }
    }

    fn binding(&self) -> Result<Option<Binding>, StoreError> {
        Binding::read(&self.lock_file).map_err(|error| StoreError::io("read", &self.paths.lock, error))
    }

    /// Makes durable that tokens up to this one may be issued. The caller has the log's lock.
    pub(super) fn reserve(&self, last: Option<Token>) -> Result<(), StoreError> {
        let last = last.map_or(0, Token::get);
        let binding = self.binding()?.ok_or_else(|| StoreError::Replaced(self.paths.lock.clone()))?;
        if last <= binding.reserved {
            return Ok(());
        }
        let written = Binding { reserved: last + RESERVATION, ..binding }.write(&self.lock_file);
        written
            .and_then(|()| self.lock_file.sync_data())
            .map_err(|error| StoreError::io("write", &self.paths.lock, error))
    }

    /// Records the highest issued token. The caller has the log's lock.
    pub(super) fn record_issued(&self, last: Option<Token>) {
        let last = last.map_or(0, Token::get);
        let recorded = Binding::read(&self.lock_file).and_then(|binding| match binding {
            Some(binding) if binding.issued < last => Binding { issued: last, ..binding }.write(&self.lock_file),
            _ => Ok(()),
        });
        if let Err(error) = recorded {
            tracing::warn!(%error, "cannot record the highest token next to the database");
        }
    }

    /// Checks that the database and the files next to it were not replaced.
    pub(super) fn check_files(&self) -> Result<(), StoreError> {
        for (path, inode) in &*self.pinned.borrow() {
            match inode_of(path) {
                Ok(Some(found)) if found == *inode => {}
                Ok(_) => return Err(StoreError::Replaced(path.clone())),
                Err(error) => return Err(StoreError::io("inspect", path, error)),
            }
        }
        Ok(())
    }

    /// Configures the connection, and creates the tables in a new file. Returns whether the file was new. The caller
    /// has the log's lock.
    pub(super) fn set_up(&self) -> Result<bool, StoreError> {
        let sqlite = |error| self.sqlite_error(error);
        self.set_durability(Durability::Flushed)?;
        let mode = self.connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        if mode.map_err(sqlite)? != "wal" {
            return Err(StoreError::NoSharedMemory(self.file().to_owned()));
        }
        let transaction = self.begin(Durability::Flushed)?;
        let is_new = matches!(identify(&self.connection, self.file())?, Contents::Empty);
        if is_new {
            let machine = Machine::new(Limits::default());
            self.connection.execute_batch(include_str!("schema.sql")).map_err(sqlite)?;
            self.connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(sqlite)?;
            self.connection.pragma_update(None, "user_version", FORMAT).map_err(sqlite)?;
            self.put_snapshot(0, &machine, &Notes::default())?;
            // Files next to it belong to an earlier database.
            self.is_bound.set(false);
            self.is_new.set(true);
            self.renew_binding()?;
        }
        transaction.commit().map_err(sqlite)?;
        Ok(is_new)
    }

    fn set_durability(&self, durability: Durability) -> Result<(), StoreError> {
        if self.durability.get() != durability {
            let level = if durability == Durability::Flushed { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level).map_err(|error| self.sqlite_error(error))?;
            self.durability.set(durability);
        }
        Ok(())
    }

    /// Begins a write transaction.
    pub(super) fn begin(&self, durability: Durability) -> Result<Transaction<'_>, StoreError> {
        self.set_durability(durability)?;
        self.check_files()?;
        Transaction::begin(&self.connection, "BEGIN IMMEDIATE").map_err(|error| self.sqlite_error(error))
    }

    /// Begins a read transaction, which reads one snapshot of the database.
    pub(super) fn read(&self) -> Result<Transaction<'_>, StoreError> {
        self.check_files()?;
        Transaction::begin(&self.connection, "BEGIN").map_err(|error| self.sqlite_error(error))
    }

    pub(super) fn commit(&self, transaction: Transaction<'_>) -> Result<(), StoreError> {
        #[cfg(test)]
        match self.fault.take() {
            Some(Fault::BeforeCommit) => return Err(StoreError::Full(self.file().to_owned())),
            Some(Fault::AfterCommit) => {
                transaction.commit().map_err(|error| self.sqlite_error(error))?;
                return Err(StoreError::Sqlite {
                    file: self.file().to_owned(),
                    source: rusqlite::Error::InvalidQuery.into(),
                });
            }
            None => {}
        }
        transaction.commit().map_err(|error| self.sqlite_error(error))
    }

    /// Returns the batches from this number on, in order.
    pub(super) fn rows_from(&self, seq: u64) -> Result<Vec<Row>, StoreError> {
        let sqlite = |error| self.sqlite_error(error);
        let mut query = self
            .connection
            .prepare_cached("SELECT seq, batch FROM log WHERE seq >= ?1 ORDER BY seq")
            .map_err(sqlite)?;
        let mut found = query.query([seq as i64]).map_err(sqlite)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().map_err(sqlite)? {
            let seq = row.get::<_, i64>(0).map_err(sqlite)? as u64;
            let bytes = row.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(sqlite)?;
            let batch = self.decode(bytes, seq, "batch")?;
            rows.push(Row { seq, size: bytes.len() as u64, sum: sum_of(bytes), batch });
        }
        Ok(rows)
    }

    /// Finds exactly this batch in the log.
    pub(super) fn find(&self, seq: u64, batch: &Batch) -> Result<Option<Appended>, StoreError> {
        let first = self.rows_from(seq)?.into_iter().next();
        let found = first.filter(|row| row.seq == seq && row.batch == *batch);
        Ok(found.map(|row| Appended { size: row.size, sum: row.sum }))
    }

    /// Appends a batch. Fails if it does not continue the log.
    pub(super) fn append(&self, seq: u64, batch: &Batch) -> Result<Appended, StoreError> {
        const APPEND: &str = "INSERT INTO log (seq, batch) SELECT ?1, ?2 \
            WHERE ?1 = 1 + coalesce((SELECT max(seq) FROM log), (SELECT seq FROM snapshot))";
        let bytes = encode(batch, seq);
        let insert = self.connection.prepare_cached(APPEND);
        let added = insert.and_then(|mut insert| insert.execute(params![seq as i64, bytes]));
        match added.map_err(|error| self.sqlite_error(error))? {
            1 => Ok(Appended { size: bytes.len() as u64, sum: sum_of(&bytes) }),
            _ => Err(StoreError::Replaced(self.file().to_owned())),
        }
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let query = "SELECT seq, machine, notes FROM snapshot WHERE id = 1";
        let row = self.connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let found: Option<(i64, Vec<u8>, Vec<u8>)> = row.optional().map_err(|error| self.sqlite_error(error))?;
        let Some((seq, machine, notes)) = found else {
            return Err(StoreError::damaged(self.file(), "it has no snapshot"));
        };
        let seq = seq as u64;
        Ok(Snapshot {
            seq,
            size: machine.len() as u64,
            notes: self.decode(&notes, seq, "snapshot")?,
            machine: Machine::restore(&machine).map_err(|error| self.not_restored(seq, &error))?,
        })
    }

    fn not_restored(&self, seq: u64, error: &RestoreError) -> StoreError {
        match error {
            RestoreError::UnknownVersion { found } => {
                StoreError::other_format(self.file(), i64::from(*found), i64::from(SNAPSHOT_VERSION))
            }
            error => StoreError::damaged(self.file(), format!("snapshot {seq}: {error}")),
        }
    }

    /// Measures the snapshot and the batches after it.
    pub(super) fn sizes(&self) -> Result<Sizes, StoreError> {
        let query = "SELECT s.seq, length(s.machine), count(l.seq), coalesce(sum(length(l.batch)), 0) \
                     FROM snapshot s LEFT JOIN log l ON l.seq > s.seq";
        let found = self.connection.query_row(query, [], |row| {
            let number = |at| row.get::<_, i64>(at).map(|number| number as u64);
            Ok(Sizes { snapshot_at: number(0)?, snapshot: number(1)?, rows: number(2)?, bytes: number(3)? })
        });
        found.map_err(|error| self.sqlite_error(error))
    }

    /// Writes a new snapshot and deletes the batches that the previous one covers. Later batches stay for processes
    /// that are behind.
    pub(super) fn compact(
        &self,
        previous: u64,
        seq: u64,
        machine: &Machine,
        notes: &Notes,
    ) -> Result<u64, StoreError> {
        let delete = self.connection.prepare_cached("DELETE FROM log WHERE seq <= ?1");
        delete.and_then(|mut delete| delete.execute([previous as i64])).map_err(|error| self.sqlite_error(error))?;
        self.put_snapshot(seq, machine, notes)
    }

    fn put_snapshot(&self, seq: u64, machine: &Machine, notes: &Notes) -> Result<u64, StoreError> {
        let bytes = machine.snapshot();
        let put = "INSERT OR REPLACE INTO snapshot (id, seq, machine, notes) VALUES (1, ?1, ?2, ?3)";
        let done = self.connection.execute(put, params![seq as i64, bytes, encode(notes, seq)]);
        done.map_err(|error| self.sqlite_error(error))?;
        Ok(bytes.len() as u64)
    }

    /// Returns the boot of the sessions; `None` in a new file.
    pub(super) fn boot(&self) -> Result<Option<String>, StoreError> {
        let query = "SELECT value FROM meta WHERE name = 'boot'";
        self.connection.query_row(query, [], |row| row.get(0)).optional().map_err(|error| self.sqlite_error(error))
    }

    pub(super) fn set_boot(&self, boot: u64) -> Result<(), StoreError> {
        let put = "INSERT OR REPLACE INTO meta (name, value) VALUES ('boot', ?1)";
        self.connection.execute(put, [boot_name(boot)]).map(drop).map_err(|error| self.sqlite_error(error))
    }

    /// Returns the random number that binds the files next to the database to it.
    fn id(&self) -> Result<BindingId, StoreError> {
        let query = "SELECT unhex(value) FROM meta WHERE name = 'binding'";
        let found: Option<BindingId> = self
            .connection
            .query_row(query, [], |row| row.get(0))
            .optional()
            .map_err(|error| self.sqlite_error(error))?;
        found.ok_or_else(|| StoreError::damaged(self.file(), "it has no binding"))
    }

    /// Creates a new binding, unless there is a valid one. Files next to other names of the database then no longer
    /// belong to it.
    pub(super) fn renew_binding(&self) -> Result<(), StoreError> {
        if self.is_bound.get() {
            return Ok(());
        }
        let put = "INSERT OR REPLACE INTO meta (name, value) VALUES ('binding', hex(randomblob(16)))";
        self.connection.execute(put, []).map(drop).map_err(|error| self.sqlite_error(error))
    }

    pub(super) fn is_bound(&self) -> bool {
        self.is_bound.get()
    }

    pub(super) fn file(&self) -> &Path {
        &self.paths.file
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn sqlite_error(&self, error: rusqlite::Error) -> StoreError {
        StoreError::sqlite(self.file(), error)
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8], seq: u64, what: &str) -> Result<T, StoreError> {
        let damaged = |why: &str| StoreError::damaged(self.file(), format!("{what} {seq} {why}"));
        let Some((sum, body)) = bytes.split_first_chunk::<4>() else { return Err(damaged("is cut off")) };
        if u32::from_le_bytes(*sum) != checksum(body, seq) {
            return Err(damaged("does not match its checksum"));
        }
        postcard::from_bytes(body).map_err(|error| damaged(&format!("cannot be read: {error}")))
    }
}

/// The size of the snapshot and of the batches after it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    pub(super) snapshot_at: u64,
    pub(super) snapshot: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

/// An appended batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Appended {
    pub(super) size: u64,
    pub(super) sum: u32,
}

/// Checks a database without a lock file, before that is created. Returns `None` if there is no database.
fn check_existing(paths: &Paths) -> Result<Option<Access>, StoreError> {
    let Ok(found) = fs::symlink_metadata(&paths.file) else { return Ok(None) };
    let database_lock = DatabaseLock::acquire(&paths.file)?;
    refuse_if_used(paths, users(paths, &database_lock))?;
    identify(&connect(&paths.file)?, &paths.file)?;
    Ok(Some(Access::of_file(&found)))
}

fn connect(file: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags).map_err(|error| StoreError::sqlite(file, error))?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(|error| StoreError::sqlite(file, error))?;
    Ok(connection)
}

/// Returns the other processes that use a database or the files next to it; 0 stands for an unknown one.
fn users(paths: &Paths, database_lock: &DatabaseLock) -> Vec<u32> {
    let mut users = live_owners(&paths.sessions);
    if !database_lock.is_exclusive() {
        users.extend(database_lock.users());
        users.push(0);
    }
    users
}

/// Returns the microseconds since 1970. They separate the tokens of two restores of one backup, which has the same
/// highest token both times. The wall clock decides nothing else; if it was set back, [`TOKEN_GAP`] remains.
fn unix_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or_default().min(Token::MAX.get() / 2)
}

fn refuse_if_used(paths: &Paths, users: Vec<u32>) -> Result<(), StoreError> {
    match users.is_empty() {
        true => Ok(()),
        false => Err(StoreError::in_use(&paths.file, users)),
    }
}

/// Returns the inode number of the file at a path; 0 if there is no file.
fn inode_number(path: &Path) -> u64 {
    inode_of(path).ok().flatten().map_or(0, |inode| inode.number)
}

pub(super) fn boot_name(boot: u64) -> String {
    format!("{boot:016x}")
}

/// Returns the contents of a database. Fails if it is not ours.
fn identify(connection: &Connection, file: &Path) -> Result<Contents, StoreError> {
    let number = |query: &str| {
        connection.query_row(query, [], |row| row.get::<_, i64>(0)).map_err(|error| StoreError::sqlite(file, error))
    };
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    match (number("PRAGMA application_id")?, number("PRAGMA user_version")?) {
        (0, 0) if tables == 0 => Ok(Contents::Empty),
        (APPLICATION_ID, FORMAT) => Ok(Contents::Ours),
        (APPLICATION_ID, found) => Err(StoreError::other_format(file, found, FORMAT)),
        _ => Err(StoreError::NotOurs(file.to_owned())),
    }
}

/// Encodes a value with a checksum, since SQLite does not detect a flipped bit in a page.
fn encode(value: &impl Serialize, seq: u64) -> Vec<u8> {
    let mut bytes = match postcard::to_extend(value, vec![0; 4]) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("writing to memory cannot fail: {error}"),
    };
    let sum = checksum(&bytes[4..], seq);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the checksum at the start of a row.
fn sum_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum))
}

/// Computes a checksum that includes the row's number, which detects swapped rows.
fn checksum(body: &[u8], seq: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seq as u32);
    hasher.update(body);
    hasher.finalize()
}
