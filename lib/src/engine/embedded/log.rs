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
use super::alive::living;
use super::binding::{Binding, BindingId, Identity};
use super::error::Trouble;
use super::log_lock::LogLock;
use super::place::{Inode, Place, inode_of};
use super::presence::Presence;

/// "PLSD": tells our files from those of other programs.
const APPLICATION_ID: i64 = 0x504c_5344;

/// Raised when older builds would misread the file, or would apply its commands by other rules.
const FORMAT: i64 = 2;

/// Our own writers wait for each other elsewhere; this is for programs that are not ours.
const BUSY: Duration = Duration::from_secs(1);

/// The number of tokens that one flush of the lock file covers.
const BLOCK: u64 = 1_000;

/// A database that may have given tokens since (an old copy, or one that was moved) begins at least this far above the
/// highest token that it knows. No user takes as many tokens between two backups.
const JUMP: u64 = 1 << 32;

/// Commands that were committed together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Batch {
    /// The boot in which it was written.
    pub(super) boot: u64,
    /// When, on that boot's clock. Writers take turns, so no two batches of a boot have the same moment.
    pub(super) at_boot_ns: u64,
    /// By whom.
    pub(super) pid: u32,
    /// When, for people only.
    pub(super) at_unix_ms: u64,
    pub(super) commands: Vec<Command>,
}

/// What the machine does not tell of its grants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    pub(super) granted: BTreeMap<Token, Granted>,
    /// When each withheld grant ended: the boot, and the nanoseconds on its clock.
    pub(super) withheld_at: BTreeMap<Token, (u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Granted {
    /// In milliseconds since 1970. For people only.
    pub(super) at_unix_ms: u64,
    /// The request's number, if it had one.
    pub(super) number: Option<RequestNo>,
}

/// A batch as it lies in the log.
pub(super) struct Row {
    pub(super) seq: u64,
    pub(super) size: u64,
    pub(super) sum: u32,
    pub(super) batch: Batch,
}

/// The snapshot.
pub(super) struct Snapshot {
    pub(super) seq: u64,
    pub(super) size: u64,
    pub(super) machine: Machine,
    pub(super) notes: Notes,
}

pub(super) struct Log {
    connection: Connection,
    /// Behind the connection, which must be closed first.
    presence: RefCell<Presence>,
    place: Place,
    access: Access,
    /// The file of the log's lock, which has the binding.
    lock: File,
    /// What the binding said when the database was opened.
    before: Option<Binding>,
    /// Whether the binding was damaged: then tokens were given that the files do not show.
    is_damaged: bool,
    /// Whether the files beside the database are known to belong to it.
    is_bound: Cell<bool>,
    /// Whether it was made, or filled, by this process.
    is_new: Cell<bool>,
    /// The files that must stay the same as long as they are in use.
    parts: RefCell<Vec<(PathBuf, Inode)>>,
    lasting: Cell<Lasting>,
    #[cfg(test)]
    pub(super) fault: Cell<Option<Fault>>,
}

/// When a commit is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasting {
    /// When it is done.
    AtOnce,
    /// With the next one that must be. A power cut may take it back; a process that dies takes back nothing.
    Later,
}

/// Where a test makes a commit fail.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing gets into the file.
    BeforeCommit,
    /// It is in the file, but the writer is told otherwise.
    AfterCommit,
}

enum Found {
    Nothing,
    Ours,
}

/// A transaction whose beginning and end are not parsed anew each time. Undone when it is dropped.
pub(super) struct Transaction<'a>(&'a Connection);

impl<'a> Transaction<'a> {
    fn begin(connection: &'a Connection, how: &str) -> rusqlite::Result<Transaction<'a>> {
        connection.prepare_cached(how)?.execute([])?;
        Ok(Transaction(connection))
    }

    fn commit(self) -> rusqlite::Result<()> {
        self.0.prepare_cached("COMMIT")?.execute([]).map(drop)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            // What cannot be undone now is undone when the file is opened next.
            drop(self.0.prepare_cached("ROLLBACK").and_then(|mut undo| undo.execute([])));
        }
    }
}

impl Log {
    /// Opens the database, or makes it. The caller has the log's lock.
    pub(super) fn open(place: &Place, lock: &LogLock) -> Result<Log, Trouble> {
        let file = &place.file;
        let trouble = |error| Trouble::io("look at", file, error);
        let parts = vec![(place.lock.clone(), lock.inode()?)];
        let lock = lock.file()?;
        if inode_of(file).map_err(trouble)?.is_none() {
            // A process that still keeps a session has not noticed that the database is gone.
            refuse_if_used(place, living(&place.sessions))?;
            let directory = place.directory().metadata().map_err(trouble)?;
            let made = Access::of_directory(&directory).create(file);
            made.map_err(|error| Trouble::io("create", file, error))?;
        }
        let found = fs::symlink_metadata(file).map_err(trouble)?;
        let presence = Presence::join(file)?;
        let before = Binding::read(&lock).map_err(|error| Trouble::io("read", &place.lock, error))?;
        let is_damaged = Binding::is_damaged(&lock).map_err(|error| Trouble::io("read", &place.lock, error))?;
        let is_bound = match before {
            Some(before) => before.database == Identity::of(file).map_err(trouble)?,
            None => false,
        };
        if !is_bound {
            refuse_if_used(place, users(place, &presence))?;
        }
        let files = [number_of(&place.wal), number_of(&place.shm)];
        match before {
            // Other users of the database have the files open that the binding names.
            Some(before) if is_bound && !presence.is_alone() && files != [before.wal, before.shm] => {
                return Err(Trouble::in_use(file, presence.users()));
            }
            // The database was replaced. SQLite would take what belongs to the one before for a part of this one.
            Some(before) if !is_bound && before.wal != 0 && files[0] == before.wal => {
                let mut aside = place.wal.clone().into_os_string();
                aside.push(".replaced");
                fs::rename(&place.wal, aside).map_err(|error| Trouble::io("move away", &place.wal, error))?;
            }
            _ => {}
        }
        let connection = connect(file)?;
        judge(&connection, file)?;
        if connection.is_readonly("main").map_err(|error| Trouble::sqlite(file, error))? {
            return Err(Trouble::ReadOnly(file.clone()));
        }
        Ok(Log {
            connection,
            presence: RefCell::new(presence),
            access: Access::of_file(&found),
            place: place.clone(),
            lock,
            before,
            is_damaged,
            is_bound: Cell::new(is_bound),
            is_new: Cell::new(false),
            parts: RefCell::new([vec![(file.clone(), Inode::of(&found))], parts].concat()),
            lasting: Cell::new(Lasting::Later),
            #[cfg(test)]
            fault: Cell::new(None),
        })
    }

    /// The access that everything beside the database has.
    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// Finds out whether the database is the one that the files beside it belong to, as young as they know it, and of
    /// this boot. If not, no other process may use it. Returns the token that all others must be above.
    pub(super) fn admit(&self, last: Option<Token>, boot: u64) -> Result<u64, Trouble> {
        let last = last.map_or(0, Token::get);
        let id = self.id()?;
        let before = self.before.filter(|before| self.is_bound.get() && before.id == id);
        self.is_bound.set(before.is_some());
        let went_back = before.is_some_and(|before| before.boot == boot && last < before.given);
        if before.is_none() || went_back {
            refuse_if_used(&self.place, users(&self.place, &self.presence.borrow()))?;
        }
        if self.boot()?.is_some_and(|known| known != boot_name(boot)) {
            let users = users(&self.place, &self.presence.borrow());
            if !users.is_empty() {
                return Err(Trouble::other_clock(self.file(), users));
            }
        }
        Ok(match before {
            Some(before) if before.boot == boot => before.given,
            // Whether all that was given is in the database is not known after a power cut.
            Some(before) => before.reserved,
            None => match self.before.map_or(0, |before| before.reserved).max(last) {
                0 if self.is_new.get() && !self.is_damaged => 0,
                highest => (highest + JUMP).max(microseconds()),
            },
        })
    }

    /// Binds the files beside the database to it, and lets other processes use it too. From now on it is noticed when
    /// one of them is removed or replaced.
    pub(super) fn bind(&self, last: Option<Token>, boot: u64) -> Result<(), Trouble> {
        let last = last.map_or(0, Token::get);
        let trouble = |error| Trouble::io("write", &self.place.lock, error);
        let id = self.id()?;
        let is_alone = self.presence.borrow().is_alone();
        if is_alone {
            let (wal, shm) = (number_of(&self.place.wal), number_of(&self.place.shm));
            [&self.place.wal, &self.place.shm].into_iter().for_each(|path| self.access.give_to(path));
            let database = Identity::of(self.file()).map_err(trouble)?;
            let reserved = self.before.map_or(0, |before| before.reserved).max(last);
            Binding { id, database, wal, shm, boot, given: last, reserved }.write(&self.lock).map_err(trouble)?;
            if !self.is_bound.replace(true) {
                self.lock.sync_all().map_err(trouble)?;
                // A database that loses SQLite's log is then known not to be a new one.
                let copied = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
                copied.map_err(|error| self.trouble(error))?;
            }
        }
        self.presence.borrow_mut().settle()?;
        for path in [&self.place.wal, &self.place.shm] {
            let inode = inode_of(path).map_err(|error| Trouble::io("look at", path, error))?;
            let inode = inode.ok_or_else(|| Trouble::Replaced(path.clone()))?;
            self.parts.borrow_mut().push((path.clone(), inode));
        }
        // A process may have bound it elsewhere in the moment in which it was not excluded; or the last of its other
        // users has just closed it, and SQLite has removed its files and made new ones.
        let files = [number_of(&self.place.wal), number_of(&self.place.shm)];
        match self.binding()? {
            Some(now) if now.id == id && self.id()? == id && files == [now.wal, now.shm] => Ok(()),
            _ => Err(Trouble::in_use(self.file(), self.presence.borrow().users())),
        }
    }

    fn binding(&self) -> Result<Option<Binding>, Trouble> {
        Binding::read(&self.lock).map_err(|error| Trouble::io("read", &self.place.lock, error))
    }

    /// Notes, on the disk, that tokens up to this one may have been given. The caller has the log's lock.
    pub(super) fn reserve(&self, last: Option<Token>) -> Result<(), Trouble> {
        let last = last.map_or(0, Token::get);
        let binding = self.binding()?.ok_or_else(|| Trouble::Replaced(self.place.lock.clone()))?;
        if last <= binding.reserved {
            return Ok(());
        }
        let written = Binding { reserved: last + BLOCK, ..binding }.write(&self.lock);
        written.and_then(|()| self.lock.sync_data()).map_err(|error| Trouble::io("write", &self.place.lock, error))
    }

    /// Notes the highest token that was given. The caller has the log's lock.
    pub(super) fn note_given(&self, last: Option<Token>) {
        let last = last.map_or(0, Token::get);
        let noted = Binding::read(&self.lock).and_then(|binding| match binding {
            Some(binding) if binding.given < last => Binding { given: last, ..binding }.write(&self.lock),
            _ => Ok(()),
        });
        if let Err(error) = noted {
            tracing::warn!(%error, "cannot note the highest token beside the database");
        }
    }

    /// Whether the database and the files beside it are still the ones that are in use.
    pub(super) fn check(&self) -> Result<(), Trouble> {
        for (path, inode) in &*self.parts.borrow() {
            match inode_of(path) {
                Ok(Some(found)) if found == *inode => {}
                Ok(_) => return Err(Trouble::Replaced(path.clone())),
                Err(error) => return Err(Trouble::io("look at", path, error)),
            }
        }
        Ok(())
    }

    /// Sets the file up for use, and fills it if it is new, which is returned. The caller has the log's lock.
    pub(super) fn set_up(&self) -> Result<bool, Trouble> {
        let sqlite = |error| self.trouble(error);
        self.set_lasting(Lasting::AtOnce)?;
        let mode = self.connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        if mode.map_err(sqlite)? != "wal" {
            return Err(Trouble::NoSharedMemory(self.file().to_owned()));
        }
        let writing = self.begin(Lasting::AtOnce)?;
        let is_new = matches!(judge(&self.connection, self.file())?, Found::Nothing);
        if is_new {
            let machine = Machine::new(Limits::default());
            self.connection.execute_batch(include_str!("schema.sql")).map_err(sqlite)?;
            self.connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(sqlite)?;
            self.connection.pragma_update(None, "user_version", FORMAT).map_err(sqlite)?;
            self.put_snapshot(0, &machine, &Notes::default())?;
            // Whatever the files beside it belonged to before.
            self.is_bound.set(false);
            self.is_new.set(true);
            self.renew_binding()?;
        }
        writing.commit().map_err(sqlite)?;
        Ok(is_new)
    }

    fn set_lasting(&self, lasting: Lasting) -> Result<(), Trouble> {
        if self.lasting.get() != lasting {
            let level = if lasting == Lasting::AtOnce { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level).map_err(|error| self.trouble(error))?;
            self.lasting.set(lasting);
        }
        Ok(())
    }

    /// Begins to write: until the transaction ends, nobody else can.
    pub(super) fn begin(&self, lasting: Lasting) -> Result<Transaction<'_>, Trouble> {
        self.set_lasting(lasting)?;
        self.check()?;
        Transaction::begin(&self.connection, "BEGIN IMMEDIATE").map_err(|error| self.trouble(error))
    }

    /// Begins to read: until the transaction ends, everything is seen as of one moment.
    pub(super) fn read(&self) -> Result<Transaction<'_>, Trouble> {
        self.check()?;
        Transaction::begin(&self.connection, "BEGIN").map_err(|error| self.trouble(error))
    }

    pub(super) fn commit(&self, writing: Transaction<'_>) -> Result<(), Trouble> {
        #[cfg(test)]
        match self.fault.take() {
            Some(Fault::BeforeCommit) => return Err(Trouble::Full(self.file().to_owned())),
            Some(Fault::AfterCommit) => {
                writing.commit().map_err(|error| self.trouble(error))?;
                return Err(Trouble::Sqlite {
                    file: self.file().to_owned(),
                    source: rusqlite::Error::InvalidQuery.into(),
                });
            }
            None => {}
        }
        writing.commit().map_err(|error| self.trouble(error))
    }

    /// The batches from this one on, in order.
    pub(super) fn rows_from(&self, seq: u64) -> Result<Vec<Row>, Trouble> {
        let sqlite = |error| self.trouble(error);
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

    /// This very batch, if it is in the log.
    pub(super) fn find(&self, seq: u64, batch: &Batch) -> Result<Option<Appended>, Trouble> {
        let first = self.rows_from(seq)?.into_iter().next();
        let found = first.filter(|row| row.seq == seq && row.batch == *batch);
        Ok(found.map(|row| Appended { size: row.size, sum: row.sum }))
    }

    /// Adds a batch, but only behind the one that it was made for.
    pub(super) fn append(&self, seq: u64, batch: &Batch) -> Result<Appended, Trouble> {
        const APPEND: &str = "INSERT INTO log (seq, batch) SELECT ?1, ?2 \
            WHERE ?1 = 1 + coalesce((SELECT max(seq) FROM log), (SELECT seq FROM snapshot))";
        let bytes = encode(batch, seq);
        let insert = self.connection.prepare_cached(APPEND);
        let added = insert.and_then(|mut insert| insert.execute(params![seq as i64, bytes]));
        match added.map_err(|error| self.trouble(error))? {
            1 => Ok(Appended { size: bytes.len() as u64, sum: sum_of(&bytes) }),
            _ => Err(Trouble::Replaced(self.file().to_owned())),
        }
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, Trouble> {
        let query = "SELECT seq, machine, notes FROM snapshot WHERE id = 1";
        let row = self.connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let found: Option<(i64, Vec<u8>, Vec<u8>)> = row.optional().map_err(|error| self.trouble(error))?;
        let Some((seq, machine, notes)) = found else {
            return Err(Trouble::damaged(self.file(), "it has no snapshot"));
        };
        let seq = seq as u64;
        Ok(Snapshot {
            seq,
            size: machine.len() as u64,
            notes: self.decode(&notes, seq, "snapshot")?,
            machine: Machine::restore(&machine).map_err(|error| self.not_restored(seq, &error))?,
        })
    }

    fn not_restored(&self, seq: u64, error: &RestoreError) -> Trouble {
        match error {
            RestoreError::UnknownVersion { found } => {
                let (found, known) = (i64::from(*found), i64::from(SNAPSHOT_VERSION));
                Trouble::NewerFormat { file: self.file().to_owned(), found, known }
            }
            error => Trouble::damaged(self.file(), format!("snapshot {seq}: {error}")),
        }
    }

    /// Where the snapshot is and how large, and what lies behind it.
    pub(super) fn sizes(&self) -> Result<Sizes, Trouble> {
        let query = "SELECT s.seq, length(s.machine), count(l.seq), coalesce(sum(length(l.batch)), 0) \
                     FROM snapshot s LEFT JOIN log l ON l.seq > s.seq";
        let found = self.connection.query_row(query, [], |row| {
            let number = |at| row.get::<_, i64>(at).map(|number| number as u64);
            Ok(Sizes { snapshot_at: number(0)?, snapshot: number(1)?, rows: number(2)?, bytes: number(3)? })
        });
        found.map_err(|error| self.trouble(error))
    }

    /// Writes a new snapshot. What the one before covered goes; what came after it stays for those who are behind.
    pub(super) fn compact(&self, before: u64, seq: u64, machine: &Machine, notes: &Notes) -> Result<u64, Trouble> {
        let delete = self.connection.prepare_cached("DELETE FROM log WHERE seq <= ?1");
        delete.and_then(|mut delete| delete.execute([before as i64])).map_err(|error| self.trouble(error))?;
        self.put_snapshot(seq, machine, notes)
    }

    fn put_snapshot(&self, seq: u64, machine: &Machine, notes: &Notes) -> Result<u64, Trouble> {
        let bytes = machine.snapshot();
        let put = "INSERT OR REPLACE INTO snapshot (id, seq, machine, notes) VALUES (1, ?1, ?2, ?3)";
        let done = self.connection.execute(put, params![seq as i64, bytes, encode(notes, seq)]);
        done.map_err(|error| self.trouble(error))?;
        Ok(bytes.len() as u64)
    }

    /// The boot in which the sessions live; `None` in a new file.
    pub(super) fn boot(&self) -> Result<Option<String>, Trouble> {
        let query = "SELECT value FROM meta WHERE name = 'boot'";
        self.connection.query_row(query, [], |row| row.get(0)).optional().map_err(|error| self.trouble(error))
    }

    pub(super) fn set_boot(&self, boot: u64) -> Result<(), Trouble> {
        let put = "INSERT OR REPLACE INTO meta (name, value) VALUES ('boot', ?1)";
        self.connection.execute(put, [boot_name(boot)]).map(drop).map_err(|error| self.trouble(error))
    }

    /// What binds the files beside the database to it.
    fn id(&self) -> Result<BindingId, Trouble> {
        let query = "SELECT unhex(value) FROM meta WHERE name = 'binding'";
        let found: Option<BindingId> =
            self.connection.query_row(query, [], |row| row.get(0)).optional().map_err(|error| self.trouble(error))?;
        found.ok_or_else(|| Trouble::damaged(self.file(), "it has no binding"))
    }

    /// Makes another binding, unless there is a good one. What other names of the database have beside them does not
    /// belong to it any more.
    pub(super) fn renew_binding(&self) -> Result<(), Trouble> {
        if self.is_bound.get() {
            return Ok(());
        }
        let put = "INSERT OR REPLACE INTO meta (name, value) VALUES ('binding', hex(randomblob(16)))";
        self.connection.execute(put, []).map(drop).map_err(|error| self.trouble(error))
    }

    pub(super) fn is_bound(&self) -> bool {
        self.is_bound.get()
    }

    pub(super) fn file(&self) -> &Path {
        &self.place.file
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn trouble(&self, error: rusqlite::Error) -> Trouble {
        Trouble::sqlite(self.file(), error)
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8], seq: u64, what: &str) -> Result<T, Trouble> {
        let damaged = |why: &str| Trouble::damaged(self.file(), format!("{what} {seq} {why}"));
        let Some((sum, body)) = bytes.split_first_chunk::<4>() else { return Err(damaged("is cut off")) };
        if u32::from_le_bytes(*sum) != checksum(body, seq) {
            return Err(damaged("does not match its checksum"));
        }
        postcard::from_bytes(body).map_err(|error| damaged(&format!("cannot be read: {error}")))
    }
}

/// How much there is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    pub(super) snapshot_at: u64,
    pub(super) snapshot: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Appended {
    pub(super) size: u64,
    pub(super) sum: u32,
}

/// Looks at a database that has no lock file beside it, before one is made: nothing is put beside the database of
/// another program, or beside one that is in use elsewhere. Returns `None` if there is no database.
pub(super) fn examine(place: &Place) -> Result<Option<Access>, Trouble> {
    let Ok(found) = fs::symlink_metadata(&place.file) else { return Ok(None) };
    let presence = Presence::join(&place.file)?;
    refuse_if_used(place, users(place, &presence))?;
    judge(&connect(&place.file)?, &place.file)?;
    Ok(Some(Access::of_file(&found)))
}

fn connect(file: &Path) -> Result<Connection, Trouble> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags).map_err(|error| Trouble::sqlite(file, error))?;
    connection.busy_timeout(BUSY).map_err(|error| Trouble::sqlite(file, error))?;
    Ok(connection)
}

/// The other processes that use a database or the files beside it; 0 for one that cannot be named.
fn users(place: &Place, presence: &Presence) -> Vec<u32> {
    let mut users = living(&place.sessions);
    if !presence.is_alone() {
        users.extend(presence.users());
        users.push(0);
    }
    users
}

/// Microseconds since 1970. One backup that is put back twice knows the same highest token both times; the second time
/// is later. The wall clock decides nothing else, and a clock that was set back leaves [`JUMP`].
fn microseconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or_default().min(Token::MAX.get() / 2)
}

fn refuse_if_used(place: &Place, users: Vec<u32>) -> Result<(), Trouble> {
    match users.is_empty() {
        true => Ok(()),
        false => Err(Trouble::in_use(&place.file, users)),
    }
}

/// The number of the file at a path; 0 if there is none.
fn number_of(path: &Path) -> u64 {
    inode_of(path).ok().flatten().map_or(0, |inode| inode.number)
}

pub(super) fn boot_name(boot: u64) -> String {
    format!("{boot:016x}")
}

/// Whose file this is.
fn judge(connection: &Connection, file: &Path) -> Result<Found, Trouble> {
    let number = |query: &str| {
        connection.query_row(query, [], |row| row.get::<_, i64>(0)).map_err(|error| Trouble::sqlite(file, error))
    };
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    match (number("PRAGMA application_id")?, number("PRAGMA user_version")?) {
        (0, 0) if tables == 0 => Ok(Found::Nothing),
        (APPLICATION_ID, found) if found > FORMAT => {
            Err(Trouble::NewerFormat { file: file.to_owned(), found, known: FORMAT })
        }
        (APPLICATION_ID, FORMAT) => Ok(Found::Ours),
        (APPLICATION_ID, found) => Err(Trouble::OlderFormat { file: file.to_owned(), found, known: FORMAT }),
        _ => Err(Trouble::NotOurs(file.to_owned())),
    }
}

/// SQLite does not notice a flipped bit in a page of the database; this does.
fn encode(value: &impl Serialize, seq: u64) -> Vec<u8> {
    let mut bytes = match postcard::to_extend(value, vec![0; 4]) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("writing to memory cannot fail: {error}"),
    };
    let sum = checksum(&bytes[4..], seq);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The checksum that a row begins with.
fn sum_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum))
}

/// Over the row's number too, so that a row in another's place is noticed.
fn checksum(body: &[u8], seq: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seq as u32);
    hasher.update(body);
    hasher.finalize()
}
