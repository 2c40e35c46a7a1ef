//! The log after the last snapshot, in memory, for the consensus library.

use std::collections::VecDeque;

use raft::eraftpb::{self, ConfState, Entry, EntryType, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::storage::{HardState, Record, Recovered};

pub(super) struct Tail {
    entries: VecDeque<Entry>,
    /// The entry before the first one.
    base: (u64, u64),
    hard_state: eraftpb::HardState,
    voters: ConfState,
}

impl Tail {
    pub(super) fn new(recovered: &Recovered, founders: &[u64]) -> Tail {
        let base = recovered.snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
        let voters = recovered.snapshot.as_ref().map_or(founders, |snapshot| &snapshot.voters);
        let HardState { term, vote, commit } = recovered.hard_state;
        let hard_state =
            eraftpb::HardState { term, vote, commit: commit.max(base.0), ..eraftpb::HardState::default() };
        let voters = ConfState { voters: voters.to_vec(), ..ConfState::default() };
        Tail { entries: recovered.records.iter().map(entry).collect(), base, hard_state, voters }
    }

    /// Appends entries. They replace those of the same index and all that follow.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        if let Some(first) = entries.first() {
            self.entries.truncate((first.index - self.base.0 - 1) as usize);
            self.entries.extend(entries.iter().cloned());
        }
    }

    pub(super) fn save_hard_state(&mut self, hard_state: eraftpb::HardState) {
        self.hard_state = hard_state;
    }

    pub(super) fn hard_state(&self) -> HardState {
        HardState { term: self.hard_state.term, vote: self.hard_state.vote, commit: self.hard_state.commit }
    }

    pub(super) fn set_voters(&mut self, voters: ConfState) {
        self.voters = voters;
    }

    pub(super) fn voters(&self) -> &[u64] {
        &self.voters.voters
    }

    /// Returns the entries up to and including this one.
    pub(super) fn up_to(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take_while(move |entry| entry.index <= index)
    }

    /// Drops the entries that a snapshot has.
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

/// Converts an entry to its form on disk.
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
        Ok(RaftState::new(self.hard_state.clone(), self.voters.clone()))
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
