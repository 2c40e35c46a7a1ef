//! The part of the log that is not yet in a snapshot, in memory, as the consensus library reads it.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::storage::{Found, Record, Vow};

pub(super) struct Tail {
    entries: VecDeque<Entry>,
    /// The entry before the first one.
    base: (u64, u64),
    vow: HardState,
    voters: ConfState,
}

impl Tail {
    pub(super) fn new(found: &Found, founders: &[u64]) -> Tail {
        let base = found.snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
        let voters = found.snapshot.as_ref().map_or(founders, |snapshot| &snapshot.voters);
        let Vow { term, vote, commit } = found.vow;
        let vow = HardState { term, vote, commit: commit.max(base.0), ..HardState::default() };
        let voters = ConfState { voters: voters.to_vec(), ..ConfState::default() };
        Tail { entries: found.records.iter().map(entry).collect(), base, vow, voters }
    }

    /// Takes in entries that replace those of the same index and all that follow.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        if let Some(first) = entries.first() {
            self.entries.truncate((first.index - self.base.0 - 1) as usize);
            self.entries.extend(entries.iter().cloned());
        }
    }

    pub(super) fn swear(&mut self, vow: HardState) {
        self.vow = vow;
    }

    pub(super) fn vow(&self) -> Vow {
        Vow { term: self.vow.term, vote: self.vow.vote, commit: self.vow.commit }
    }

    pub(super) fn set_voters(&mut self, voters: ConfState) {
        self.voters = voters;
    }

    pub(super) fn voters(&self) -> &[u64] {
        &self.voters.voters
    }

    /// The entries up to and including this one.
    pub(super) fn up_to(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take_while(move |entry| entry.index <= index)
    }

    /// Forgets what is in a snapshot.
    pub(super) fn forget(&mut self, index: u64) {
        while self.entries.front().is_some_and(|entry| entry.index <= index) {
            if let Some(entry) = self.entries.pop_front() {
                self.base = (entry.index, entry.term);
            }
        }
    }

    fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }
}

fn entry(record: &Record) -> Entry {
    Entry {
        entry_type: if record.is_membership { EntryType::EntryConfChange } else { EntryType::EntryNormal },
        index: record.index,
        term: record.term,
        data: record.data.clone(),
        ..Entry::default()
    }
}

/// An entry as it is kept on disk.
pub(super) fn record(entry: &Entry) -> Record {
    Record {
        index: entry.index,
        term: entry.term,
        is_membership: entry.entry_type != EntryType::EntryNormal,
        data: entry.data.clone(),
    }
}

impl Storage for Tail {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.vow.clone(), self.voters.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let (from, to) = ((low - self.base.0 - 1) as usize, (high - self.base.0 - 1) as usize);
        let mut left = max_size.into().unwrap_or(u64::MAX);
        let mut entries: Vec<Entry> = Vec::new();
        for entry in self.entries.range(from..to) {
            let size = entry.data.len() as u64;
            if size > left && !entries.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.base.0 {
            return Ok(self.base.1);
        }
        if index < self.base.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let entry = self.entries.get((index - self.base.0 - 1) as usize);
        entry.map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _: u64, _: u64) -> Result<Snapshot> {
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
