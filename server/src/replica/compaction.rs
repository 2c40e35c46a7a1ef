//! A new snapshot out of the old one and the entries since, made without the machine that is in use.

use bytes::Bytes;
use palisade_core::{Limits, Machine, RestoreError};
use thiserror::Error;

use super::{Replica, batch};
use crate::storage::disk::Disk;
use crate::storage::{Snapshot, StorageError, read_snapshot, write_snapshot};

/// Entries that are to become part of a snapshot.
#[derive(Debug)]
pub struct Compaction {
    entries: Vec<Bytes>,
    index: u64,
    term: u64,
    voters: Vec<u64>,
}

/// Why there is no new snapshot.
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
    /// Makes the snapshot, durably. Takes as long as it takes, on a thread of its own. Returns the last entry in it.
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
    /// The entries to put into a snapshot, once they are many.
    pub fn compaction(&mut self, larger_than: usize) -> Option<Compaction> {
        if self.is_compacting || self.grown <= larger_than || self.applied == 0 {
            return None;
        }
        let index = self.applied;
        let store = self.node.store();
        let term = raft::Storage::term(store, index).ok()?;
        let is_normal = |entry: &&raft::eraftpb::Entry| entry.entry_type == raft::eraftpb::EntryType::EntryNormal;
        let entries = store.up_to(index).filter(is_normal).map(|entry| entry.data.clone()).collect();
        let voters = store.voters().to_vec();
        self.is_compacting = true;
        self.grown = 0;
        Some(Compaction { entries, index, term, voters })
    }

    /// A compaction has ended: with a durable snapshot up to this entry, or without.
    pub fn compacted(&mut self, index: Option<u64>) {
        self.is_compacting = false;
        if let Some(index) = index {
            self.node.mut_store().forget(index);
        }
    }
}
