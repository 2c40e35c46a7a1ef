//! One voter of the replicated log, and the rules that it feeds. No thread, no socket, no file, no clock: it is told
//! what happened, and says what to do.
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

use crate::storage::{Found, Write};
use tail::Tail;

/// A command, and whom its answer is for.
#[derive(Debug, PartialEq, Eq)]
pub struct Proposal<C> {
    /// What to do.
    pub command: Command,
    /// Given back with the answer.
    pub caller: C,
}

/// A command that was committed and carried out.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<C> {
    /// Whom the answer is for; `None` when it was proposed elsewhere, or before a restart.
    pub caller: Option<C>,
    /// The answer, and what happened.
    pub applied: Applied,
}

/// What is to be done now.
#[derive(Debug)]
pub struct Outputs<C, R> {
    /// To be made durable, in order; then [`Replica::persisted`] is to be called with the number.
    pub persist: Vec<(u64, Write)>,
    /// What was carried out, in order.
    pub applied: Vec<Done<C>>,
    /// Reads that may be answered now: they see everything that was acknowledged before they were asked for.
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
    /// The log makes no sense to the consensus library.
    #[error("the log cannot be used: {0}")]
    Log(String),
}

/// What an entry costs beside its data, about.
const OVERHEAD: usize = 64;

/// One voter.
pub struct Replica<C, R> {
    node: RawNode<Tail>,
    machine: Machine,
    applied: u64,
    /// What was proposed here and is not yet committed, in the order of its entries.
    proposed: VecDeque<Proposed<C>>,
    /// Reads that wait for the leader to be sure that it leads.
    asked: Vec<R>,
    /// Reads that wait for an entry to be applied.
    reads: VecDeque<(u64, Vec<R>)>,
    /// Reads under way at the consensus library, by number.
    confirming: VecDeque<(u64, Vec<R>)>,
    last_read: u64,
    is_leader: bool,
    /// Bytes of entries since the last snapshot was begun.
    grown: usize,
    is_compacting: bool,
}

struct Proposed<C> {
    index: u64,
    term: u64,
    commands: Vec<Proposal<C>>,
}

impl<C, R> Replica<C, R> {
    /// Goes on from what was found on disk. `id` is this voter; `founders` are the voters of a cluster that begins.
    ///
    /// # Errors
    ///
    /// What was found cannot be used.
    pub fn new(id: u64, founders: &[u64], key: u64, found: &Found) -> Result<Replica<C, R>, ReplicaError> {
        let machine = match &found.snapshot {
            Some(snapshot) => Machine::restore(&snapshot.machine)?,
            // Other limits come with a command, at the same point of every voter's log.
            None => Machine::new(Limits::default()),
        };
        let applied = found.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
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
        let node = RawNode::new(&config, Tail::new(found, founders), &logger);
        let node = node.map_err(|error| ReplicaError::Log(error.to_string()))?;
        Ok(Replica {
            node,
            machine: machine.with_hash_key(key),
            applied,
            proposed: VecDeque::new(),
            asked: Vec::new(),
            reads: VecDeque::new(),
            confirming: VecDeque::new(),
            last_read: 0,
            is_leader: false,
            grown: 0,
            is_compacting: false,
        })
    }

    /// The state as of the last entry that was applied.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The last entry that was applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Whether this voter leads, and has applied everything that earlier leaders committed.
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

    /// Time passes: a tenth of the shortest election.
    pub fn tick(&mut self) {
        self.node.tick();
    }

    /// Proposes commands, as one entry.
    ///
    /// # Errors
    ///
    /// This voter does not lead: they are given back, and nothing has happened.
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

    /// Asks to read the state as it is now.
    pub fn read(&mut self, reader: R) {
        self.asked.push(reader);
    }

    /// What was to be persisted under this number, and all before it, is durable.
    pub fn persisted(&mut self, number: u64) {
        self.node.on_persist_ready(number);
    }

    /// What is to be done now. To be called after anything was told.
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
        while self.reads.front().is_some_and(|(index, _)| *index <= self.applied) {
            if let Some((_, readers)) = self.reads.pop_front() {
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
        if let Some(vow) = ready.hs() {
            self.node.mut_store().swear(vow.clone());
        }
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        // What only says that more is committed goes with the next write: whoever starts finds that out anew.
        if ready.must_sync() {
            let records: Vec<_> = entries.iter().map(tail::record).collect();
            self.grown += records.iter().map(|record| record.data.len() + OVERHEAD).sum::<usize>();
            let write = Write { vow: self.node.store().vow(), records };
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
                for Proposal { command, caller } in commands {
                    let applied = self.machine.apply(command);
                    outputs.applied.push(Done { caller: Some(caller), applied });
                }
            } else {
                for command in batch::decode(&entry.data) {
                    outputs.applied.push(Done { caller: None, applied: self.machine.apply(command) });
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

    /// Whether this voter has just become the leader: it is elected, and has applied an entry of its own term.
    fn note_leadership(&mut self) -> bool {
        let leads = self.node.raft.state == StateRole::Leader;
        let holds = leads && self.node.store().term(self.applied).is_ok_and(|term| term == self.node.raft.term);
        let took = holds && !self.is_leader;
        self.is_leader = holds;
        took
    }

    fn confirm_reads(&mut self) {
        if self.is_leader && !self.asked.is_empty() {
            self.last_read += 1;
            self.confirming.push_back((self.last_read, std::mem::take(&mut self.asked)));
            self.node.read_index(self.last_read.to_le_bytes().to_vec());
        }
    }

    fn confirmed(&mut self, context: &[u8], index: u64) {
        let Ok(number) = context.try_into().map(u64::from_le_bytes) else { return };
        while self.confirming.front().is_some_and(|(first, _)| *first <= number) {
            if let Some((_, readers)) = self.confirming.pop_front() {
                self.reads.push_back((index, readers));
            }
        }
    }
}

#[cfg(test)]
mod tests;
