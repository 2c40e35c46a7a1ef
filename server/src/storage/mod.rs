//! What a node keeps on disk: its log, a snapshot of its state, and the token watermark.
//!
//! Nothing here knows what an entry means. Everything is read once, when the node starts; afterwards it only writes.

pub mod disk;
mod error;
mod frame;
mod log;
mod snapshot;
mod tenant;
mod watermark;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use disk::Disk;
pub use error::StorageError;
use log::Log;
pub use snapshot::Snapshot;
pub use watermark::Watermark;

/// The version of the files' format.
pub const FORMAT: u32 = 2;

/// How large a segment of the log is, unless one frame needs more.
const SEGMENT: usize = 16 << 20;

/// What a node has promised to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vow {
    /// The latest term it knows.
    pub term: u64,
    /// For whom it has voted in that term, 0 for nobody.
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
    /// Whether it changes who votes.
    pub is_membership: bool,
    /// What it says.
    pub data: Bytes,
}

/// What one durable write holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// What was promised by then.
    pub vow: Vow,
    /// New entries. One that has the index of an older one replaces it and all that follow it.
    pub records: Vec<Record>,
}

/// What was found on disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// The latest promise.
    pub vow: Vow,
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
    /// Reads everything, and opens the log for writing. `raise_above` is the operator's word that no token above it was
    /// ever given out: with it, a log that was cut is accepted as it is.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is damaged, or was written by another build, or a log that ends before an entry that
    /// was durable. Nothing is changed then.
    pub fn open(disk: D, raise_above: Option<u64>) -> Result<(Store<D>, Found), StorageError> {
        Store::open_with(disk, raise_above, SEGMENT)
    }

    /// The same with segments of another size.
    ///
    /// # Errors
    ///
    /// As [`open`](Store::open).
    pub fn open_with(
        disk: D,
        raise_above: Option<u64>,
        segment_size: usize,
    ) -> Result<(Store<D>, Found), StorageError> {
        let watermark = watermark::read(&disk)?;
        let (log, mut found) = read_log(&disk, segment_size).map_err(|error| error.advise(watermark))?;
        found.watermark = match watermark {
            Some(watermark) => watermark,
            // The watermark is written before the first entry.
            None if log.is_new() && found.snapshot.is_none() => {
                watermark::write(&disk, Watermark::default())?;
                Watermark::default()
            }
            None if raise_above.is_some() => Watermark::default(),
            None => return Err(StorageError::NoWatermark { directory: disk.path("") }),
        };
        let last = found.last_index();
        let (index, tokens) = (found.watermark.index, found.watermark.tokens);
        if last < index && raise_above.is_none_or(|above| above < tokens) {
            return Err(StorageError::LogCut { directory: disk.path(""), last, index, tokens });
        }
        Ok((Store { disk, log }, found))
    }

    /// Writes something, durably.
    ///
    /// # Errors
    ///
    /// The node must stop: nobody knows what is on the disk.
    pub fn append(&mut self, write: &Write) -> Result<(), StorageError> {
        let encoded = postcard::to_allocvec(write).map_err(std::io::Error::other);
        let body = encoded.map_err(|source| StorageError::io("encode", self.disk.path(""), source))?;
        self.log.append(&body, write.records.last().map_or(0, |record| record.index))
    }

    /// Removes what a snapshot, which is durable, has made superfluous.
    ///
    /// # Errors
    ///
    /// What the system says. It does no harm: it is removed the next time.
    pub fn forget(&mut self, up_to: u64) -> Result<(), StorageError> {
        self.log.forget(up_to)
    }
}

fn read_log<D: Disk>(disk: &D, segment_size: usize) -> Result<(Log<D>, Found), StorageError> {
    let mut found = Found { snapshot: snapshot::read(disk)?, ..Found::default() };
    let base = found.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
    let log = Log::open(disk.clone(), segment_size, |body| {
        let write: Write = postcard::from_bytes(body).map_err(|error| error.to_string())?;
        let last = write.records.last().map_or(0, |record| record.index);
        found.take_in(write, base)?;
        Ok(last)
    })?;
    Ok((log, found))
}

/// Removes a file, if it is there.
fn remove<D: Disk>(disk: &D, name: &str) -> std::io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Replaces the token watermark, durably. May be done while the log is being written.
///
/// # Errors
///
/// What the system says. The node must stop: it cannot tell which watermark the disk has.
pub fn write_watermark<D: Disk>(disk: &D, watermark: Watermark) -> Result<(), StorageError> {
    watermark::write(disk, watermark)
}

/// Writes a snapshot, durably, and removes older ones. May be done while the log is being written.
///
/// # Errors
///
/// What the system says. The older snapshot is still there.
pub fn write_snapshot<D: Disk>(disk: &D, snapshot: &Snapshot) -> Result<(), StorageError> {
    snapshot::write(disk, snapshot)
}

/// The newest snapshot.
///
/// # Errors
///
/// It cannot be read, or is damaged.
pub fn read_snapshot<D: Disk>(disk: &D) -> Result<Option<Snapshot>, StorageError> {
    snapshot::read(disk)
}

impl Found {
    /// The last entry, in the snapshot or after it.
    pub fn last_index(&self) -> u64 {
        let base = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        self.records.last().map_or(base, |record| record.index)
    }

    fn take_in(&mut self, write: Write, base: u64) -> Result<(), String> {
        self.vow = write.vow;
        for record in write.records {
            if record.index <= base {
                continue;
            }
            let next = self.records.last().map_or(base, |last| last.index) + 1;
            if record.index > next {
                return Err(format!("entry {} follows entry {}", record.index, next - 1));
            }
            self.records.truncate((record.index - base - 1) as usize);
            self.records.push(record);
        }
        Ok(())
    }
}
