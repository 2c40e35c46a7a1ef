//! The log: batches of commands and a snapshot, in one SQLite file.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_core::{Command, Limits, Machine, RequestNo, RestoreError, SNAPSHOT_VERSION, Token};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::Trouble;

/// "PLSD": tells our files from those of other programs.
const APPLICATION_ID: i64 = 0x504c_5344;

/// Raised when older builds would misread the file, or would apply its commands by other rules.
const FORMAT: i64 = 1;

/// Our own writers wait for each other elsewhere; this is for programs that are not ours.
const BUSY: Duration = Duration::from_secs(1);

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
    file: PathBuf,
    /// Device and inode, which change when the file is replaced.
    inode: (u64, u64),
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
    /// Opens a file that exists, or returns `None`. Touches nothing of a file that is not ours.
    pub(super) fn open_existing(file: &Path) -> Result<Option<Log>, Trouble> {
        if !file.exists() {
            return Ok(None);
        }
        Log::open(file, OpenFlags::SQLITE_OPEN_READ_WRITE).map(Some)
    }

    /// Opens a file, or makes it.
    pub(super) fn create(file: &Path) -> Result<Log, Trouble> {
        Log::open(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)
    }

    fn open(file: &Path, flags: OpenFlags) -> Result<Log, Trouble> {
        let sqlite = |error| Trouble::sqlite(file, error);
        let connection = Connection::open_with_flags(file, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(|error| why_not_opened(file).unwrap_or_else(|| sqlite(error)))?;
        connection.busy_timeout(BUSY).map_err(sqlite)?;
        judge(&connection, file)?;
        if connection.is_readonly("main").map_err(sqlite)? {
            return Err(Trouble::ReadOnly(file.to_owned()));
        }
        let found = fs::metadata(file).map_err(|error| Trouble::io("look at", file, error))?;
        Ok(Log {
            connection,
            file: file.to_owned(),
            inode: (found.dev(), found.ino()),
            lasting: Cell::new(Lasting::Later),
            #[cfg(test)]
            fault: Cell::new(None),
        })
    }

    /// Sets the file up for use, and fills it if it is new, which is returned. The caller has the log's lock.
    pub(super) fn set_up(&self) -> Result<bool, Trouble> {
        let sqlite = |error| self.trouble(error);
        self.set_lasting(Lasting::AtOnce)?;
        let mode = self.connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        if mode.map_err(sqlite)? != "wal" {
            return Err(Trouble::NoSharedMemory(self.file.clone()));
        }
        let writing = self.begin(Lasting::AtOnce)?;
        let is_new = matches!(judge(&self.connection, &self.file)?, Found::Nothing);
        if is_new {
            let machine = Machine::new(Limits::default());
            self.connection.execute_batch(include_str!("schema.sql")).map_err(sqlite)?;
            self.connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(sqlite)?;
            self.connection.pragma_update(None, "user_version", FORMAT).map_err(sqlite)?;
            self.put_snapshot(0, &machine, &Notes::default())?;
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
        match fs::metadata(&self.file) {
            Ok(found) if (found.dev(), found.ino()) == self.inode => {}
            _ => return Err(Trouble::Replaced(self.file.clone())),
        }
        Transaction::begin(&self.connection, "BEGIN IMMEDIATE").map_err(|error| self.trouble(error))
    }

    /// Begins to read: until the transaction ends, everything is seen as of one moment.
    pub(super) fn read(&self) -> Result<Transaction<'_>, Trouble> {
        Transaction::begin(&self.connection, "BEGIN").map_err(|error| self.trouble(error))
    }

    pub(super) fn commit(&self, writing: Transaction<'_>) -> Result<(), Trouble> {
        #[cfg(test)]
        match self.fault.take() {
            Some(Fault::BeforeCommit) => return Err(Trouble::Full(self.file.clone())),
            Some(Fault::AfterCommit) => {
                writing.commit().map_err(|error| self.trouble(error))?;
                return Err(Trouble::Sqlite {
                    file: self.file.clone(),
                    source: rusqlite::Error::InvalidQuery.into(),
                });
            }
            None => {}
        }
        writing.commit().map_err(|error| self.trouble(error))
    }

    /// The batches behind this one, in order.
    pub(super) fn rows_after(&self, seq: u64) -> Result<Vec<Row>, Trouble> {
        let sqlite = |error| self.trouble(error);
        let mut query = self
            .connection
            .prepare_cached("SELECT seq, batch FROM log WHERE seq > ?1 ORDER BY seq")
            .map_err(sqlite)?;
        let mut found = query.query([seq as i64]).map_err(sqlite)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().map_err(sqlite)? {
            let seq = row.get::<_, i64>(0).map_err(sqlite)? as u64;
            let bytes = row.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(sqlite)?;
            let batch = self.decode(bytes, seq, "batch")?;
            rows.push(Row { seq, size: bytes.len() as u64, batch });
        }
        Ok(rows)
    }

    /// Whether this very batch is in the log.
    pub(super) fn contains(&self, seq: u64, batch: &Batch) -> Result<bool, Trouble> {
        let rows = self.rows_after(seq - 1)?;
        Ok(rows.first().is_some_and(|row| row.seq == seq && row.batch == *batch))
    }

    /// Adds a batch, but only behind the one that it was made for.
    pub(super) fn append(&self, seq: u64, batch: &Batch) -> Result<u64, Trouble> {
        const APPEND: &str = "INSERT INTO log (seq, batch) SELECT ?1, ?2 \
            WHERE ?1 = 1 + coalesce((SELECT max(seq) FROM log), (SELECT seq FROM snapshot))";
        let bytes = encode(batch, seq);
        let insert = self.connection.prepare_cached(APPEND);
        let added = insert.and_then(|mut insert| insert.execute(params![seq as i64, bytes]));
        match added.map_err(|error| self.trouble(error))? {
            1 => Ok(bytes.len() as u64),
            _ => Err(Trouble::Replaced(self.file.clone())),
        }
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, Trouble> {
        let query = "SELECT seq, machine, notes FROM snapshot WHERE id = 1";
        let row = self.connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let found: Option<(i64, Vec<u8>, Vec<u8>)> = row.optional().map_err(|error| self.trouble(error))?;
        let Some((seq, machine, notes)) = found else {
            return Err(Trouble::damaged(&self.file, "it has no snapshot"));
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
                Trouble::NewerFormat { file: self.file.clone(), found, known }
            }
            error => Trouble::damaged(&self.file, format!("snapshot {seq}: {error}")),
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

    pub(super) fn set_boot(&self, boot: &str) -> Result<(), Trouble> {
        let put = "INSERT OR REPLACE INTO meta (name, value) VALUES ('boot', ?1)";
        self.connection.execute(put, [boot]).map(drop).map_err(|error| self.trouble(error))
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn trouble(&self, error: rusqlite::Error) -> Trouble {
        Trouble::sqlite(&self.file, error)
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8], seq: u64, what: &str) -> Result<T, Trouble> {
        let damaged = |why: &str| Trouble::damaged(&self.file, format!("{what} {seq} {why}"));
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

/// SQLite does not say why it cannot open a file. Asked without opening it: closing it again would take away the
/// locks that another connection of this process has on it.
fn why_not_opened(file: &Path) -> Option<Trouble> {
    let at = if file.exists() { file } else { file.parent()? };
    let refused = rustix::fs::access(at, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).err()?;
    Some(Trouble::io("open", at, refused.into()))
}

/// Whose file this is. An older format would be brought up to date here.
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
        (APPLICATION_ID, _) => Ok(Found::Ours),
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

/// Over the row's number too, so that a row in another's place is noticed.
fn checksum(body: &[u8], seq: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seq as u32);
    hasher.update(body);
    hasher.finalize()
}
