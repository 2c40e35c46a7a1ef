//! One voter of the replicated log, and the lock machine that it feeds. It has no thread, socket, file or clock: inputs go
//! in, outputs come out.
//!
//! ```text
//! propose, read, tick, persisted ──> Replica ──> Outputs { persist, applied, reads }
//! ```
//!
//! This is the only module that knows the consensus library.

mod batch;
mod compaction;
mod tail;

use std::collections::VecDeque;

use palisade_core::{Applied, Command, Limits, Machine, RestoreError};
use raft::eraftpb::{ConfChange, Entry, EntryType};
use raft::{Config, RawNode, StateRole, Storage};
use thiserror::Error;

pub use compaction::{Compaction, CompactionError};

use crate::storage::{Recovered, Write};
use tail::Tail;

/// A command and its origin.
#[derive(Debug, PartialEq, Eq)]
pub struct Proposal<C> {
    /// The command.
    pub command: Command,
    /// Identifies the proposer's request. Returned with the answer.
    pub origin: C,
}

/// A command that was committed and applied.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<C> {
    /// The origin; `None` if another voter proposed the command, or if it was proposed before a restart.
    pub origin: Option<C>,
    /// The answer and the events.
    pub applied: Applied,
}

/// The work that the host must do now.
#[derive(Debug)]
pub struct Outputs<C, R> {
    /// Writes to make durable, in order. The host then calls [`Replica::persisted`] with the number.
    pub persist: Vec<(u64, Write)>,
    /// Applied commands, in order.
    pub applied: Vec<Done<C>>,
    /// Reads that may be answered now: they see everything that was acknowledged before they arrived.
    pub reads: Vec<R>,
    /// Whether this voter has just become the leader that may time sessions.
    pub became_leader: bool,
}

impl<C, R> Outputs<C, R> {
    fn new() -> Outputs<C, R> {
        Outputs { persist: Vec::new(), applied: Vec::new(), reads: Vec::new(), became_leader: false }
    }
}

/// Why a replica cannot start.
#[derive(Debug, Error)]
pub enum ReplicaError {
    /// The machine in the snapshot cannot be read.
    #[error("the snapshot cannot be used: {0}")]
    Snapshot(#[from] RestoreError),
    /// The consensus library refuses the log.
    #[error("the log cannot be used: {0}")]
    Log(String),
}

/// The approximate size of an entry without its data, in bytes.
const OVERHEAD: usize = 64;

/// One voter.
pub struct Replica<C, R> {
    node: RawNode<Tail>,
    machine: Machine,
    applied: u64,
    /// Proposals of this voter that are not yet committed, in the order of their entries.
    proposed: VecDeque<Proposed<C>>,
    /// Reads that wait until the leader has confirmed its leadership.
    pending_reads: Vec<R>,
    /// Reads that wait for an entry to be applied.
    confirmed_reads: VecDeque<(u64, Vec<R>)>,
    /// Reads that the consensus library is confirming, by number.
    confirming: VecDeque<(u64, Vec<R>)>,
    last_read: u64,
    is_leader: bool,
    /// Bytes of entries since the last snapshot was begun.
    bytes_since_snapshot: usize,
    is_compacting: bool,
}

struct Proposed<C> {
    index: u64,
    term: u64,
    commands: Vec<Proposal<C>>,
}

impl<C, R> Replica<C, R> {
    /// Continues from the state on disk. `id` is this voter; `founders` are the voters of a new cluster.
    ///
    /// # Errors
    ///
    /// The snapshot or the log cannot be used.
    pub fn new(id: u64, founders: &[u64], key: u64, recovered: &Recovered) -> Result<Replica<C, R>, ReplicaError> {
        let machine = match &recovered.snapshot {
            Some(snapshot) => Machine::restore(&snapshot.machine)?,
            // Other limits come with a command, at the same point of every voter's log.
            None => Machine::new(Limits::default()),
        };
        let applied = recovered.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        let config = Config {
            id,
            applied,
            election_tick: 10,
            heartbeat_tick: 2,
            check_quorum: true,
            pre_vote: true,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, Tail::new(recovered, founders), &logger);
        let node = node.map_err(|error| ReplicaError::Log(error.to_string()))?;
        Ok(Replica {
            node,
            machine: machine.with_hash_key(key),
            applied,
            proposed: VecDeque::new(),
            pending_reads: Vec::new(),
            confirmed_reads: VecDeque::new(),
            confirming: VecDeque::new(),
            last_read: 0,
            is_leader: false,
            bytes_since_snapshot: 0,
            is_compacting: false,
        })
    }

    /// Returns the state as of the last applied entry.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns whether this voter leads and has applied everything that earlier leaders committed.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Campaigns at once, if this is the only voter.
    pub fn campaign(&mut self) {
        if self.node.store().voters() == [self.node.raft.id] {
            // Only a node without a vote is refused.
            drop(self.node.campaign());
        }
    }

    /// Advances the logical clock: 10 ticks are the shortest election timeout.
    pub fn tick(&mut self) {
        self.node.tick();
    }

    /// Proposes commands, as one entry.
    ///
    /// # Errors
    ///
    /// This voter does not lead. The commands are returned, and nothing has happened.
    pub fn propose(&mut self, commands: Vec<Proposal<C>>) -> Result<(), Vec<Proposal<C>>> {
        if commands.is_empty() {
            return Ok(());
        }
        let data = batch::encode(commands.iter().map(|proposal| &proposal.command));
        match self.node.propose(Vec::new(), data) {
            Ok(()) => {
                let (index, term) = (self.node.raft.raft_log.last_index(), self.node.raft.term);
                self.proposed.push_back(Proposed { index, term, commands });
                Ok(())
            }
            Err(_) => Err(commands),
        }
    }

    /// Queues a linearizable read.
    pub fn read(&mut self, reader: R) {
        self.pending_reads.push(reader);
    }

    /// Reports that the write of this number, and all before it, are durable.
    pub fn persisted(&mut self, number: u64) {
        self.node.on_persist_ready(number);
    }

    /// Returns the work that the host must do now. The host calls it after every input.
    pub fn outputs(&mut self) -> Outputs<C, R> {
        let mut outputs = Outputs::new();
        loop {
            outputs.became_leader |= self.note_leadership();
            self.confirm_reads();
            if !self.node.has_ready() {
                break;
            }
            self.process(&mut outputs);
        }
        while self.confirmed_reads.front().is_some_and(|(index, _)| *index <= self.applied) {
            if let Some((_, readers)) = self.confirmed_reads.pop_front() {
                outputs.reads.extend(readers);
            }
        }
        outputs
    }

    fn process(&mut self, outputs: &mut Outputs<C, R>) {
        let mut ready = self.node.ready();
        for state in ready.take_read_states() {
            self.confirmed(&state.request_ctx, state.index);
        }
        let committed = ready.take_committed_entries();
        if let Some(hard_state) = ready.hs() {
            self.node.mut_store().save_hard_state(hard_state.clone());
        }
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        // A new commit index alone waits for the next write: a restarted voter learns it from the leader again.
        if ready.must_sync() {
            let records: Vec<_> = entries.iter().map(tail::record).collect();
            self.bytes_since_snapshot += records.iter().map(|record| record.data.len() + OVERHEAD).sum::<usize>();
            let write = Write { hard_state: self.node.store().hard_state(), records };
            outputs.persist.push((ready.number(), write));
        }
        self.node.advance_append_async(ready);
        self.apply(committed, outputs);
    }

    fn apply(&mut self, committed: Vec<Entry>, outputs: &mut Outputs<C, R>) {
        for entry in committed {
            let (index, term) = (entry.index, entry.term);
            if entry.entry_type != EntryType::EntryNormal {
                self.apply_membership(&entry);
            } else if self.proposed.front().is_some_and(|first| first.index == index && first.term == term) {
                let Some(Proposed { commands, .. }) = self.proposed.pop_front() else { continue };
                for Proposal { command, origin } in commands {
                    let applied = self.machine.apply(command);
                    outputs.applied.push(Done { origin: Some(origin), applied });
                }
            } else {
                for command in batch::decode(&entry.data) {
                    outputs.applied.push(Done { origin: None, applied: self.machine.apply(command) });
                }
            }
            self.applied = index;
        }
        self.node.advance_apply_to(self.applied);
    }

    fn apply_membership(&mut self, entry: &Entry) {
        let mut change = ConfChange::default();
        if protobuf::Message::merge_from_bytes(&mut change, &entry.data).is_ok()
            && let Ok(voters) = self.node.apply_conf_change(&change)
        {
            self.node.mut_store().set_voters(voters);
        }
    }

    /// Returns whether this voter has just become the leader: it is elected, and has applied an entry of its term.
    fn note_leadership(&mut self) -> bool {
        let leads = self.node.raft.state == StateRole::Leader;
        let is_leader = leads && self.node.store().term(self.applied).is_ok_and(|term| term == self.node.raft.term);
        let became_leader = is_leader && !self.is_leader;
        self.is_leader = is_leader;
        became_leader
    }

    fn confirm_reads(&mut self) {
        if self.is_leader && !self.pending_reads.is_empty() {
            self.last_read += 1;
            self.confirming.push_back((self.last_read, std::mem::take(&mut self.pending_reads)));
            self.node.read_index(self.last_read.to_le_bytes().to_vec());
        }
    }

    fn confirmed(&mut self, context: &[u8], index: u64) {
        let Ok(number) = context.try_into().map(u64::from_le_bytes) else { return };
        while self.confirming.front().is_some_and(|(first, _)| *first <= number) {
            if let Some((_, readers)) = self.confirming.pop_front() {
                self.confirmed_reads.push_back((index, readers));
            }
        }
    }
}

#[cfg(test)]
mod tests;
