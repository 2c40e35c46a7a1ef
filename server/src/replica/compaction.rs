//! Makes a new snapshot from the old one and the entries since, without the live machine.

use bytes::Bytes;
use palisade_core::{Limits, Machine, RestoreError};
use thiserror::Error;

use super::{Replica, batch};
use crate::storage::disk::Disk;
use crate::storage::{Membership, Snapshot, StorageError, read_snapshot, write_snapshot};

/// The entries of the next snapshot.
#[derive(Debug)]
pub struct Compaction {
    entries: Vec<(u64, Bytes)>,
    index: u64,
    term: u64,
    membership: Membership,
}

/// A snapshot that is durable.
#[derive(Debug)]
pub struct Compacted {
    /// Its last entry.
    pub index: u64,
    membership: Membership,
}

/// Why a compaction failed.
#[derive(Debug, Error)]
pub enum CompactionError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The old snapshot cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Another member's snapshot has replaced the old one.
    #[error("a snapshot of another member came first")]
    Replaced,
}

impl Compaction {
    /// Makes the snapshot durable. Blocks: call it on a separate thread.
    ///
    /// # Errors
    ///
    /// The old snapshot is still there.
    pub fn carry_out<D: Disk>(self, disk: &D) -> Result<Compacted, CompactionError> {
        // Another member may have sent a newer snapshot meanwhile.
        let (base, mut machine) = match read_snapshot(disk)? {
            Some(snapshot) if snapshot.index >= self.index => return Err(CompactionError::Replaced),
            Some(snapshot) => (snapshot.index, Machine::restore(&snapshot.machine)?),
            None => (0, Machine::new(Limits::default())),
        };
        for (_, entry) in self.entries.iter().filter(|(index, _)| *index > base) {
            for command in batch::decode(entry) {
                machine.apply(command);
            }
        }
        let Compaction { index, term, membership, .. } = self;
        write_snapshot(disk, &Snapshot { index, term, membership: membership.clone(), machine: machine.snapshot() })?;
        Ok(Compacted { index, membership })
    }
}

impl<C, R> Replica<C, R> {
    /// Returns the entries of the next snapshot, once they are larger than this many bytes, or another member needs it.
    pub fn compaction(&mut self, larger_than: usize) -> Option<Compaction> {
        let larger_than = if self.node.store().needs_newer_snapshot() { 0 } else { larger_than };
        let is_small = self.applied_bytes <= larger_than.max(self.failed_bytes);
        if self.compacting_bytes.is_some() || is_small {
            return None;
        }
        let index = self.applied;
        let store = self.node.store();
        let term = raft::Storage::term(store, index).ok()?;
        let is_normal = |entry: &&raft::eraftpb::Entry| entry.entry_type == raft::eraftpb::EntryType::EntryNormal;
        let entries = store.up_to(index).filter(is_normal).map(|entry| (entry.index, entry.data.clone()));
        let (entries, membership) = (entries.collect(), store.membership().clone());
        self.compacting_bytes = Some(std::mem::take(&mut self.applied_bytes));
        self.failed_bytes = 0;
        Some(Compaction { entries, index, term, membership })
    }

    /// Returns the last entry of the newest snapshot on disk, or 0 without a snapshot.
    pub fn snapshot_index(&self) -> u64 {
        self.node.store().base_index()
    }

    /// Reports the end of a compaction: with a durable snapshot, or without one.
    pub fn compacted(&mut self, compacted: Option<Compacted>) {
        let bytes = self.compacting_bytes.take().unwrap_or(0);
        match compacted {
            Some(Compacted { index, membership }) => self.node.mut_store().forget(index, membership),
            None => {
                self.applied_bytes += bytes;
                self.failed_bytes = self.applied_bytes;
            }
        }
    }
}
