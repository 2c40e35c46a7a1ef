//! Makes a new snapshot from the old one and the entries since, without the live machine.

use bytes::Bytes;
use palisade_core::{Limits, Machine, RestoreError};
use thiserror::Error;

use super::{Replica, batch};
use crate::storage::disk::Disk;
use crate::storage::{Snapshot, StorageError, read_snapshot, write_snapshot};

/// The entries of the next snapshot.
#[derive(Debug)]
pub struct Compaction {
    entries: Vec<Bytes>,
    index: u64,
    term: u64,
    voters: Vec<u64>,
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
}

impl Compaction {
    /// Makes the snapshot durable and returns the index of its last entry. Blocks: call it on a separate thread.
    ///
    /// # Errors
    ///
    /// The old snapshot is still there.
    pub fn carry_out<D: Disk>(self, disk: &D) -> Result<u64, CompactionError> {
        let mut machine = match read_snapshot(disk)? {
            Some(snapshot) => Machine::restore(&snapshot.machine)?,
            None => Machine::new(Limits::default()),
        };
        for entry in &self.entries {
            for command in batch::decode(entry) {
                machine.apply(command);
            }
        }
        let Compaction { index, term, voters, .. } = self;
        write_snapshot(disk, &Snapshot { index, term, voters, machine: machine.snapshot() })?;
        Ok(index)
    }
}

impl<C, R> Replica<C, R> {
    /// Returns the entries of the next snapshot, once they are larger than this many bytes.
    pub fn compaction(&mut self, larger_than: usize) -> Option<Compaction> {
        if self.is_compacting || self.bytes_since_snapshot <= larger_than || self.applied == 0 {
            return None;
        }
        let index = self.applied;
        let store = self.node.store();
        let term = raft::Storage::term(store, index).ok()?;
        let is_normal = |entry: &&raft::eraftpb::Entry| entry.entry_type == raft::eraftpb::EntryType::EntryNormal;
        let entries = store.up_to(index).filter(is_normal).map(|entry| entry.data.clone()).collect();
        let voters = store.voters().to_vec();
        self.is_compacting = true;
        self.bytes_since_snapshot = 0;
        Some(Compaction { entries, index, term, voters })
    }

    /// Reports the end of a compaction: with a durable snapshot up to this entry, or without one.
    pub fn compacted(&mut self, index: Option<u64>) {
        self.is_compacting = false;
        if let Some(index) = index {
            self.node.mut_store().forget(index);
        }
    }
}
