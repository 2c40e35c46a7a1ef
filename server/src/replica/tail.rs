//! The log after the last snapshot, in memory, for the consensus library.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use raft::eraftpb::{self, ConfState, Entry, EntryType, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::storage::{HardState, Member, Membership, Record, Recovered};

pub(super) struct Tail {
    entries: VecDeque<Entry>,
    /// The entry before the first one.
    base: (u64, u64),
    /// The members as of that entry.
    base_membership: Membership,
    /// The members as of the last applied entry.
    membership: Membership,
    hard_state: eraftpb::HardState,
    /// Whether a member needs a newer snapshot than the one on disk.
    needs_newer: Cell<bool>,
}

impl Tail {
    pub(super) fn new(recovered: &Recovered, founders: &Membership) -> Tail {
        let base = recovered.snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
        let membership = recovered.snapshot.as_ref().map_or(founders, |snapshot| &snapshot.membership).clone();
        let HardState { term, vote, commit } = recovered.hard_state;
        let hard_state =
            eraftpb::HardState { term, vote, commit: commit.max(base.0), ..eraftpb::HardState::default() };
        let entries = recovered.records.iter().map(entry).collect();
        Tail {
            entries,
            base,
            base_membership: membership.clone(),
            membership,
            hard_state,
            needs_newer: Cell::new(false),
        }
    }

    /// Restarts the log after an entry that another member's snapshot has.
    pub(super) fn restart(&mut self, index: u64, term: u64, membership: Membership) {
        self.entries.clear();
        self.base = (index, term);
        (self.base_membership, self.membership) = (membership.clone(), membership);
        self.hard_state.commit = self.hard_state.commit.max(index);
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

    /// Changes the members to those of the consensus library, with the names of new ones.
    pub(super) fn set_members(&mut self, state: &ConfState, added: BTreeMap<u64, Member>) {
        let Membership { mut members, mut removed, .. } = std::mem::take(&mut self.membership);
        members.extend(added);
        let lists = [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
        let is_member = |id: &u64| lists.iter().any(|list| list.contains(id));
        removed.extend(members.keys().filter(|id| !is_member(id)));
        members.retain(|id, _| is_member(id));
        // The library keeps them in the order of a hash table.
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        self.membership = Membership {
            voters: sorted(&state.voters),
            learners: sorted(&state.learners),
            outgoing: sorted(&state.voters_outgoing),
            next_learners: sorted(&state.learners_next),
            members,
            removed,
        };
    }

    pub(super) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the entries up to and including this one.
    pub(super) fn up_to(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take_while(move |entry| entry.index <= index)
    }

    /// Drops the entries that a snapshot has, with the members as of its last entry.
    pub(super) fn forget(&mut self, index: u64, membership: Membership) {
        if index <= self.base.0 {
            return;
        }
        self.base_membership = membership;
        self.needs_newer.set(false);
        while self.entries.front().is_some_and(|entry| entry.index <= index) {
            if let Some(entry) = self.entries.pop_front() {
                self.base = (entry.index, entry.term);
            }
        }
    }

    /// Returns whether a member needs a newer snapshot.
    pub(super) fn needs_newer_snapshot(&self) -> bool {
        self.needs_newer.get()
    }

    /// Returns the last entry of the snapshot.
    pub(super) fn base_index(&self) -> u64 {
        self.base.0
    }

    fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }
}

/// Converts the members to the form of the consensus library.
pub(super) fn conf_state(membership: &Membership) -> ConfState {
    ConfState {
        voters: membership.voters.clone(),
        learners: membership.learners.clone(),
        voters_outgoing: membership.outgoing.clone(),
        learners_next: membership.next_learners.clone(),
        auto_leave: membership.is_joint(),
        ..ConfState::default()
    }
}

fn entry(record: &Record) -> Entry {
    Entry {
        entry_type: if record.is_membership { EntryType::EntryConfChangeV2 } else { EntryType::EntryNormal },
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
        Ok(RaftState::new(self.hard_state.clone(), conf_state(&self.membership)))
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

    /// Describes the snapshot on disk. The host sends its contents.
    fn snapshot(&self, at_least: u64, to: u64) -> Result<Snapshot> {
        // A new member is not in an older snapshot, and the library refuses one without the member that receives it.
        if self.base.0 == 0 || self.base.0 < at_least || !self.base_membership.contains(to) {
            self.needs_newer.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = self.base;
        metadata.set_conf_state(conf_state(&self.base_membership));
        Ok(snapshot)
    }
}
