//! The files of a node: its log, a snapshot of its state, and the token watermark.
//!
//! This module does not interpret entries. It reads everything once, when the node starts; afterwards it only writes.

mod backup;
mod dir_lock;
pub mod disk;
mod error;
mod frame;
mod identity;
mod log;
mod membership;
mod small_file;
mod snapshot;
mod watermark;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use backup::Backup;
pub use dir_lock::user_of;
use disk::Disk;
pub use error::{StorageError, TornWrite};
pub use identity::{Identity, Stage};
use log::Log;
pub use membership::{Member, Membership};
pub use snapshot::Snapshot;
pub use watermark::Watermark;

/// The version of the files' format.
pub const FORMAT: u32 = 5;

/// How large a segment of the log is, unless one frame needs more.
const SEGMENT: usize = 16 << 20;

/// Raft's hard state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardState {
    /// The latest term it knows.
    pub term: u64,
    /// The candidate that it has voted for in that term, 0 for none.
    pub vote: u64,
    /// The last entry that it knows to be committed.
    pub commit: u64,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Whether it changes the voters.
    pub is_membership: bool,
    /// Its content.
    pub data: Bytes,
}

/// One durable write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The hard state.
    pub hard_state: HardState,
    /// New entries. One that has the index of an older one replaces it and all that follow it.
    pub records: Vec<Record>,
}

/// The state that was read from disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// The latest hard state.
    pub hard_state: HardState,
    /// The entries after the snapshot.
    pub records: Vec<Record>,
    /// The token watermark.
    pub watermark: Watermark,
}

/// A node's files, open for writing.
pub struct Store<D: Disk> {
    disk: D,
    log: Log<D>,
}

impl<D: Disk> Store<D> {
    /// Reads everything, and opens the log for writing. With `raise_above` the operator guarantees that no higher token
    /// was ever given out, and a truncated log is accepted.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is damaged, or was written by another build, or a log that ends before an entry that
    /// was durable. Nothing is changed then, except that a torn last write is undone.
    pub fn open(disk: D, raise_above: Option<u64>) -> Result<(Store<D>, Recovered), StorageError> {
        Store::open_with(disk, raise_above, SEGMENT)
    }

    /// Opens the store with segments of another size.
    ///
    /// # Errors
    ///
    /// As [`open`](Store::open).
    pub fn open_with(
        disk: D,
        raise_above: Option<u64>,
        segment_size: usize,
    ) -> Result<(Store<D>, Recovered), StorageError> {
        let watermark = read_watermark(&disk)?;
        let (log, mut recovered) = read_log(&disk, segment_size).map_err(|error| error.advise(watermark))?;
        recovered.watermark = match watermark {
            Some(watermark) => watermark,
            // The watermark is written before the first entry.
            None if log.is_new() && recovered.snapshot.is_none() => {
                watermark::FILE.write(&disk, &Watermark::default())?;
                Watermark::default()
            }
            None if raise_above.is_some() => Watermark::default(),
            None => {
                return Err(StorageError::NoWatermark { directory: disk.path(""), undone: log.undone().cloned() });
            }
        };
        // A process that was killed may have renamed files without a flush of the directory.
        disk.sync().map_err(|source| StorageError::io("flush", disk.path(""), source))?;
        let last = recovered.last_index();
        let (index, tokens) = (recovered.watermark.index, recovered.watermark.tokens);
        if last < index && raise_above.is_none_or(|above| above < tokens) {
            let (directory, undone) = (disk.path(""), log.undone().cloned());
            return Err(StorageError::LogCut { directory, last, index, tokens, undone });
        }
        Ok((Store { disk, log }, recovered))
    }

    /// Makes a write durable.
    ///
    /// # Errors
    ///
    /// The content of the disk is unknown then, and the node must stop.
    pub fn append(&mut self, write: &Write) -> Result<(), StorageError> {
        let encoded = postcard::to_allocvec(write).map_err(std::io::Error::other);
        let body = encoded.map_err(|source| StorageError::io("encode", self.disk.path(""), source))?;
        self.log.append(&body, write.records.last().map_or(0, |record| record.index))
    }

    /// Removes the entries that a durable snapshot has.
    ///
    /// # Errors
    ///
    /// The I/O error. It does no harm: the next call removes them.
    pub fn forget(&mut self, up_to: u64) -> Result<(), StorageError> {
        self.log.forget(up_to)
    }
}

fn read_log<D: Disk>(disk: &D, segment_size: usize) -> Result<(Log<D>, Recovered), StorageError> {
    snapshot::remove_unfinished(disk)?;
    let mut recovered = Recovered { snapshot: snapshot::read(disk)?, ..Recovered::default() };
    let log = Log::open(disk.clone(), segment_size, |body| {
        let write: Write = postcard::from_bytes(body).map_err(|error| error.to_string())?;
        let last = write.records.last().map_or(0, |record| record.index);
        recovered.apply(write)?;
        Ok(last)
    })?;
    Ok((log, recovered))
}

/// Removes a file, if it is there.
fn remove<D: Disk>(disk: &D, name: &str) -> std::io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Reads the token watermark; `None` in a directory that has none.
///
/// # Errors
///
/// It cannot be read, or is damaged.
pub fn read_watermark<D: Disk>(disk: &D) -> Result<Option<Watermark>, StorageError> {
    watermark::FILE.read(disk)
}

/// Replaces the token watermark, durably. May be done while the log is being written.
///
/// # Errors
///
/// The I/O error. The node must stop: it cannot tell which watermark the disk has.
pub fn write_watermark<D: Disk>(disk: &D, watermark: Watermark) -> Result<(), StorageError> {
    watermark::FILE.write(disk, &watermark)
}

/// Reads the identity of a directory; `None` if it has none.
///
/// # Errors
///
/// It cannot be read, or is damaged.
pub fn read_identity<D: Disk>(disk: &D) -> Result<Option<Identity>, StorageError> {
    identity::FILE.read(disk)
}

/// Writes the identity of a directory, durably.
///
/// # Errors
///
/// The I/O error.
pub fn write_identity<D: Disk>(disk: &D, identity: &Identity) -> Result<(), StorageError> {
    identity::FILE.write(disk, identity)
}

/// Refuses a log, which a new member would take for its own. A watermark may be there if the member has begun.
///
/// # Errors
///
/// There is one, or the directory cannot be read.
pub(crate) fn check_empty<D: Disk>(disk: &D, has_begun: bool) -> Result<(), StorageError> {
    let names = disk.list().map_err(|source| StorageError::io("list", disk.path(""), source))?;
    let is_of_log = |name: &str| name.starts_with("log-") || name.starts_with("snapshot-");
    if names.iter().any(|name| is_of_log(name) || (name == "watermark" && !has_begun)) {
        return Err(StorageError::NotEmpty { directory: disk.path("") });
    }
    Ok(())
}

/// The file of a node that does not take part in a cluster yet. It has promised nothing, so it may start again without other files.
pub(crate) const FORMING: &str = "forming";

/// Notes, durably, that a node does not take part yet.
pub(crate) fn note_forming<D: Disk>(disk: &D) -> Result<(), StorageError> {
    let failed = |source| StorageError::io("create", disk.path(FORMING), source);
    match disk.create(FORMING) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        created => created.and_then(|_| disk.sync()).map_err(failed),
    }
}

/// Forgets it, once the node has a watermark.
pub(crate) fn note_formed<D: Disk>(disk: &D) -> Result<(), StorageError> {
    match disk.remove(FORMING) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| StorageError::io("remove", disk.path(FORMING), source)),
    }
}

/// Writes a snapshot, durably, and removes older ones. May be done while the log is being written.
///
/// # Errors
///
/// The I/O error. The older snapshot is still there.
pub fn write_snapshot<D: Disk>(disk: &D, snapshot: &Snapshot) -> Result<(), StorageError> {
    snapshot::write(disk, snapshot)
}

/// Makes a snapshot durable that another node has sent, unless there is a newer one. May be done while this node writes one of its own,
/// and not while it writes another one that it has received.
///
/// # Errors
///
/// The I/O error. The older snapshot is still there.
pub fn write_received_snapshot<D: Disk>(disk: &D, snapshot: &Snapshot) -> Result<(), StorageError> {
    snapshot::write_received(disk, snapshot)
}

/// Reads the newest snapshot.
///
/// # Errors
///
/// It cannot be read, or is damaged.
pub fn read_snapshot<D: Disk>(disk: &D) -> Result<Option<Snapshot>, StorageError> {
    snapshot::read(disk)
}

impl Recovered {
    /// Returns the index of the last entry, in the snapshot or after it.
    pub fn last_index(&self) -> u64 {
        self.records.last().map_or(self.base().0, |record| record.index)
    }

    /// The last entry in the snapshot, and its term.
    fn base(&self) -> (u64, u64) {
        self.snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term))
    }

    fn apply(&mut self, write: Write) -> Result<(), String> {
        let (base, base_term) = self.base();
        self.hard_state = write.hard_state;
        for record in write.records {
            if record.index <= base {
                // It has replaced what followed it.
                self.records.clear();
                continue;
            }
            // Terms never fall along a log. An entry after the snapshot with a lower term was never committed, and was in the log
            // when another node's snapshot replaced it. Entries that follow it then may have a higher term.
            let next = self.records.last().map_or(base, |last| last.index) + 1;
            if record.term < base_term || (record.index > next && self.records.is_empty()) {
                continue;
            }
            if record.index > next {
                return Err(format!("entry {} follows entry {}", record.index, next - 1));
            }
            self.records.truncate((record.index - base - 1) as usize);
            self.records.push(record);
        }
        Ok(())
    }
}
