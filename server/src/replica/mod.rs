//! One member of the replicated log, and the lock machine that it feeds. It has no thread, socket, file or clock: inputs go
//! in, outputs come out.
//!
//! ```text
//! propose, read, receive, tick, persisted ──> Replica ──> Outputs { persist, messages, applied, reads … }
//! ```
//!
//! This is the only module that knows the consensus library.

mod batch;
mod compaction;
mod members;
mod peer_message;
mod tail;

use std::collections::{BTreeMap, VecDeque};
use std::iter;

use palisade_core::{Applied, Command, Limits, Machine, RestoreError};
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Config, RawNode, SnapshotStatus, StateRole, Storage};
use thiserror::Error;

pub use batch::decode as entry_commands;
pub use compaction::{Compacted, Compaction, CompactionError};
pub use members::{Follower, MembershipChange};
pub use peer_message::{PeerMessage, Promise, UnreadableMessage};

use crate::storage::{Membership, Recovered, Snapshot, Write};
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
    /// The origin; `None` if another member proposed the command, or if it was proposed before a restart.
    pub origin: Option<C>,
    /// The answer and the events.
    pub applied: Applied,
}

/// The work that the host must do now.
#[derive(Debug)]
pub struct Outputs<C, R> {
    /// Messages to other members, in order. A lost one does no harm.
    pub messages: Vec<PeerMessage>,
    /// Writes to make durable, in order. The host then calls [`Replica::persisted`] with the number.
    pub persist: Vec<(u64, Write)>,
    /// Applied commands, in order.
    pub applied: Vec<Done<C>>,
    /// Reads that may be answered now: they see everything that was acknowledged before they arrived.
    pub reads: Vec<R>,
    /// What this member did not finish as the leader: commands that may still be committed, and reads without an answer.
    pub deposed: Option<Unfinished<C, R>>,
    /// Whether this member has just become the leader that may time sessions.
    pub became_leader: bool,
    /// Whether [`Replica::membership`] has changed, or is new.
    pub members_changed: bool,
}

/// What a leader has not finished when another takes over.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfinished<C, R> {
    /// The origins of commands that may or may not be committed.
    pub commands: Vec<C>,
    /// Reads.
    pub reads: Vec<R>,
}

impl<C, R> Outputs<C, R> {
    fn new() -> Outputs<C, R> {
        Outputs {
            messages: Vec::new(),
            persist: Vec::new(),
            applied: Vec::new(),
            reads: Vec::new(),
            deposed: None,
            became_leader: false,
            members_changed: false,
        }
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

/// Entries that were acknowledged are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LogLost {
    /// The log of this member lacks an entry that it has acknowledged.
    #[error(
        "the log, which ends at entry {last}, lacks entry {known} that this node has acknowledged: its end was lost, or an older copy was put back"
    )]
    Here {
        /// The last entry of the log.
        last: u64,
        /// An entry that the leader knows it to have had. The log may have another entry with this index.
        known: u64,
    },
    /// The leader has another entry than this member, which knows that a majority had it.
    #[error("the leader has another entry {index} than this node, which knows that a majority had written it")]
    Elsewhere {
        /// The first such entry.
        index: u64,
    },
}

/// The newest version of the log that this build understands. Version 1 has the commands of locks, version 2 changes of the members. A
/// leader proposes nothing that another member is known not to understand.
pub const LOG_VERSION: u16 = 2;

/// The shortest election time-out, in ticks.
pub const ELECTION_TICKS: usize = 10;

/// The approximate size of an entry without its data, in bytes.
const OVERHEAD: usize = 64;

/// One member.
pub struct Replica<C, R> {
    node: RawNode<Tail>,
    machine: Machine,
    hash_key: u64,
    applied: u64,
    /// Proposals of this member that are not yet committed, in the order of their entries.
    proposed: VecDeque<Proposed<C>>,
    /// Reads that wait until the leader has confirmed its leadership.
    pending_reads: Vec<R>,
    /// Reads that wait for an entry to be applied.
    confirmed_reads: VecDeque<(u64, Vec<R>)>,
    /// Reads that the consensus library is confirming, by number.
    confirming: VecDeque<(u64, Vec<R>)>,
    last_read: u64,
    /// The term in which this member was elected, while it leads.
    elected_in: Option<u64>,
    is_leader: bool,
    /// The last write that was handed to the host, and the last one that is durable.
    last_write: u64,
    last_durable: u64,
    /// The last step of the consensus library that was carried out. Most write nothing.
    last_ready: u64,
    /// Messages that may be sent when everything up to a write is durable.
    unsent: VecDeque<(u64, Vec<PeerMessage>)>,
    /// The machine of a snapshot that another member has sent.
    received: Option<(u64, Machine, Membership)>,
    /// The write after which the last installed snapshot counts as applied.
    installing: Option<u64>,
    members_changed: bool,
    /// Whether the entries that were committed before the start are not yet applied.
    is_starting: bool,
    /// Whether this member has applied a change of the members as the leader, and has not recorded it since.
    is_change_unrecorded: bool,
    /// Bytes of applied entries that are not in a snapshot.
    applied_bytes: usize,
    /// The bytes of the snapshot that is being made, which were counted before.
    compacting_bytes: Option<usize>,
    /// A snapshot that could not be made is tried again only with more bytes than this.
    failed_bytes: usize,
    ticks: u64,
    /// The tick at which each other member was last known to answer, while this one leads. The consensus library forgets it once in
    /// every election time-out.
    answered_at: BTreeMap<u64, u64>,
}

struct Proposed<C> {
    index: u64,
    term: u64,
    commands: Vec<Proposal<C>>,
}

impl<C, R> Replica<C, R> {
    /// Continues from the state on disk. `id` is this member; `founders` are the members before the first entry.
    ///
    /// # Errors
    ///
    /// The snapshot or the log cannot be used.
    pub fn new(
        id: u64,
        founders: &Membership,
        hash_key: u64,
        recovered: &Recovered,
    ) -> Result<Replica<C, R>, ReplicaError> {
        let machine = match &recovered.snapshot {
            Some(snapshot) => Machine::restore(&snapshot.machine)?,
            // Other limits come with a command, at the same point of every member's log.
            None => Machine::new(Limits::default()),
        };
        let applied = recovered.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        let config = Config {
            id,
            applied,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: 1,
            check_quorum: true,
            pre_vote: true,
            // Followers serve no reads. They learn the commit index with the next entry or heartbeat.
            skip_bcast_commit: true,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, Tail::new(recovered, founders), &logger);
        let node = node.map_err(|error| ReplicaError::Log(error.to_string()))?;
        Ok(Replica {
            node,
            machine: machine.with_hash_key(hash_key),
            hash_key,
            applied,
            proposed: VecDeque::new(),
            pending_reads: Vec::new(),
            confirmed_reads: VecDeque::new(),
            confirming: VecDeque::new(),
            last_read: 0,
            elected_in: None,
            is_leader: false,
            last_write: 0,
            last_durable: 0,
            last_ready: 0,
            unsent: VecDeque::new(),
            received: None,
            installing: None,
            members_changed: true,
            is_starting: true,
            is_change_unrecorded: false,
            applied_bytes: 0,
            compacting_bytes: None,
            failed_bytes: 0,
            ticks: 0,
            answered_at: BTreeMap::new(),
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

    /// Returns the index of the last entry.
    pub fn last_index(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    /// Returns the latest term.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Returns this member.
    pub fn id(&self) -> u64 {
        self.node.raft.id
    }

    /// Returns the member that leads, as far as this one knows.
    pub fn leader(&self) -> Option<u64> {
        Some(self.node.raft.leader_id).filter(|id| *id != 0)
    }

    /// Returns whether this member leads and has applied everything that earlier leaders committed.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Returns the members as of the last applied entry.
    pub fn membership(&self) -> &Membership {
        self.node.store().membership()
    }

    /// Returns how far each other member has come. Only the leader knows.
    pub fn followers(&self) -> impl Iterator<Item = Follower> {
        let progress = self.is_leader.then(|| self.node.raft.prs().iter()).into_iter().flatten();
        let others = progress.filter(|(id, _)| **id != self.node.raft.id);
        others.map(|(id, progress)| Follower {
            member: *id,
            matched: progress.matched,
            is_active: progress.recent_active || self.has_answered_lately(*id),
        })
    }

    fn has_answered_lately(&self, member: u64) -> bool {
        self.answered_at.get(&member).is_some_and(|at| self.ticks - at <= ELECTION_TICKS as u64)
    }

    /// Campaigns at once, if this is the only voter.
    fn campaign_alone(&mut self) {
        if self.membership().is_only_voter(self.id()) {
            self.campaign();
        }
    }

    /// Asks the others whether they would elect this member, and becomes a candidate if a majority would.
    pub fn campaign(&mut self) {
        // Unlike at a time-out, the consensus library would let a member campaign that has no vote, or was removed.
        if self.may_campaign() && self.node.raft.promotable() {
            // What can fail is checked.
            drop(self.node.campaign());
        }
    }

    /// Returns whether this member may campaign now. While the snapshot of another member becomes durable, the entries before it are gone,
    /// and the consensus library would look for them. An only voter leads as soon as it campaigns, and the library expects it to have
    /// written its whole log.
    fn may_campaign(&self) -> bool {
        let is_behind = self.last_durable < self.last_write && self.node.raft.state != StateRole::Leader;
        self.installing.is_none() && !(is_behind && self.node.raft.prs().is_singleton())
    }

    /// Notes that this member may have died. Returns whether it was the leader. Without a leader, this member may elect another
    /// one before the election time-out.
    pub fn suspect(&mut self, member: u64) -> bool {
        let raft = &mut self.node.raft;
        let was_leader = raft.leader_id == member && raft.state == StateRole::Follower;
        if was_leader {
            raft.become_follower(raft.term, 0);
        }
        was_leader
    }

    /// Lets another voter lead, once it has everything.
    pub fn transfer_to(&mut self, member: u64) {
        self.node.transfer_leader(member);
    }

    /// Advances the logical clock. Without a word from the leader for this many ticks, this member campaigns. The host draws the
    /// number at random for each tick, between [`ELECTION_TICKS`] and twice that, so that seldom two members campaign at once.
    pub fn tick(&mut self, election_ticks: usize) {
        let at_most = 2 * ELECTION_TICKS - 1;
        // The library's own choice would not follow from the host's seed.
        self.node.raft.set_randomized_election_timeout(election_ticks.clamp(ELECTION_TICKS, at_most));
        self.ticks += 1;
        match self.is_leader {
            true => {
                let answered = self.node.raft.prs().iter().filter(|(_, progress)| progress.recent_active);
                self.answered_at.extend(answered.map(|(id, _)| (*id, self.ticks)));
            }
            false => self.answered_at.clear(),
        }
        if self.may_campaign() {
            self.node.tick();
        }
    }

    /// Proposes commands, as one entry or, if they are large, as several.
    ///
    /// # Errors
    ///
    /// This member does not lead, or is about to let another lead. The commands that were not proposed are returned.
    pub fn propose(&mut self, mut commands: Vec<Proposal<C>>) -> Result<(), Vec<Proposal<C>>> {
        // A follower's proposal would be sent to the leader, which may have decided otherwise meanwhile.
        if self.node.raft.state != StateRole::Leader {
            return Err(commands);
        }
        for (count, data) in batch::encode(commands.iter().map(|proposal| &proposal.command)) {
            if self.node.propose(Vec::new(), data).is_err() {
                return Err(commands);
            }
            let rest = commands.split_off(count);
            let (index, term) = (self.node.raft.raft_log.last_index(), self.node.raft.term);
            self.proposed.push_back(Proposed { index, term, commands: std::mem::replace(&mut commands, rest) });
        }
        Ok(())
    }

    /// Queues a linearizable read. It is answered if this member leads.
    pub fn read(&mut self, reader: R) {
        self.pending_reads.push(reader);
    }

    /// Returns whether reads wait for the next [`outputs`](Replica::outputs).
    pub fn has_new_reads(&self) -> bool {
        !self.pending_reads.is_empty() && self.may_confirm_reads()
    }

    /// Returns whether the members that vote can confirm that this one leads. If only one member votes, the consensus library asks no
    /// other, although the one may be another: this one leads without a vote until that one leads.
    fn may_confirm_reads(&self) -> bool {
        let is_alone_among_others = self.node.raft.prs().is_singleton() && !self.node.raft.promotable();
        self.is_leader && !is_alone_among_others
    }

    /// Handles a message of another member.
    ///
    /// # Errors
    ///
    /// This member, or a majority of the others, has lost entries that it has acknowledged. It must not take part any more.
    pub fn receive(&mut self, message: PeerMessage) -> Result<(), LogLost> {
        let mut message = message.0;
        if message.term >= self.term() {
            match message.msg_type {
                MessageType::MsgHeartbeat => self.check_acknowledged(&mut message)?,
                MessageType::MsgAppend => self.check_committed(&message)?,
                _ => {}
            }
        }
        // Each node proposes only what it decides while it leads.
        let is_foreign = message.to != self.id() || message.msg_type == MessageType::MsgPropose;
        let is_too_early = message.msg_type == MessageType::MsgTimeoutNow && !self.may_campaign();
        // The machine of a snapshot comes with `receive_snapshot`.
        if !is_foreign && !is_too_early && message.msg_type != MessageType::MsgSnapshot {
            // The library refuses messages that are out of date.
            drop(self.node.step(message));
        }
        Ok(())
    }

    /// Adds to a heartbeat the term of the entry up to which the follower may apply its log. The consensus library leaves it out.
    fn with_term_of_commit(&self, mut message: Message) -> PeerMessage {
        if message.msg_type == MessageType::MsgHeartbeat {
            message.log_term = self.node.raft.raft_log.term(message.commit).unwrap_or(0);
        }
        PeerMessage(message)
    }

    /// Checks that the log has the entry up to which a heartbeat lets this member apply it. The member has acknowledged that entry to
    /// this leader. If the log lacks it now, an older copy of it was put back.
    fn check_acknowledged(&self, heartbeat: &mut Message) -> Result<(), LogLost> {
        let log = &self.node.raft.raft_log;
        let (last, known, term) = (log.last_index(), heartbeat.commit, heartbeat.log_term);
        let is_other = |own| own != 0 && term != 0 && own != term;
        if known > last || log.term(known).is_ok_and(is_other) {
            return Err(match known <= log.committed {
                true => LogLost::Elsewhere { index: known },
                false => LogLost::Here { last, known },
            });
        }
        // The leader has compacted that entry, and will send a snapshot.
        if term == 0 {
            heartbeat.commit = known.min(log.committed);
        }
        Ok(())
    }

    /// Checks that entries which this member knows to be committed are those of the leader.
    fn check_committed(&self, message: &Message) -> Result<(), LogLost> {
        let log = &self.node.raft.raft_log;
        let before = (message.index, message.log_term);
        let mut named = iter::once(before).chain(message.entries.iter().map(|entry| (entry.index, entry.term)));
        // The term of an entry that was compacted is not known.
        let is_other =
            |index, term| index <= log.committed && log.term(index).is_ok_and(|own| own != 0 && own != term);
        match named.find(|(index, term)| is_other(*index, *term)) {
            Some((index, _)) => Err(LogLost::Elsewhere { index }),
            None => Ok(()),
        }
    }

    /// Handles the message of another member that a snapshot is for this one. The snapshot is durable.
    ///
    /// # Errors
    ///
    /// Its machine cannot be read. Nothing has happened.
    pub fn receive_snapshot(&mut self, message: PeerMessage, snapshot: &Snapshot) -> Result<(), RestoreError> {
        if message.0.to != self.id() || snapshot.index <= self.applied {
            return Ok(());
        }
        let machine = Machine::restore(&snapshot.machine)?.with_hash_key(self.hash_key);
        drop(self.node.step(message.with_snapshot(snapshot).0));
        // The consensus library ignores the snapshot of a leader that was deposed, also while it waits to install another one.
        if self.node.snap().is_some_and(|accepted| accepted.get_metadata().index == snapshot.index) {
            self.received = Some((snapshot.index, machine, snapshot.membership.clone()));
        }
        Ok(())
    }

    /// Reports whether a snapshot has reached a member.
    pub fn snapshot_sent(&mut self, member: u64, has_arrived: bool) {
        let status = if has_arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(member, status);
    }

    /// Reports that messages to a member were dropped.
    pub fn unreachable(&mut self, member: u64) {
        self.node.report_unreachable(member);
    }

    /// Reports that the write of this number, and all before it, are durable.
    pub fn persisted(&mut self, number: u64) {
        self.last_durable = self.last_durable.max(number);
        self.report_durable();
        if self.installing.is_some_and(|installing| installing <= number) {
            self.installing = None;
            self.node.advance_apply_to(self.applied);
        }
    }

    /// Tells the consensus library which of its steps are durable. It keeps a record of each until then, also of those that write nothing.
    fn report_durable(&mut self) {
        let is_all_durable = self.last_durable == self.last_write;
        self.node.on_persist_ready(if is_all_durable { self.last_ready } else { self.last_durable });
    }

    /// Returns the work that the host must do now. The host calls it after every input.
    pub fn outputs(&mut self) -> Outputs<C, R> {
        let mut outputs = Outputs::new();
        loop {
            self.note_leadership(&mut outputs);
            self.confirm_reads();
            self.leave_joint();
            self.record_change();
            if self.node.has_ready() {
                self.process(&mut outputs);
            } else if std::mem::take(&mut self.is_starting) {
                // Everything that was committed before the start is applied now, and says who votes.
                self.campaign_alone();
            } else {
                break;
            }
        }
        outputs.members_changed = std::mem::take(&mut self.members_changed);
        while self.unsent.front().is_some_and(|(after, _)| *after <= self.last_durable) {
            outputs.messages.extend(self.unsent.pop_front().into_iter().flat_map(|(_, messages)| messages));
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
        let messages = ready.take_messages().into_iter().map(|message| self.with_term_of_commit(message));
        outputs.messages.extend(messages);
        for state in ready.take_read_states() {
            self.confirmed(&state.request_ctx, state.index);
        }
        if let Some(hard_state) = ready.hs() {
            self.node.mut_store().save_hard_state(hard_state.clone());
        }
        if !ready.snapshot().is_empty() {
            self.install(ready.snapshot().get_metadata().term);
            self.installing = Some(ready.number());
        }
        let committed = ready.take_committed_entries();
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        // A new commit index alone waits for the next write: a restarted member learns it from the leader again. For a change of the
        // members, the leader sees to that write.
        if ready.must_sync() {
            let records: Vec<_> = entries.iter().map(tail::record).collect();
            let write = Write { hard_state: self.node.store().hard_state(), records };
            self.last_write = ready.number();
            outputs.persist.push((ready.number(), write));
        }
        self.send_when_durable(ready.take_persisted_messages(), ready.must_sync(), outputs);
        self.last_ready = ready.number();
        self.node.advance_append_async(ready);
        self.report_durable();
        self.apply(committed, outputs);
    }

    /// Sends what a follower answers: after everything that it says is durable.
    fn send_when_durable(&mut self, messages: Vec<Message>, is_written: bool, outputs: &mut Outputs<C, R>) {
        // The answer to a heartbeat says only that this member has heard it, and must not wait for a slow disk. An answer to an
        // append may speak of entries whose write is on its way.
        let is_at_once = |message: &Message| !is_written && message.msg_type == MessageType::MsgHeartbeatResponse;
        let (at_once, later): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_at_once);
        outputs.messages.extend(at_once.into_iter().map(PeerMessage));
        if !later.is_empty() {
            self.unsent.push_back((self.last_write, later.into_iter().map(PeerMessage).collect()));
        }
    }

    /// Continues from the snapshot that another member has sent.
    fn install(&mut self, term: u64) {
        let Some((index, machine, membership)) = self.received.take() else {
            unreachable!("the consensus library knows only snapshots whose machine was received")
        };
        self.machine = machine;
        self.applied = index;
        self.applied_bytes = 0;
        self.node.mut_store().restart(index, term, membership);
        self.members_changed = true;
    }

    fn apply(&mut self, committed: Vec<Entry>, outputs: &mut Outputs<C, R>) {
        for entry in committed {
            let (index, term) = (entry.index, entry.term);
            self.applied_bytes += entry.data.len() + OVERHEAD;
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
        if self.installing.is_none() {
            self.node.advance_apply_to(self.applied);
        }
    }

    /// Notes whether this member leads: it is elected, and has applied an entry of its term.
    fn note_leadership(&mut self, outputs: &mut Outputs<C, R>) {
        let elected_in = (self.node.raft.state == StateRole::Leader).then_some(self.node.raft.term);
        if self.elected_in.is_some() && self.elected_in != elected_in {
            self.is_leader = false;
            let commands = self.proposed.drain(..).flat_map(|entry| entry.commands);
            let commands = commands.map(|proposal| proposal.origin).collect();
            let mut reads = std::mem::take(&mut self.pending_reads);
            reads.extend(self.confirming.drain(..).flat_map(|(_, readers)| readers));
            reads.extend(self.confirmed_reads.drain(..).flat_map(|(_, readers)| readers));
            outputs.became_leader = false;
            outputs.deposed = Some(Unfinished { commands, reads });
        }
        self.elected_in = elected_in;
        let is_leader = elected_in
            .is_some_and(|elected_in| self.node.store().term(self.applied).is_ok_and(|term| term == elected_in));
        outputs.became_leader |= is_leader && !self.is_leader;
        self.is_leader = is_leader;
    }

    fn confirm_reads(&mut self) {
        if self.has_new_reads() {
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
