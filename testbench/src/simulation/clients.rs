//! The clients: their processes, and their connections to the nodes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use palisade::simulation::{Process, Stream, Time};
use tokio::sync::oneshot;

use super::application::{self, COUNTED, Shared};
use super::clock::Clock;
use super::host::Arrival;
use super::resource::Counter;
use super::stream::{Dials, Pipe};
use super::world::{Client, Connection, MAX_DRIFT_PPM, World, WorldEvent};
use crate::faulty_disk::Rng;

/// The port of a client's URL that stands for the first machine.
const FIRST_PORT: u16 = 7001;
/// How soon lost bytes are sent again.
const RETRANSMIT: Duration = Duration::from_millis(200);

impl World {
    pub(super) fn client_shared(&self, number: usize, incarnation: u64) -> Rc<Shared> {
        let ports = (0..self.hosts.len()).map(|host| format!("node:{}", FIRST_PORT + host as u16));
        let seed = self.plan.seed ^ (number as u64 + 1) << 32 ^ incarnation << 48;
        Rc::new(Shared {
            number,
            url: format!("palisade://{}", ports.collect::<Vec<_>>().join(",")),
            ttl: self.plan.ttl,
            record: self.record.clone(),
            rng: RefCell::new(Rng::new(seed)),
            counters: (0..COUNTED.len()).map(Counter::new).collect(),
            held: RefCell::default(),
            are_faults_over: self.are_faults_over.clone(),
            is_ending: self.is_ending.clone(),
            cycles_after_faults: Cell::new(0),
            acknowledged: self.acknowledged.clone(),
            unknown: self.unknown.clone(),
            is_closed: Cell::new(false),
            think: self.plan.think,
        })
    }

    pub(super) fn start_client(&mut self, client: usize) {
        if self.clients[client].process.is_some() || self.is_ending.get() {
            return;
        }
        let incarnation = self.clients[client].incarnation + 1;
        let shared = self.client_shared(client, incarnation);
        let dials = Dials::default();
        let process = Process::new(
            dials.clone(),
            self.plan.seed.wrapping_mul(31).wrapping_add(incarnation * 1_000 + client as u64),
        );
        process.spawn(application::run(shared.clone()));
        let rate = self.rng.below(2 * MAX_DRIFT_PPM as usize) as i64 - MAX_DRIFT_PPM;
        self.note(format_args!("client {client} starts"));
        self.clients[client] = Client {
            process: Some(process),
            incarnation,
            shared,
            dials,
            clock: Clock::start(self.now, rate),
            drifted_until: Duration::ZERO,
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
            self.schedule_in(delay, WorldEvent::Close(connection));
        }
    }

    pub(super) fn client_time(&self, client: usize) -> Time {
        let it = &self.clients[client];
        let monotonic = it.clock.read(self.now);
        let since = self.suspended_at.get(&client).filter(|_| it.clock.rate().is_none());
        let suspended = it.suspended + since.map_or(Duration::ZERO, |since| self.now - *since);
        Time { monotonic, boot: monotonic + suspended }
    }

    pub(super) fn is_within_drift(&self, client: usize) -> bool {
        self.now >= self.leader_drifted_until.max(self.clients[client].drifted_until)
    }

    /// Sets the rate of a client's clock.
    pub(super) fn set_rate_of_client(&mut self, client: usize, rate: i64) {
        let (now, ttl) = (self.now, self.plan.ttl);
        let it = &mut self.clients[client];
        it.clock.set_rate(now, Some(rate));
        if rate.abs() > MAX_DRIFT_PPM {
            it.drifted_until = Duration::MAX;
        } else if it.drifted_until == Duration::MAX {
            it.drifted_until = now + 2 * ttl;
        }
    }

    /// Lets a client do what it can, and carries out what it wants.
    pub(super) fn run_client(&mut self, client: usize) {
        let time = self.client_time(client);
        let it = &mut self.clients[client];
        let Some(process) = it.process.as_mut().filter(|_| !it.is_paused) else { return };
        process.set_time(time);
        process.run();
        let incarnation = it.incarnation;
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
            self.schedule_at(at, WorldEvent::Wake { client, at });
        }
        for dial in dialled {
            let host = usize::from(dial.port - FIRST_PORT);
            let delay = self.latency();
            self.schedule_in(delay, WorldEvent::Connect { client, incarnation, host, outcome: dial.outcome });
        }
        for call in calls {
            self.call(client, incarnation, call);
        }
        for (connection, bytes, is_closed) in sent {
            if !bytes.is_empty() {
                self.send_bytes(connection, bytes, true);
            }
            if is_closed {
                self.clients[client].connections.remove(&connection);
                let delay = self.latency() + RETRANSMIT / 100;
                self.schedule_in(delay, WorldEvent::Close(connection));
            }
        }
    }

    pub(super) fn accept(
        &mut self,
        client: usize,
        incarnation: u64,
        via: usize,
        outcome: oneshot::Sender<std::io::Result<Stream>>,
    ) {
        if self.clients[client].incarnation != incarnation || self.client_cut.contains(&(client, via)) {
            // The attempt is never answered.
            return self.keep_pending(outcome);
        }
        let delay = self.latency();
        let machine = &self.hosts[via];
        if machine.is_dark {
            return self.keep_pending(outcome);
        }
        let Some(running) = &machine.running else {
            return self.schedule_in(delay, WorldEvent::Unreachable { client, incarnation, outcome });
        };
        if machine.is_paused {
            // The system accepts, and nothing answers.
            return self.keep_pending(outcome);
        }
        // A node that follows relays its clients to the leader.
        let leader =
            running.node.leader().filter(|leader| running.node.is_following() && *leader != machine.member());
        let leader = leader.and_then(|leader| self.host_of(leader)).filter(|leader| {
            let id = self.hosts[*leader].id;
            self.hosts[*leader].is_up()
                && self.hosts[*leader].member() == id
                && !self.cut.contains(&(machine.id, id))
                && !self.cut.contains(&(id, machine.id))
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
            incarnation,
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
        self.drain_output(host);
        self.schedule_in(delay, WorldEvent::Connected { client, incarnation, connection, outcome });
    }

    /// Keeps an attempt to connect without an answer: the client gives up by its own clock.
    pub(super) fn keep_pending(&mut self, outcome: oneshot::Sender<std::io::Result<Stream>>) {
        // Dropping it leaves the attempt pending.
        drop(outcome);
    }

    pub(super) fn send_bytes(&mut self, connection: u64, bytes: Vec<u8>, is_to_host: bool) {
        // Bytes may arrive in two parts.
        if bytes.len() > 1 && self.rng.below(12) == 0 {
            let (first, second) = bytes.split_at(1 + self.rng.below(bytes.len() - 1));
            let (first, second) = (first.to_vec(), second.to_vec());
            self.send_part(connection, first, is_to_host);
            return self.send_part(connection, second, is_to_host);
        }
        self.send_part(connection, bytes, is_to_host);
    }

    pub(super) fn send_part(&mut self, connection: u64, bytes: Vec<u8>, is_to_host: bool) {
        let delay = self.latency();
        let Some(open) = self.connections.get_mut(&connection) else { return };
        let (parts, last) = match is_to_host {
            true => (&mut open.to_host, &mut open.last_to_host),
            false => (&mut open.to_client, &mut open.last_to_client),
        };
        parts.push_back(bytes);
        let at = (self.now + delay).max(*last);
        *last = at;
        let what = if is_to_host { WorldEvent::ToHost(connection) } else { WorldEvent::ToClient(connection) };
        self.schedule_at(at, what);
    }

    /// Whether bytes of a connection get through now.
    pub(super) fn gets_through(&self, open: &Connection) -> bool {
        let (via, host) = (self.hosts[open.via].id, self.hosts[open.host].id);
        !self.client_cut.contains(&(open.client, open.via))
            && !self.cut.contains(&(via, host))
            && !self.cut.contains(&(host, via))
            && !self.hosts[open.via].is_dark
            && !self.hosts[open.host].is_dark
            && (open.via == open.host || self.hosts[open.via].is_up())
    }

    pub(super) fn deliver_to_host(&mut self, connection: u64) {
        let Some(open) = self.connections.get_mut(&connection) else { return };
        let host = open.host;
        if self.hosts[host].is_dark || self.hosts[open.via].is_dark {
            return self.schedule_in(RETRANSMIT, WorldEvent::ToHost(connection));
        }
        if open.is_over || self.hosts[host].running.is_none() || self.hosts[host].starts != open.start {
            open.to_host.clear();
            return self.reset(connection);
        }
        if !self.connections.get(&connection).is_some_and(|open| self.gets_through(open)) {
            return self.schedule_in(RETRANSMIT, WorldEvent::ToHost(connection));
        }
        let Some(bytes) = self.connections.get_mut(&connection).and_then(|open| open.to_host.pop_front()) else {
            return;
        };
        self.arrive(host, Arrival::Bytes(connection, bytes));
    }

    pub(super) fn deliver_to_client(&mut self, connection: u64) {
        let Some(open) = self.connections.get(&connection) else { return };
        if !self.gets_through(open) {
            return self.schedule_in(RETRANSMIT, WorldEvent::ToClient(connection));
        }
        let (client, incarnation) = (open.client, open.incarnation);
        let Some(open) = self.connections.get_mut(&connection) else { return };
        let Some(bytes) = open.to_client.pop_front() else { return };
        open.pipe.borrow_mut().deliver(&bytes);
        if self.clients[client].incarnation == incarnation {
            self.run_client(client);
        }
    }

    /// Breaks a connection on the client's side.
    pub(super) fn reset(&mut self, connection: u64) {
        let Some(open) = self.connections.get_mut(&connection) else { return };
        open.is_over = true;
        open.pipe.borrow_mut().reset();
        let (client, incarnation) = (open.client, open.incarnation);
        if self.clients[client].incarnation == incarnation {
            self.run_client(client);
        }
    }

    /// Breaks a connection on both bound.
    pub(super) fn break_connection(&mut self, connection: u64) {
        let Some(open) = self.connections.get(&connection) else { return };
        let host = open.host;
        let delay = self.latency();
        self.schedule_in(delay, WorldEvent::Reset(connection));
        self.arrive(host, Arrival::Closed(connection));
    }

    pub(super) fn close_at_host(&mut self, connection: u64) {
        let Some(open) = self.connections.get(&connection) else { return };
        if !self.gets_through(open) {
            return self.schedule_in(RETRANSMIT, WorldEvent::Close(connection));
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
                self.schedule_in(delay, WorldEvent::Reset(connection));
            }
        }
    }
}
