//! A machine with a node of the service on it: its disk, its clock, and the writes that are on their way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use palisade_server::access::{Rule, User, Users, Verb};
use palisade_server::node::{ConnectionId, Input, Node, NodeConfig, Principal, Protocol, RequestContext, Seeds};
use palisade_server::replica::{Compaction, PeerMessage, Promise};
use palisade_server::resp::SimulatedConnection;
use palisade_server::storage::{
    HardState, Identity, Member, Membership, Recovered, Snapshot, Stage, StorageError, Store, Write,
};

use super::clock::Clock;
use super::plan::Plan;
use crate::faulty_disk::FaultyDisk;

/// The version of the log that knows changes of the members, and the one before.
pub(super) const NEW_LOG: u16 = 2;
pub(super) const OLD_LOG: u16 = 1;

/// The users of a service that has users.
const USERS: [&str; 2] = ["ann", "bob"];

/// A machine.
pub(super) struct Host {
    /// The number of its member, at whose address it is. It gets another one with another disk.
    pub(super) id: u64,
    /// The member whose directory was copied here: its node takes itself for that member.
    pub(super) copied_from: Option<u64>,
    pub(super) disk: FaultyDisk,
    pub(super) running: Option<Running>,
    pub(super) clock: Clock,
    /// Whether its clock is far off.
    pub(super) is_far_off: bool,
    pub(super) is_paused: bool,
    /// What came while it was paused.
    pub(super) inbox: Vec<Arrival>,
    /// Its disk is slow until then.
    pub(super) slow_until: Duration,
    /// How often it was started.
    pub(super) starts: u64,
    /// Whether it has taken part in the cluster with this disk.
    pub(super) has_begun: bool,
    /// An older copy of its disk.
    pub(super) backup: Option<FaultyDisk>,
    /// Its disk was damaged: it may refuse to start, or find out that its log was cut.
    pub(super) is_damaged: bool,
    /// It must be removed, and come back as another member.
    pub(super) needs_replacement: bool,
    /// The version of the log that its build understands.
    pub(super) log_version: u16,
    /// The last entry that was written before it stopped.
    pub(super) last_written: u64,
    /// The last entry before its last write. Damage may look like a torn last write, and not like more.
    pub(super) written_before: u64,
    /// The last entry that it had when it started.
    pub(super) started_with: u64,
    /// The term and the vote that it has written, and must know after a restart.
    pub(super) promised: HardState,
    /// It has lost its power, and nothing tells its clients.
    pub(super) is_dark: bool,
    /// How many entries it has acknowledged in messages to others.
    pub(super) acknowledgements: u64,
    /// The members when it was invited.
    pub(super) contacts: BTreeMap<u64, Member>,
}

/// The files are read at one acknowledgement of entries in this many.
const ACKNOWLEDGEMENTS_PER_CHECK: u64 = 64;

/// What a node has found on its disk.
pub(super) struct Started {
    /// The log is shorter than what was written.
    pub(super) is_log_shorter: bool,
    /// It has forgotten its term, or its vote in that term.
    pub(super) has_forgotten_vote: bool,
}

/// Why a node does not start.
pub(super) struct StartError {
    /// Its disk fails, and is not damaged.
    pub(super) is_io: bool,
    what: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// What comes to a machine from outside.
pub(super) enum Arrival {
    Input(Input),
    /// Bytes of a client.
    Bytes(u64, Vec<u8>),
    /// A client has closed its connection.
    Closed(u64),
    /// A snapshot of another member, to be written first.
    Snapshot(PeerMessage, Box<Snapshot>),
}

/// A node that runs.
pub(super) struct Running {
    pub(super) store: Store<FaultyDisk>,
    pub(super) node: Node,
    pub(super) writes: VecDeque<(u64, Write)>,
    pub(super) is_writing: bool,
    pub(super) compaction: Option<Compaction>,
    pub(super) connections: BTreeMap<u64, SimulatedConnection>,
    /// Entries that it has and has not applied.
    pub(super) records: BTreeMap<u64, (u64, Bytes)>,
    /// The last entry that it has applied, as far as the judge knows.
    pub(super) applied: u64,
    /// When its next tick is scheduled.
    pub(super) tick_at: Option<Duration>,
    /// The members that vote, as far as it knows.
    pub(super) voters: Vec<u64>,
    /// The members that it connects to.
    pub(super) contacts: BTreeSet<u64>,
    /// The members that have connected to it, and when they had started.
    pub(super) connected: BTreeMap<u64, u64>,
    /// Its term, as far as the judge knows.
    pub(super) term: u64,
    /// The term in which it leads.
    pub(super) leads_in: Option<u64>,
    /// How many entries it has applied since its state was compared.
    pub(super) uncompared: usize,
    /// The users of the service, if it has any.
    users: Option<Users>,
}

fn read_files(disk: FaultyDisk, segment_size: usize) -> Result<Recovered, String> {
    let opened = Store::open_with(disk, None, segment_size);
    opened.map(|(_, found)| found).map_err(|error| error.to_string())
}

pub(super) fn member(id: u64) -> Member {
    Member::new(format!("node{id}"), format!("node{id}:7422"))
}

pub(super) fn founded_by(founders: usize) -> Membership {
    Membership::founded_by((1..=founders as u64).map(|id| (id, member(id))).collect())
}

impl Host {
    pub(super) fn new(id: u64) -> Host {
        Host {
            id,
            copied_from: None,
            disk: FaultyDisk::default(),
            running: None,
            clock: Clock::start(Duration::ZERO, 0),
            is_far_off: false,
            is_paused: false,
            inbox: Vec::new(),
            slow_until: Duration::ZERO,
            starts: 0,
            has_begun: false,
            backup: None,
            is_damaged: false,
            needs_replacement: false,
            log_version: NEW_LOG,
            last_written: 0,
            written_before: 0,
            started_with: 0,
            promised: HardState::default(),
            is_dark: false,
            acknowledgements: 0,
            contacts: BTreeMap::new(),
        }
    }

    /// Starts its node; fails if the disk cannot be used.
    pub(super) fn start(&mut self, now: Duration, plan: &Plan, rate: i64) -> Result<Started, StartError> {
        let opened = Store::open_with(self.disk.clone(), None, plan.segment_size);
        let (store, found) = opened.map_err(|error| StartError {
            is_io: matches!(error, StorageError::Io { .. }),
            what: error.to_string(),
        })?;
        self.starts += 1;
        self.has_begun = true;
        let users = plan.has_users.then(users);
        let config = NodeConfig {
            users: users.clone(),
            wait_ms: 3_600_000,
            watches: 100,
            sessions_per_user: 1_000,
            waiters: 10_000,
            waiters_per_user: 10_000,
            compact_after: plan.compact_after,
            ..NodeConfig::default()
        };
        let identity = Identity {
            cluster: 1,
            member: self.member(),
            node: None,
            founders: founded_by(plan.nodes),
            contacts: self.contacts.clone(),
            stage: Stage::Member,
        };
        let seeds = Seeds { hash_key: 7, session_ids: self.starts << 8 | self.id };
        let node = Node::new(config, &identity, &found, seeds, None)
            .map_err(|error| StartError { is_io: false, what: error.to_string() })?;
        let records = found.records.iter().map(|record| {
            // Membership changes apply no command.
            let data = if record.is_membership { Bytes::new() } else { record.data.clone() };
            (record.index, (record.term, data))
        });
        self.started_with = found.last_index();
        let started = Started {
            is_log_shorter: found.last_index() < self.last_written,
            has_forgotten_vote: !self.knows_its_vote(found.hard_state),
        };
        let running = Running {
            store,
            applied: node.applied_index(),
            voters: node.membership().voters.clone(),
            contacts: BTreeSet::new(),
            connected: BTreeMap::new(),
            term: node.term(),
            node,
            writes: VecDeque::new(),
            is_writing: false,
            compaction: None,
            connections: BTreeMap::new(),
            records: records.collect(),
            tick_at: None,
            leads_in: None,
            uncompared: 0,
            users,
        };
        self.clock = Clock::start(now, rate);
        self.running = Some(running);
        (self.is_paused, self.is_dark) = (false, false);
        Ok(started)
    }

    /// Whether this is the vote that it has written, or a later one.
    fn knows_its_vote(&self, found: HardState) -> bool {
        let HardState { term, vote, .. } = self.promised;
        found.term > term || (found.term == term && (vote == 0 || found.vote == vote))
    }

    /// Reads the files as a restart would, after a kill and after a power cut, and returns what they lack.
    pub(super) fn check_files(&self, segment_size: usize) -> Result<(), String> {
        self.check_copy(&read_files(self.disk.copy(), segment_size)?)?;
        let flushed = read_files(self.disk.flushed_copy(), segment_size)?;
        self.check_copy(&flushed).map_err(|what| format!("after a power cut {what}"))
    }

    /// Checks that what a message says is on the disk, and flushed.
    pub(super) fn check_promise(&mut self, promise: Promise, segment_size: usize) -> Result<(), String> {
        if let Promise::Entries { .. } = promise {
            self.acknowledgements += 1;
            if !self.acknowledgements.is_multiple_of(ACKNOWLEDGEMENTS_PER_CHECK) {
                return Ok(());
            }
        }
        let found = read_files(self.disk.flushed_copy(), segment_size)?;
        let is_kept = match promise {
            Promise::Vote { term, candidate } => {
                let HardState { term: known, vote, .. } = found.hard_state;
                known > term || (known == term && vote == candidate)
            }
            Promise::Entries { last } => found.last_index() >= last,
        };
        match is_kept {
            true => Ok(()),
            false => Err(format!("{promise:?}, with {:?} and entry {}", found.hard_state, found.last_index())),
        }
    }

    fn check_copy(&self, found: &Recovered) -> Result<(), String> {
        let Some(running) = &self.running else { return Ok(()) };
        let (last, applied) = (found.last_index(), running.node.applied_index());
        if last < applied {
            return Err(format!("they end at entry {last}, and entry {applied} is applied"));
        }
        if !self.knows_its_vote(found.hard_state) {
            return Err(format!("they have {:?}, and {:?} was written", found.hard_state, self.promised));
        }
        // Writes that wait may replace others.
        let waiting = running.writes.iter().filter_map(|(_, write)| write.records.first());
        let end = waiting.map(|record| record.index).min().unwrap_or(u64::MAX);
        let base = found.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        for (index, (term, _)) in running.records.range(base + 1..).take_while(|(index, _)| **index < end) {
            let record = found.records.get((index - base - 1) as usize);
            if record.is_none_or(|record| record.term != *term) {
                return Err(format!("they lack entry {index} of term {term}"));
            }
        }
        Ok(())
    }

    /// Returns the member that its directory belongs to.
    pub(super) fn member(&self) -> u64 {
        self.copied_from.unwrap_or(self.id)
    }

    /// Whether it answers.
    pub(super) fn is_up(&self) -> bool {
        self.running.is_some() && !self.is_paused
    }

    pub(super) fn leads(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.node.is_leader())
    }
}

impl Running {
    /// Notes the entries of a write. Returns whether they replace others.
    pub(super) fn note_records(&mut self, write: &Write) -> bool {
        let Some(first) = write.records.first() else { return false };
        let is_replaced = self.records.split_off(&first.index).values().any(|(term, _)| *term < first.term);
        for record in &write.records {
            let data = if record.is_membership { Bytes::new() } else { record.data.clone() };
            self.records.insert(record.index, (record.term, data));
        }
        is_replaced
    }

    /// Begins a connection of a client.
    pub(super) fn connect(&mut self, now: Duration, connection: u64, client: usize, is_relayed: bool) {
        let id = ConnectionId(connection);
        let context = self.context(&format!("client-{client}"), client);
        self.node.step(now, Input::Connected { connection: id, context });
        self.connections.insert(connection, SimulatedConnection::new(id, is_relayed));
    }

    /// Returns the context of a client with this name.
    pub(super) fn context(&self, name: &str, number: usize) -> RequestContext {
        let user = self.users.as_ref().and_then(|users| users.find(USERS[number % USERS.len()]));
        RequestContext {
            principal: user.map_or(Principal::Anyone, Principal::User),
            protocol: Protocol::Resp,
            peer: Arc::from(name),
            address: [127, 0, 0, 1].into(),
        }
    }
}

/// Returns the users, who may do everything.
fn users() -> Users {
    let user = |name| {
        let rule =
            Rule { verbs: vec![Verb::Admin, Verb::Acquire, Verb::Observe, Verb::Break], prefix: String::new() };
        User::new(name, None, vec![rule]).expect("a name")
    };
    Users::new(USERS.map(user).into()).expect("other names")
}
