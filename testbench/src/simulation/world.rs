//! The world: machines, clients, the network and the resources, in one thread and one time. What happens next is the earliest of
//! what was planned.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use palisade::Standing;
use palisade::simulation::{Process, Stream, Time};
use palisade_core::{Ending, SessionEnd};
use palisade_server::node::{ConnectionId, Input, Message, Output};
use palisade_server::replica::{LogLost, PeerMessage};
use palisade_server::storage::{read_snapshot, write_received_snapshot, write_watermark};
use tokio::sync::oneshot;

use super::Outcome;
use super::application::{self, COUNTED, Shared};
use super::clock::Clock;
use super::host::{Arrival, Host, Running};
use super::judge::{Effects, Record};
use super::plan::Plan;
use super::resource::{Answer, Call, Counter, CounterState, Reply, Request};
use super::stream::{Dials, Pipe, SharedPipe, stream};
use crate::faulty_disk::Dice;

/// The port of a client's URL that stands for the first machine.
const FIRST_PORT: u16 = 7001;
/// How soon lost bytes are sent again.
const RETRANSMIT: Duration = Duration::from_millis(200);
/// How long a client waits for a resource.
const RESOURCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Two clocks that differ by less than this, in millionths, are within what the clients allow for.
pub(super) const TAME: i64 = 3_000;

/// What is planned.
pub(super) enum Happening {
    Tick { host: usize, start: u64 },
    /// A write reaches the disk.
    Persist { host: usize, start: u64 },
    /// A snapshot is written.
    Compact { host: usize, start: u64 },
    Message(PeerMessage),
    /// A client connects.
    Connect { client: usize, life: u64, host: usize, outcome: oneshot::Sender<std::io::Result<Stream>> },
    Connected { client: usize, life: u64, connection: u64, outcome: oneshot::Sender<std::io::Result<Stream>> },
    Unreachable { client: usize, life: u64, outcome: oneshot::Sender<std::io::Result<Stream>> },
    ToHost(u64),
    ToClient(u64),
    /// A client's connection breaks.
    Reset(u64),
    /// A node learns that a client has closed its connection.
    Close(u64),
    Wake { client: usize, at: Duration },
    /// A request reaches a counter.
    Request { client: usize, life: u64, call: Call },
    /// A copy of a request reaches a counter late.
    Repeat { counter: usize, request: Request },
    Reply { client: usize, life: u64, caller: oneshot::Sender<Reply>, reply: Reply },
    Suspect { host: usize, member: u64 },
    Restart { host: usize },
    ResumeHost { host: usize, start: u64 },
    StartClient { client: usize },
    ResumeClient { client: usize, life: u64 },
    /// Links that were cut are mended.
    Mend { cut: Vec<(u64, u64)> },
    MendClient { client: usize, host: usize },
    MendDisk { host: usize },
    Fault,
}

/// A connection of a client, perhaps relayed by another node.
pub(super) struct Connection {
    pub(super) client: usize,
    pub(super) life: u64,
    pub(super) host: usize,
    /// The node that the client has connected to, which relays to the host.
    pub(super) via: usize,
    /// Which start of the host it belongs to.
    start: u64,
    pipe: SharedPipe,
    to_host: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    last_to_host: Duration,
    last_to_client: Duration,
    is_over: bool,
}

/// A client's machine.
pub(super) struct Client {
    pub(super) process: Option<Process>,
    /// How often it was started.
    pub(super) life: u64,
    pub(super) shared: Rc<Shared>,
    dials: Dials,
    pub(super) clock: Clock,
    /// How long its machine was suspended.
    pub(super) suspended: Duration,
    pub(super) is_paused: bool,
    wake_at: Option<Duration>,
    connections: BTreeSet<u64>,
}

/// The world.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) dice: Dice,
    pub(super) record: Rc<RefCell<Record>>,
    pub(super) now: Duration,
    planned: BTreeMap<(Duration, u64), Happening>,
    last_planned: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) clients: Vec<Client>,
    pub(super) connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    /// Links that are cut, from one member to another.
    pub(super) cut: BTreeSet<(u64, u64)>,
    pub(super) client_cut: BTreeSet<(usize, usize)>,
    counters: Vec<CounterState>,
    pub(super) last_member: u64,
    /// The leader of each term.
    leaders: BTreeMap<u64, u64>,
    pub(super) is_calm: Rc<Cell<bool>>,
    is_ending: Rc<Cell<bool>>,
    acknowledged: Rc<RefCell<[u64; COUNTED.len()]>>,
    unknown: Rc<RefCell<[u64; COUNTED.len()]>>,
    /// Whether all clocks have been close enough to each other so far.
    pub(super) are_nodes_tame: bool,
    /// How many faults were injected.
    pub(super) faults: usize,
    /// Steps since the state of a node was compared last.
    compared: u32,
    /// Since when clients are paused.
    pub(super) suspended_at: BTreeMap<usize, Duration>,
}

impl World {
    pub(super) fn new(plan: Plan, is_whole: bool) -> World {
        let dice = Dice::new(plan.seed);
        let record = Rc::new(RefCell::new(Record::new(is_whole)));
        let machines = plan.nodes + plan.spares;
        let mut world = World {
            dice,
            record,
            now: Duration::ZERO,
            planned: BTreeMap::new(),
            last_planned: 0,
            hosts: (1..=machines as u64).map(Host::new).collect(),
            clients: Vec::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            cut: BTreeSet::new(),
            client_cut: BTreeSet::new(),
            counters: COUNTED.iter().map(|_| CounterState::default()).collect(),
            last_member: machines as u64,
            leaders: BTreeMap::new(),
            is_calm: Rc::default(),
            is_ending: Rc::default(),
            acknowledged: Rc::default(),
            unknown: Rc::default(),
            are_nodes_tame: true,
            faults: 0,
            compared: 0,
            suspended_at: BTreeMap::new(),
            plan,
        };
        for host in 0..world.plan.nodes {
            if world.dice.roll(8) == 0 {
                world.hosts[host].log_version = super::host::OLD_LOG;
            }
            world.start_host(host);
        }
        for client in 0..world.plan.clients {
            let shared = world.client_shared(client, 0);
            world.clients.push(Client {
                process: None,
                life: 0,
                shared,
                dials: Dials::default(),
                clock: Clock::start(Duration::ZERO, 0),
                suspended: Duration::ZERO,
                is_paused: false,
                wake_at: None,
                connections: BTreeSet::new(),
            });
            let at = world.random_time(Duration::from_secs(2));
            world.plan_at(at, Happening::StartClient { client });
        }
        if world.plan.faults > 0 {
            world.plan_fault();
        }
        world
    }

    // Time.

    pub(super) fn plan_at(&mut self, at: Duration, what: Happening) {
        self.last_planned += 1;
        self.planned.insert((at.max(self.now), self.last_planned), what);
    }

    pub(super) fn plan_in(&mut self, delay: Duration, what: Happening) {
        self.plan_at(self.now + delay, what);
    }

    pub(super) fn random_time(&mut self, longest: Duration) -> Duration {
        longest * self.dice.roll(1_000) as u32 / 1_000
    }

    pub(super) fn note(&self, what: std::fmt::Arguments<'_>) {
        self.record.borrow_mut().note(what);
    }

    pub(super) fn count(&self, what: &'static str) {
        self.record.borrow_mut().count(what);
    }

    pub(super) fn fail(&self, what: String) {
        self.record.borrow_mut().fail(what);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.record.borrow().failure.is_some()
    }

    /// Lets everything happen until then, or until a promise is broken.
    pub(super) fn run_until(&mut self, until: Duration) {
        while let Some(((at, _), _)) = self.planned.first_key_value() {
            if *at > until || self.has_failed() {
                break;
            }
            let Some(((at, _), what)) = self.planned.pop_first() else { break };
            self.now = at;
            self.record.borrow_mut().now = at;
            self.happen(what);
        }
        if !self.has_failed() {
            self.now = self.now.max(until);
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Tick { host, start } => self.tick(host, start),
            Happening::Persist { host, start } => self.persist(host, start),
            Happening::Compact { host, start } => self.compact(host, start),
            Happening::Message(message) => self.deliver(message),
            Happening::Connect { client, life, host, outcome } => self.accept(client, life, host, outcome),
            Happening::Connected { client, life, connection, outcome } => {
                if self.clients[client].life == life
                    && let Some(open) = self.connections.get(&connection)
                {
                    drop(outcome.send(Ok(stream(&open.pipe))));
                    self.run_client(client);
                }
            }
            Happening::Unreachable { client, life, outcome } => {
                drop(outcome.send(Err(std::io::ErrorKind::ConnectionRefused.into())));
                if self.clients[client].life == life {
                    self.run_client(client);
                }
            }
            Happening::ToHost(connection) => self.to_host(connection),
            Happening::ToClient(connection) => self.to_client(connection),
            Happening::Reset(connection) => self.reset(connection),
            Happening::Close(connection) => self.close_at_host(connection),
            Happening::Wake { client, at } => {
                if self.clients[client].wake_at == Some(at) {
                    self.clients[client].wake_at = None;
                    self.run_client(client);
                }
            }
            Happening::Request { client, life, call } => self.request(client, life, call),
            Happening::Repeat { counter, request } => {
                self.count("fault: request to a resource repeated late");
                let _ = self.answer(counter, request);
            }
            Happening::Reply { client, life, caller, reply } => {
                // Its caller may be gone.
                let _ = caller.send(reply);
                if self.clients[client].life == life {
                    self.run_client(client);
                }
            }
            Happening::Suspect { host, member } => {
                self.arrive(host, Arrival::Input(Input::Suspect { member }));
            }
            Happening::Restart { host } => self.restart(host),
            Happening::ResumeHost { host, start } => self.resume_host(host, start),
            Happening::StartClient { client } => self.start_client(client),
            Happening::ResumeClient { client, life } => self.resume_client(client, life),
            Happening::Mend { cut } => self.cut.retain(|link| !cut.contains(link)),
            Happening::MendClient { client, host } => drop(self.client_cut.remove(&(client, host))),
            Happening::MendDisk { host } => self.hosts[host].disk.mend(),
            Happening::Fault => {
                if !self.is_calm.get() {
                    self.inject_fault();
                    self.plan_fault();
                }
            }
        }
    }

    /// Returns the time that a message takes.
    fn latency(&mut self) -> Duration {
        let longest = if self.dice.roll(50) == 0 && !self.is_calm.get() { 300_000 } else { self.plan.latency_us };
        Duration::from_micros(50 + self.dice.roll(longest) as u64)
    }

    // Nodes.

    fn host_time(&self, host: usize) -> Duration {
        self.hosts[host].clock.read(self.now)
    }

    pub(super) fn start_host(&mut self, host: usize) -> bool {
        let rate = self.dice.roll(2 * TAME as usize) as i64 - TAME;
        let (now, founders) = (self.now, self.plan.nodes);
        match self.hosts[host].start(now, founders, rate) {
            Ok(is_cut) => {
                self.note(format_args!("node {} starts", self.hosts[host].id));
                if is_cut {
                    self.count("path: log cut after a restart");
                }
                let version = self.hosts[host].log_version;
                let id = self.hosts[host].id;
                // The nodes tell each other which version of the log they understand.
                for other in (0..self.hosts.len()).filter(|other| *other != host) {
                    let (member, log) = (self.hosts[other].id, self.hosts[other].log_version);
                    self.arrive(host, Arrival::Input(Input::Understands { member, log }));
                    self.arrive(other, Arrival::Input(Input::Understands { member: id, log: version }));
                }
                self.settle(host);
                true
            }
            Err(error) => {
                self.note(format_args!("node {} does not start: {error}", self.hosts[host].id));
                if self.hosts[host].is_damaged {
                    self.count("path: node refuses a damaged disk");
                    self.hosts[host].needs_replacement = true;
                } else if self.hosts[host].disk.is_failing() {
                    let again = Duration::from_secs(1);
                    self.plan_in(again, Happening::Restart { host });
                } else {
                    self.fail(format!("A: node {} does not start: {error}", self.hosts[host].id));
                }
                false
            }
        }
    }

    /// Starts the node of a machine that was stopped.
    fn restart(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        if machine.running.is_some() || machine.needs_replacement || !machine.has_begun {
            return;
        }
        if machine.log_version == super::host::OLD_LOG {
            machine.log_version = super::host::NEW_LOG;
            self.count("operator: member upgraded");
        }
        self.start_host(host);
    }

    fn plan_tick(&mut self, host: usize, wake_at: Duration) {
        let machine = &mut self.hosts[host];
        let (Some(running), start) = (&mut machine.running, machine.starts) else { return };
        let Some(at) = machine.clock.when(wake_at).map(|at| at.max(self.now)) else { return };
        if running.tick_at.is_none_or(|planned| at < planned) {
            running.tick_at = Some(at);
            self.plan_at(at, Happening::Tick { host, start });
        }
    }

    fn tick(&mut self, host: usize, start: u64) {
        let machine = &mut self.hosts[host];
        if machine.starts != start || machine.is_paused {
            return;
        }
        let Some(running) = machine.running.as_mut().filter(|running| running.tick_at == Some(self.now)) else {
            return;
        };
        running.tick_at = None;
        running.node.step(machine.clock.read(self.now), Input::Tick);
        self.settle(host);
    }

    /// Something comes to a machine.
    pub(super) fn arrive(&mut self, host: usize, arrival: Arrival) {
        let time = self.host_time(host);
        let machine = &mut self.hosts[host];
        let Some(running) = &mut machine.running else { return };
        if machine.is_paused {
            return machine.inbox.push(arrival);
        }
        match arrival {
            Arrival::Input(input) => running.node.step(time, input),
            Arrival::Bytes(connection, bytes) => {
                let Running { node, connections, .. } = running;
                let Some(open) = connections.get_mut(&connection) else { return };
                for input in open.receive(&bytes, node) {
                    node.step(time, input);
                }
                self.flush(host, connection);
            }
            Arrival::Closed(connection) => {
                running.connections.remove(&connection);
                let connection = ConnectionId(connection);
                running.node.step(time, Input::Disconnected { connection, delivered: true });
            }
            Arrival::Snapshot(message, snapshot) => {
                let newest = read_snapshot(&machine.disk).ok().flatten().map_or(0, |own| own.index);
                if snapshot.index <= newest {
                    return;
                }
                if write_received_snapshot(&machine.disk, &snapshot).is_err() {
                    return self.disk_failed(host);
                }
                running.node.step(time, Input::ReceivedSnapshot(message, snapshot));
            }
        }
        self.settle(host);
    }

    /// Carries out the output of a node.
    pub(super) fn settle(&mut self, host: usize) {
        for _ in 0..10_000 {
            let Some(running) = &mut self.hosts[host].running else { return };
            let output = running.node.take_output();
            let has_more = output.has_more;
            let wake_at = output.wake_at;
            if !self.carry_out(host, output) {
                return;
            }
            if !has_more {
                return self.plan_tick(host, wake_at);
            }
        }
        self.fail(format!("L: the output of node {} does not end", self.hosts[host].id));
    }

    /// Returns whether the node still runs.
    fn carry_out(&mut self, host: usize, output: Output) -> bool {
        if let Some(lost) = output.log_lost {
            self.log_lost(host, &lost);
            return false;
        }
        let running = self.hosts[host].running.as_mut();
        let is_replaced =
            running.is_some_and(|running| output.writes.iter().fold(false, |is, (_, write)| running.note_records(write) || is));
        if is_replaced {
            self.count("path: uncommitted entries replaced");
        }
        self.observe(host);
        if let Some(watermark) = output.watermark
            && write_watermark(&self.hosts[host].disk, watermark).is_err()
        {
            self.disk_failed(host);
            return false;
        }
        if output.is_deposed {
            self.note(format_args!("node {} leads no more", self.hosts[host].id));
            self.disconnect_all(host, true);
        }
        let mut written_to = BTreeSet::new();
        if let Some(running) = &mut self.hosts[host].running {
            for message in output.messages {
                match message {
                    Message::Reply(id, response) => {
                        if let Some(open) = running.connections.get_mut(&id.connection.0) {
                            open.reply(id.number, response);
                            written_to.insert(id.connection.0);
                        }
                    }
                    Message::Push(to, push) => {
                        for connection in to {
                            if let Some(open) = running.connections.get_mut(&connection.0) {
                                open.push(&push);
                                written_to.insert(connection.0);
                            }
                        }
                    }
                }
            }
        }
        for connection in written_to {
            self.flush(host, connection);
        }
        if let Some(membership) = &output.membership
            && membership.is_joint()
        {
            self.count("path: joint membership");
        }
        for message in output.peer_messages {
            self.send(host, message);
        }
        if let Some(running) = &mut self.hosts[host].running {
            running.writes.extend(output.writes);
            if output.compaction.is_some() {
                running.compaction = output.compaction;
                let start = self.hosts[host].starts;
                let takes = Duration::from_millis(1 + self.dice.roll(50) as u64);
                self.plan_in(takes, Happening::Compact { host, start });
            }
        }
        self.begin_write(host);
        true
    }

    /// Sends what a node has written to a client.
    fn flush(&mut self, host: usize, connection: u64) {
        let Some(running) = &mut self.hosts[host].running else { return };
        let Some(open) = running.connections.get_mut(&connection) else { return };
        let bytes = open.take_bytes();
        if !bytes.is_empty() {
            self.send_bytes(connection, bytes, false);
        }
    }

    fn begin_write(&mut self, host: usize) {
        let is_slow = self.hosts[host].slow_until > self.now;
        let machine = &mut self.hosts[host];
        let start = machine.starts;
        if let Some(running) = &mut machine.running
            && !running.is_writing
            && !running.writes.is_empty()
        {
            running.is_writing = true;
            let micros = if is_slow { 20_000 + self.dice.roll(400_000) } else { 100 + self.dice.roll(2_000) };
            self.plan_in(Duration::from_micros(micros as u64), Happening::Persist { host, start });
        }
    }

    fn persist(&mut self, host: usize, start: u64) {
        let machine = &mut self.hosts[host];
        if machine.starts != start {
            return;
        }
        let Some(running) = &mut machine.running else { return };
        running.is_writing = false;
        // Writes that wait share a flush.
        let mut done = None;
        let mut has_failed = false;
        while let Some((number, write)) = running.writes.pop_front() {
            if running.store.append(&write).is_err() {
                has_failed = true;
                break;
            }
            machine.last_written = write.records.last().map_or(machine.last_written, |record| record.index);
            done = Some(number);
            if self.dice.roll(2) == 0 {
                break;
            }
        }
        if has_failed {
            return self.disk_failed(host);
        }
        if let Some(number) = done {
            // The disk works also while the process is paused.
            self.arrive(host, Arrival::Input(Input::Persisted { number }));
        }
        self.begin_write(host);
    }

    fn compact(&mut self, host: usize, start: u64) {
        let machine = &mut self.hosts[host];
        if machine.starts != start {
            return;
        }
        let Some(running) = &mut machine.running else { return };
        let Some(compaction) = running.compaction.take() else { return };
        let compacted = compaction.carry_out(&machine.disk).ok();
        if let Some(compacted) = &compacted {
            if running.store.forget(compacted.index).is_err() && machine.disk.is_dead() {
                return self.disk_failed(host);
            }
            self.count("path: snapshot made");
        } else if machine.disk.is_dead() {
            return self.disk_failed(host);
        }
        self.arrive(host, Arrival::Input(Input::Compacted(compacted)));
    }

    fn log_lost(&mut self, host: usize, lost: &LogLost) {
        self.note(format_args!("node {} stops: {lost}", self.hosts[host].id));
        if !self.hosts[host].is_damaged {
            return self.fail(format!("A: node {} has lost its log: {lost}", self.hosts[host].id));
        }
        self.stop_host(host);
        self.hosts[host].needs_replacement = true;
    }

    /// Ends the node of a machine, without any effect on its disk.
    pub(super) fn stop_host(&mut self, host: usize) {
        self.hosts[host].running = None;
        self.hosts[host].inbox.clear();
        self.hosts[host].is_paused = false;
        self.disconnect_all(host, true);
        let member = self.hosts[host].id;
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let delay = self.latency();
            self.plan_in(delay, Happening::Suspect { host: other, member });
        }
    }

    /// Tells the judge what a node has applied, and whether it leads.
    fn observe(&mut self, host: usize) {
        let Some(running) = &mut self.hosts[host].running else { return };
        let applied = running.node.applied_index();
        if running.node.snapshot_index() > running.applied {
            // The snapshot of another member has replaced the log.
            running.records = running.records.split_off(&(running.node.snapshot_index() + 1));
        }
        let mut found = Vec::new();
        while running.applied < applied {
            running.applied += 1;
            found.push((running.applied, running.records.remove(&running.applied)));
        }
        let leads_in = running.node.is_leader().then(|| running.node.term());
        let has_begun_to_lead = leads_in.is_some() && leads_in != running.leads_in;
        running.leads_in = leads_in;
        let id = self.hosts[host].id;
        for (index, entry) in found {
            let checked = match entry {
                Some((term, data)) => self.record.borrow_mut().history.applied(index, term, &data),
                // It is in a snapshot.
                None if index <= self.record.borrow().history.last_index() => Ok(Effects::default()),
                None => Err(format!("A: entry {index} is in a snapshot, and no node has applied it")),
            };
            match checked {
                Ok(effects) => self.check_effects(&effects),
                Err(what) => return self.fail(format!("{what} (node {id})")),
            }
        }
        if let (Some(term), true) = (leads_in, has_begun_to_lead) {
            self.note(format_args!("node {id} leads in term {term}"));
            self.count("path: election");
            if self.hosts.iter().enumerate().any(|(other, machine)| other != host && machine.leads()) {
                self.count("path: two nodes believe to lead");
            }
            if let Some(other) = self.leaders.insert(term, id).filter(|other| *other != id) {
                self.fail(format!("M: node {other} and node {id} lead in term {term}"));
            }
        }
        self.compared += 1;
        if self.compared.is_multiple_of(64) {
            self.compare(host);
        }
    }

    /// Compares the state of a node with the judge's, if both are at the same entry.
    fn compare(&self, host: usize) {
        let Some(running) = &self.hosts[host].running else { return };
        let mut record = self.record.borrow_mut();
        if running.applied == record.history.last_index()
            && running.node.machine().snapshot() != record.history.model().snapshot()
        {
            let what = format!("A: the state of node {} differs at entry {}", self.hosts[host].id, running.applied);
            record.fail(what);
        }
    }

    /// Checks what was committed against what the clients believe.
    fn check_effects(&mut self, effects: &Effects) {
        for ended in &effects.ended {
            let is_expired = ended.how == Ending::SessionEnded(SessionEnd::Expired);
            let mut is_known = false;
            for at in 0..self.clients.len() {
                let client = &self.clients[at];
                let Some(process) = &client.process else { continue };
                let held = client.shared.held.borrow();
                let Some(held) = held.get(&ended.token) else { continue };
                is_known = true;
                if ended.how == Ending::Released && !held.is_released {
                    self.fail(format!("M: {} was released, and its holder, client {at}, has not", ended.token));
                }
                if is_expired {
                    process.set_time(self.client_time(at));
                    let is_lost = process.enter(|| matches!(held.guard.guard().standing(), Standing::Lost(_)));
                    if is_lost {
                        self.count(match client.is_paused {
                            true => "path: holder lost its lock while paused",
                            false => "path: holder told of its loss before the engine ended the session",
                        });
                    } else if self.is_tame(at) {
                        self.fail(format!("N: {} was ended, and its holder, client {at}, was not told", ended.token));
                    }
                }
            }
            if !is_known && ended.how == Ending::Released {
                self.count("path: grant that nobody waited for");
            }
        }
        for _ in &effects.expired {
            self.count("path: session expired");
        }
        if !effects.granted.is_empty() && self.hosts.iter().any(|machine| {
            machine.running.as_ref().is_some_and(|running| running.node.leader().is_none())
        }) {
            self.count("path: grant during an election");
        }
        for token in &effects.granted {
            self.check_exclusive(*token);
        }
        let mut record = self.record.borrow_mut();
        for what in &effects.paths {
            record.count(what);
        }
    }

    /// Checks that no other client counts on a lock that was granted.
    fn check_exclusive(&self, token: palisade_core::Token) {
        let (locks, forced) = {
            let record = self.record.borrow();
            let Some(grant) = record.history.grants.get(&token) else { return };
            let is_forced = |other: &palisade_core::Token| {
                record.history.grants.get(other).is_some_and(|grant| {
                    matches!(grant.ended, Some((_, Ending::Forced(_))))
                })
            };
            let held = self.clients.iter().flat_map(|client| {
                client.shared.held.borrow().keys().copied().collect::<Vec<_>>()
            });
            (grant.locks.clone(), held.filter(is_forced).collect::<BTreeSet<_>>())
        };
        for (at, client) in self.clients.iter().enumerate() {
            let Some(process) = client.process.as_ref().filter(|_| self.is_tame(at)) else { continue };
            process.set_time(self.client_time(at));
            for (other, held) in client.shared.held.borrow().iter() {
                let guard = held.guard.guard();
                let is_same_lock = guard.locks().iter().any(|lock| locks.contains(lock));
                let is_excluded = *other >= token || held.is_released || !held.is_exclusive || forced.contains(other);
                if is_same_lock && !is_excluded {
                    let is_lost = process.enter(|| matches!(guard.standing(), Standing::Lost(_)));
                    if !is_lost {
                        self.fail(format!("M: {token} was granted, and client {at} counts on {other} of {locks:?}"));
                    }
                }
            }
        }
    }

    // The network between nodes.

    fn send(&mut self, host: usize, message: PeerMessage) {
        let is_cut = self.cut.contains(&(message.from(), message.to()));
        let is_lost = is_cut || (self.dice.roll(40) == 0 && !self.is_calm.get());
        let member = message.to();
        if message.needs_snapshot() {
            let input = Input::SnapshotSent { member, has_arrived: !is_lost };
            // The node is in the middle of its output, and learns it afterwards.
            let time = self.host_time(host);
            if let Some(running) = &mut self.hosts[host].running {
                running.node.step(time, input);
            }
        }
        if is_lost {
            return self.count("fault: message lost");
        }
        let delay = self.latency();
        if delay > Duration::from_millis(20) {
            self.count("fault: message late");
        }
        if self.dice.roll(60) == 0 && !message.needs_snapshot() {
            self.count("fault: message repeated");
            let later = self.latency() + self.random_time(Duration::from_millis(500));
            if let Ok(copy) = PeerMessage::decode(&message.encode()) {
                self.plan_in(later, Happening::Message(copy));
            }
        }
        self.plan_in(delay, Happening::Message(message));
    }

    pub(super) fn host_of(&self, member: u64) -> Option<usize> {
        self.hosts.iter().position(|machine| machine.id == member)
    }

    fn deliver(&mut self, message: PeerMessage) {
        let Some(to) = self.host_of(message.to()) else { return };
        // Bytes come over a wire.
        let message = match PeerMessage::decode(&message.encode()) {
            Ok(message) => message,
            Err(error) => return self.fail(format!("A: a message cannot be read: {error}")),
        };
        if !message.needs_snapshot() {
            return self.arrive(to, Arrival::Input(Input::Received(message)));
        }
        let Some(from) = self.host_of(message.from()) else { return };
        if let Ok(Some(snapshot)) = read_snapshot(&self.hosts[from].disk) {
            self.count("path: snapshot sent");
            let is_learner = self.hosts[from].running.as_ref().is_some_and(|running| {
                running.node.membership().learners.contains(&message.to())
            });
            if is_learner {
                self.count("path: snapshot sent while a member joins");
            }
            self.arrive(to, Arrival::Snapshot(message, Box::new(snapshot)));
        }
    }

    // Clients.

    fn client_shared(&self, number: usize, life: u64) -> Rc<Shared> {
        let ports = (0..self.hosts.len()).map(|host| format!("node:{}", FIRST_PORT + host as u16));
        let seed = self.plan.seed ^ (number as u64 + 1) << 32 ^ life << 48;
        Rc::new(Shared {
            number,
            url: format!("palisade://{}", ports.collect::<Vec<_>>().join(",")),
            ttl: self.plan.ttl,
            record: self.record.clone(),
            dice: RefCell::new(Dice::new(seed)),
            counters: (0..COUNTED.len()).map(Counter::new).collect(),
            held: RefCell::default(),
            is_calm: self.is_calm.clone(),
            is_ending: self.is_ending.clone(),
            calm_cycles: Cell::new(0),
            acknowledged: self.acknowledged.clone(),
            unknown: self.unknown.clone(),
            is_closed: Cell::new(false),
            think: self.plan.think,
        })
    }

    fn start_client(&mut self, client: usize) {
        if self.clients[client].process.is_some() || self.is_ending.get() {
            return;
        }
        let life = self.clients[client].life + 1;
        let shared = self.client_shared(client, life);
        let dials = Dials::default();
        let process = Process::new(dials.clone(), self.plan.seed.wrapping_mul(31) + life * 1_000 + client as u64);
        process.spawn(application::run(shared.clone()));
        let rate = self.dice.roll(2 * TAME as usize) as i64 - TAME;
        self.note(format_args!("client {client} starts"));
        self.clients[client] = Client {
            process: Some(process),
            life,
            shared,
            dials,
            clock: Clock::start(self.now, rate),
            suspended: Duration::ZERO,
            is_paused: false,
            wake_at: None,
            connections: BTreeSet::new(),
        };
        self.run_client(client);
    }

    pub(super) fn kill_client(&mut self, client: usize) {
        let Some(process) = self.clients[client].process.take() else { return };
        self.note(format_args!("client {client} is killed"));
        // Guards that the world has seen would outlive the process.
        self.clients[client].shared.held.borrow_mut().clear();
        drop(process);
        self.clients[client].wake_at = None;
        for connection in std::mem::take(&mut self.clients[client].connections) {
            let delay = self.latency();
            self.plan_in(delay, Happening::Close(connection));
        }
    }

    fn client_time(&self, client: usize) -> Time {
        let it = &self.clients[client];
        let monotonic = it.clock.read(self.now);
        let since = self.suspended_at.get(&client).filter(|_| it.clock.rate().is_none());
        let suspended = it.suspended + since.map_or(Duration::ZERO, |since| self.now - *since);
        Time { monotonic, boot: monotonic + suspended }
    }

    fn is_tame(&self, client: usize) -> bool {
        self.are_nodes_tame && self.clients[client].clock.rate().is_none_or(|rate| rate.abs() <= TAME)
    }

    /// Lets a client do what it can, and carries out what it wants.
    pub(super) fn run_client(&mut self, client: usize) {
        let time = self.client_time(client);
        let it = &mut self.clients[client];
        let Some(process) = it.process.as_mut().filter(|_| !it.is_paused) else { return };
        process.set_time(time);
        process.run();
        let life = it.life;
        let dialled = it.dials.take();
        let calls: Vec<_> = it.shared.counters.iter().flat_map(Counter::take_requests).collect();
        let mut sent = Vec::new();
        for connection in &it.connections {
            let Some(open) = self.connections.get(connection) else { continue };
            let mut pipe = open.pipe.borrow_mut();
            sent.push((*connection, pipe.take_outgoing(), pipe.is_closed()));
        }
        let wake_at = process.next_timer().and_then(|at| it.clock.when(at));
        let replan = wake_at.filter(|at| it.wake_at.is_none_or(|planned| *at != planned));
        if wake_at.is_none() || replan.is_some() {
            it.wake_at = wake_at;
        }
        if let Some(at) = replan {
            let at = at.max(self.now + Duration::from_nanos(1));
            self.clients[client].wake_at = Some(at);
            self.plan_at(at, Happening::Wake { client, at });
        }
        for dial in dialled {
            let host = usize::from(dial.port - FIRST_PORT);
            let delay = self.latency();
            self.plan_in(delay, Happening::Connect { client, life, host, outcome: dial.outcome });
        }
        for call in calls {
            self.call(client, life, call);
        }
        for (connection, bytes, is_closed) in sent {
            if !bytes.is_empty() {
                self.send_bytes(connection, bytes, true);
            }
            if is_closed {
                self.clients[client].connections.remove(&connection);
                let delay = self.latency() + RETRANSMIT / 100;
                self.plan_in(delay, Happening::Close(connection));
            }
        }
    }

    fn accept(
        &mut self,
        client: usize,
        life: u64,
        via: usize,
        outcome: oneshot::Sender<std::io::Result<Stream>>,
    ) {
        if self.clients[client].life != life || self.client_cut.contains(&(client, via)) {
            // The attempt is never answered.
            return self.keep_pending(outcome);
        }
        let delay = self.latency();
        let machine = &self.hosts[via];
        let Some(running) = &machine.running else {
            return self.plan_in(delay, Happening::Unreachable { client, life, outcome });
        };
        if machine.is_paused {
            // The system accepts, and nothing answers.
            return self.keep_pending(outcome);
        }
        // A node that follows relays its clients to the leader.
        let leader = running.node.leader().filter(|leader| running.node.is_following() && *leader != machine.id);
        let leader = leader.and_then(|leader| self.host_of(leader)).filter(|leader| {
            let id = self.hosts[*leader].id;
            self.hosts[*leader].is_up() && !self.cut.contains(&(machine.id, id)) && !self.cut.contains(&(id, machine.id))
        });
        let host = leader.unwrap_or(via);
        if leader.is_some() {
            self.count("path: connection relayed");
        }
        self.last_connection += 1;
        let connection = self.last_connection;
        let time = self.host_time(host);
        let start = self.hosts[host].starts;
        if let Some(running) = &mut self.hosts[host].running {
            running.connect(time, connection, client, leader.is_some());
        }
        let open = Connection {
            client,
            life,
            host,
            via,
            start,
            pipe: Rc::new(RefCell::new(Pipe::default())),
            to_host: VecDeque::new(),
            to_client: VecDeque::new(),
            last_to_host: Duration::ZERO,
            last_to_client: Duration::ZERO,
            is_over: false,
        };
        self.connections.insert(connection, open);
        self.clients[client].connections.insert(connection);
        self.settle(host);
        self.plan_in(delay, Happening::Connected { client, life, connection, outcome });
    }

    /// Keeps an attempt to connect without an answer: the client gives up by its own clock.
    fn keep_pending(&mut self, outcome: oneshot::Sender<std::io::Result<Stream>>) {
        // Dropping it leaves the attempt pending.
        drop(outcome);
    }

    fn send_bytes(&mut self, connection: u64, bytes: Vec<u8>, is_to_host: bool) {
        // Bytes may arrive in two parts.
        if bytes.len() > 1 && self.dice.roll(12) == 0 {
            let (first, second) = bytes.split_at(1 + self.dice.roll(bytes.len() - 1));
            let (first, second) = (first.to_vec(), second.to_vec());
            self.send_part(connection, first, is_to_host);
            return self.send_part(connection, second, is_to_host);
        }
        self.send_part(connection, bytes, is_to_host);
    }

    fn send_part(&mut self, connection: u64, bytes: Vec<u8>, is_to_host: bool) {
        let delay = self.latency();
        let Some(open) = self.connections.get_mut(&connection) else { return };
        let (parts, last) = match is_to_host {
            true => (&mut open.to_host, &mut open.last_to_host),
            false => (&mut open.to_client, &mut open.last_to_client),
        };
        parts.push_back(bytes);
        let at = (self.now + delay).max(*last);
        *last = at;
        let what = if is_to_host { Happening::ToHost(connection) } else { Happening::ToClient(connection) };
        self.plan_at(at, what);
    }

    /// Whether bytes of a connection get through now.
    fn gets_through(&self, open: &Connection) -> bool {
        let (via, host) = (self.hosts[open.via].id, self.hosts[open.host].id);
        !self.client_cut.contains(&(open.client, open.via))
            && !self.cut.contains(&(via, host))
            && !self.cut.contains(&(host, via))
            && (open.via == open.host || self.hosts[open.via].is_up())
    }

    fn to_host(&mut self, connection: u64) {
        let Some(open) = self.connections.get_mut(&connection) else { return };
        let host = open.host;
        if open.is_over || self.hosts[host].running.is_none() || self.hosts[host].starts != open.start {
            open.to_host.clear();
            return self.reset(connection);
        }
        if !self.connections.get(&connection).is_some_and(|open| self.gets_through(open)) {
            return self.plan_in(RETRANSMIT, Happening::ToHost(connection));
        }
        let Some(bytes) = self.connections.get_mut(&connection).and_then(|open| open.to_host.pop_front()) else {
            return;
        };
        self.arrive(host, Arrival::Bytes(connection, bytes));
    }

    fn to_client(&mut self, connection: u64) {
        let Some(open) = self.connections.get(&connection) else { return };
        if !self.gets_through(open) {
            return self.plan_in(RETRANSMIT, Happening::ToClient(connection));
        }
        let (client, life) = (open.client, open.life);
        let Some(open) = self.connections.get_mut(&connection) else { return };
        let Some(bytes) = open.to_client.pop_front() else { return };
        open.pipe.borrow_mut().deliver(&bytes);
        if self.clients[client].life == life {
            self.run_client(client);
        }
    }

    /// Breaks a connection on the client's side.
    fn reset(&mut self, connection: u64) {
        let Some(open) = self.connections.get_mut(&connection) else { return };
        open.is_over = true;
        open.pipe.borrow_mut().reset();
        let (client, life) = (open.client, open.life);
        if self.clients[client].life == life {
            self.run_client(client);
        }
    }

    /// Breaks a connection on both sides.
    pub(super) fn break_connection(&mut self, connection: u64) {
        let Some(open) = self.connections.get(&connection) else { return };
        let host = open.host;
        let delay = self.latency();
        self.plan_in(delay, Happening::Reset(connection));
        self.arrive(host, Arrival::Closed(connection));
    }

    fn close_at_host(&mut self, connection: u64) {
        let Some(open) = self.connections.get(&connection) else { return };
        if !self.gets_through(open) {
            return self.plan_in(RETRANSMIT, Happening::Close(connection));
        }
        let (host, is_current) = (open.host, self.hosts[open.host].starts == open.start);
        self.connections.remove(&connection);
        if is_current {
            self.arrive(host, Arrival::Closed(connection));
        }
    }

    /// Breaks the connections of all clients to a node. If the machine has lost its power, they do not learn it at once.
    pub(super) fn disconnect_all(&mut self, host: usize, is_told: bool) {
        if let Some(running) = &mut self.hosts[host].running {
            running.connections.clear();
        }
        let of_host = self.connections.iter_mut().filter(|(_, open)| open.host == host || open.via == host);
        let broken: Vec<_> = of_host
            .map(|(id, open)| {
                open.is_over = true;
                *id
            })
            .collect();
        for connection in broken {
            if is_told {
                let delay = self.latency();
                self.plan_in(delay, Happening::Reset(connection));
            }
        }
    }

    // Resources.

    fn call(&mut self, client: usize, life: u64, call: Call) {
        let is_disturbed = !self.is_calm.get();
        if is_disturbed && self.dice.roll(20) == 0 {
            self.count("fault: request to a resource lost");
            let Call { caller, .. } = call;
            return self.plan_in(RESOURCE_TIMEOUT, Happening::Reply { client, life, caller, reply: None });
        }
        if self.dice.roll(10) == 0 {
            let longest = if self.dice.roll(4) == 0 { 4 * self.plan.ttl } else { self.plan.ttl };
            let delay = self.random_time(longest);
            self.plan_in(delay, Happening::Repeat { counter: call.counter, request: call.request });
        }
        // A write may sit in a proxy for a while.
        let delay = match is_disturbed && self.dice.roll(15) == 0 {
            true => self.random_time(3 * self.plan.ttl),
            false => self.latency(),
        };
        self.plan_in(delay, Happening::Request { client, life, call });
    }

    fn request(&mut self, client: usize, life: u64, call: Call) {
        let Call { counter, request, caller } = call;
        let reply = self.answer(counter, request);
        // The answer may be lost.
        let is_lost = !self.is_calm.get() && self.dice.roll(20) == 0;
        let (reply, delay) = if is_lost { (None, RESOURCE_TIMEOUT) } else { (reply, self.latency()) };
        self.plan_in(delay, Happening::Reply { client, life, caller, reply });
    }

    fn answer(&mut self, counter: usize, request: Request) -> Reply {
        if self.dice.roll(100) == 0 && !self.is_calm.get() {
            self.count("fault: resource restarted");
            self.counters[counter].restart();
        }
        let (answered, is_repeated) = {
            let state = &mut self.counters[counter];
            let before = state.value();
            let answered = state.handle(request);
            let is_repeated = matches!((&answered, request), (Ok(Answer::Written(Some(_))), Request::Write(_, Some(_))))
                && state.value() == before;
            (answered, is_repeated)
        };
        if is_repeated {
            self.count("path: write repeated");
        }
        match answered {
            Ok(answer) => Some(answer),
            Err(what) => {
                self.fail(format!("{what} (counter {counter})"));
                None
            }
        }
    }

    // The end.

    /// Ends all faults, and checks that everything goes on and comes to an end.
    pub(super) fn finish(&mut self) {
        self.heal();
        let bound = Duration::from_secs(60) + 20 * self.plan.ttl + 2 * self.plan.think;
        let limit = self.now + bound;
        let is_done = |world: &World| {
            let mut clients = world.clients.iter();
            clients.all(|client| client.shared.calm_cycles.get() >= 2) && world.is_settled()
        };
        while !is_done(self) && !self.has_failed() {
            if self.now >= limit {
                let cycles: Vec<_> = self.clients.iter().map(|client| client.shared.calm_cycles.get()).collect();
                let what = format!("L: no progress within {bound:?} without faults: {cycles:?}, {}", self.state());
                return self.fail(what);
            }
            self.run_until(self.now + Duration::from_millis(500));
            self.administer();
        }
        self.is_ending.set(true);
        let limit = self.now + bound;
        let is_empty = |world: &World| {
            let record = world.record.borrow();
            record.history.model().session_count() == 0 && record.history.locks_in_use() == 0
        };
        let are_closed = |world: &World| world.clients.iter().all(|client| client.shared.is_closed.get());
        while !(are_closed(self) && is_empty(self) && self.is_settled()) && !self.has_failed() {
            if self.now >= limit {
                return self.fail(format!("L: sessions or locks are left after {bound:?}: {}", self.state()));
            }
            self.run_until(self.now + Duration::from_millis(500));
        }
        if self.has_failed() {
            return;
        }
        (0..self.hosts.len()).for_each(|host| self.compare(host));
        for counter in 0..COUNTED.len() {
            let (value, acknowledged) = (self.counters[counter].value(), self.acknowledged.borrow()[counter]);
            let most = acknowledged + self.unknown.borrow()[counter];
            if value < acknowledged || value > most {
                self.fail(format!("U: counter {counter} is {value}, {acknowledged} to {most} were acknowledged"));
            }
        }
    }

    /// Describes the nodes, for the report of a failure.
    fn state(&self) -> String {
        let nodes = self.hosts.iter().map(|machine| match &machine.running {
            Some(running) => {
                let report = running.node.cluster_report();
                format!("node {}: {report:?}", machine.id)
            }
            None => format!("node {} is down", machine.id),
        });
        let record = self.record.borrow();
        let model = record.history.model();
        let rest = format!("{} sessions, {} locks in use", model.session_count(), record.history.locks_in_use());
        format!("{rest}; {}", nodes.collect::<Vec<_>>().join("; "))
    }

    /// Whether all members run and have applied the same.
    fn is_settled(&self) -> bool {
        let Some((_, membership)) = self.members() else { return false };
        if membership.is_joint() || !membership.learners.is_empty() {
            return false;
        }
        let last = self.record.borrow().history.last_index();
        membership.members.keys().all(|member| {
            let machine = self.host_of(*member).map(|host| &self.hosts[host]);
            machine.and_then(|machine| machine.running.as_ref()).is_some_and(|running| running.applied == last)
        })
    }

    /// Returns what has happened.
    pub(super) fn into_outcome(self) -> Outcome {
        let World { record, now, faults, clients, .. } = self;
        // Tasks of the clients share the record.
        drop(clients);
        let mut record = record.borrow_mut();
        Outcome {
            failure: record.failure.take(),
            trace: std::mem::take(&mut record.trace),
            coverage: std::mem::take(&mut record.coverage),
            simulated: now,
            faults,
            grants: record.history.grants.len(),
        }
    }
}
