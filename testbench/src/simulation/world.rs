//! The world: machines, clients, the network and the resources, in one thread and one time. The earliest event in the queue comes
//! next.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use palisade::simulation::{Process, Stream};
use palisade_core::{LockNames, Secret, SessionId};
use palisade_server::node::Input;
use palisade_server::replica::PeerMessage;
use tokio::sync::oneshot;

use super::Outcome;
use super::application::{COUNTED, Shared};
use super::clock::Clock;
use super::faults::Damage;
use super::host::{Arrival, Host};
use super::judge::Record;
use super::plan::Plan;
use super::redis_client::RedisClient;
use super::resource::{Call, CounterState, Reply, Request};
use super::stream::{Dials, SharedPipe, stream};
use crate::faulty_disk::Rng;

/// Two clocks that differ by less than this, in millionths, are within what the clients allow for.
pub(super) const MAX_DRIFT_PPM: i64 = 3_000;

/// An event of the simulation, scheduled for some time.
pub(super) enum WorldEvent {
    Tick {
        host: usize,
        start: u64,
    },
    /// A write reaches the disk.
    Persist {
        host: usize,
        start: u64,
    },
    /// A snapshot is written.
    Compact {
        host: usize,
        start: u64,
    },
    Message(Box<PeerMessage>),
    /// A client connects.
    Connect {
        client: usize,
        incarnation: u64,
        host: usize,
        outcome: oneshot::Sender<std::io::Result<Stream>>,
    },
    Connected {
        client: usize,
        incarnation: u64,
        connection: u64,
        outcome: oneshot::Sender<std::io::Result<Stream>>,
    },
    Unreachable {
        client: usize,
        incarnation: u64,
        outcome: oneshot::Sender<std::io::Result<Stream>>,
    },
    ToHost(u64),
    ToClient(u64),
    /// A client's connection breaks.
    Reset(u64),
    /// A node learns that a client has closed its connection.
    Close(u64),
    Wake {
        client: usize,
        at: Duration,
    },
    /// A request reaches a counter.
    Request {
        client: usize,
        incarnation: u64,
        call: Call,
    },
    /// A copy of a request reaches a counter late.
    Repeat {
        counter: usize,
        request: Request,
    },
    Reply {
        client: usize,
        incarnation: u64,
        caller: oneshot::Sender<Reply>,
        reply: Reply,
    },
    Suspect {
        host: usize,
        member: u64,
    },
    Restart {
        host: usize,
    },
    /// The power of a machine fails for a moment.
    PowerCut {
        host: usize,
        start: u64,
    },
    ResumeHost {
        host: usize,
        start: u64,
    },
    StartClient {
        client: usize,
    },
    ResumeClient {
        client: usize,
        incarnation: u64,
    },
    /// Links that were cut are mended.
    HealLinks {
        cut: Vec<(u64, u64)>,
    },
    HealClient {
        client: usize,
        host: usize,
    },
    RepairDisk {
        host: usize,
    },
    /// A client of Redis asks the nodes that believe that they lead.
    ReadAtLeaders,
    /// A client of Redis extends locks.
    ExtendRedisLock(LockNames, Secret),
    /// A disk is damaged as soon as the cluster can do without it.
    Damage {
        host: usize,
        how: Damage,
        until: Duration,
    },
    /// An operator adds a machine.
    Add {
        host: usize,
        until: Duration,
    },
    Fault,
}

/// A connection of a client, perhaps relayed by another node.
pub(super) struct Connection {
    pub(super) client: usize,
    pub(super) incarnation: u64,
    pub(super) host: usize,
    /// The node that the client has connected to, which relays to the host.
    pub(super) via: usize,
    /// Which start of the host it belongs to.
    pub(super) start: u64,
    pub(super) pipe: SharedPipe,
    pub(super) to_host: VecDeque<Vec<u8>>,
    pub(super) to_client: VecDeque<Vec<u8>>,
    pub(super) last_to_host: Duration,
    pub(super) last_to_client: Duration,
    pub(super) is_over: bool,
}

/// A client's machine.
pub(super) struct Client {
    pub(super) process: Option<Process>,
    /// How often it was started.
    pub(super) incarnation: u64,
    pub(super) shared: Rc<Shared>,
    pub(super) dials: Dials,
    pub(super) clock: Clock,
    /// Its clock may have misled it until then, because it was far off.
    pub(super) drifted_until: Duration,
    /// How long its machine was suspended.
    pub(super) suspended: Duration,
    pub(super) is_paused: bool,
    pub(super) wake_at: Option<Duration>,
    pub(super) connections: BTreeSet<u64>,
}

/// The world.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) record: Rc<RefCell<Record>>,
    pub(super) now: Duration,
    pub(super) queue: BTreeMap<(Duration, u64), WorldEvent>,
    pub(super) last_scheduled: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) clients: Vec<Client>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) last_connection: u64,
    /// Links that are cut, from one member to another.
    pub(super) cut: BTreeSet<(u64, u64)>,
    pub(super) client_cut: BTreeSet<(usize, usize)>,
    pub(super) counters: Vec<CounterState>,
    pub(super) last_member: u64,
    /// The leader of each term.
    pub(super) leaders: BTreeMap<u64, u64>,
    pub(super) are_faults_over: Rc<Cell<bool>>,
    pub(super) is_ending: Rc<Cell<bool>>,
    pub(super) acknowledged: Rc<RefCell<[u64; COUNTED.len()]>>,
    pub(super) unknown: Rc<RefCell<[u64; COUNTED.len()]>>,
    /// The clock of a leader may have misled it until then, because it was far off. Only a leader counts TTLs.
    pub(super) leader_drifted_until: Duration,
    /// When the TTL of each session has begun, and the TTL.
    pub(super) ttls: BTreeMap<SessionId, (Duration, Duration)>,
    /// How many faults were injected.
    pub(super) faults: usize,
    pub(super) redis: RedisClient,
    /// How many messages have reached their nodes.
    pub(super) delivered: u64,
    /// Since when clients are paused.
    pub(super) suspended_at: BTreeMap<usize, Duration>,
}

impl World {
    pub(super) fn new(plan: Plan, is_whole: bool) -> World {
        let rng = Rng::new(plan.seed);
        let record = Rc::new(RefCell::new(Record::new(is_whole)));
        let machines = plan.nodes + plan.spares;
        let mut world = World {
            rng,
            record,
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            last_scheduled: 0,
            hosts: (1..=machines as u64).map(Host::new).collect(),
            clients: Vec::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            cut: BTreeSet::new(),
            client_cut: BTreeSet::new(),
            counters: COUNTED.iter().map(|_| CounterState::default()).collect(),
            last_member: machines as u64,
            leaders: BTreeMap::new(),
            are_faults_over: Rc::default(),
            is_ending: Rc::default(),
            acknowledged: Rc::default(),
            unknown: Rc::default(),
            leader_drifted_until: Duration::ZERO,
            ttls: BTreeMap::new(),
            faults: 0,
            redis: RedisClient::default(),
            delivered: 0,
            suspended_at: BTreeMap::new(),
            plan,
        };
        for host in 0..world.plan.nodes {
            if world.rng.below(8) == 0 {
                world.hosts[host].log_version = super::host::OLD_LOG;
            }
            world.start_host(host);
        }
        for client in 0..world.plan.clients {
            let shared = world.client_shared(client, 0);
            world.clients.push(Client {
                process: None,
                incarnation: 0,
                shared,
                dials: Dials::default(),
                clock: Clock::start(Duration::ZERO, 0),
                drifted_until: Duration::ZERO,
                suspended: Duration::ZERO,
                is_paused: false,
                wake_at: None,
                connections: BTreeSet::new(),
            });
            let at = world.random_time(Duration::from_secs(2));
            world.schedule_at(at, WorldEvent::StartClient { client });
        }
        if world.plan.faults > 0 {
            world.schedule_fault();
        }
        world
    }

    pub(super) fn schedule_at(&mut self, at: Duration, what: WorldEvent) {
        self.last_scheduled += 1;
        self.queue.insert((at.max(self.now), self.last_scheduled), what);
    }

    pub(super) fn schedule_in(&mut self, delay: Duration, what: WorldEvent) {
        self.schedule_at(self.now + delay, what);
    }

    pub(super) fn random_time(&mut self, longest: Duration) -> Duration {
        longest * self.rng.below(1_000) as u32 / 1_000
    }

    pub(super) fn note(&self, what: std::fmt::Arguments<'_>) {
        self.record.borrow_mut().note(what);
    }

    pub(super) fn count(&self, what: &'static str) {
        let mut record = self.record.borrow_mut();
        record.count(what);
        // Each message has its fate, which would fill the trace.
        if what.starts_with("fault: ") && !what.starts_with("fault: message") {
            record.note(format_args!("{what}"));
        }
    }

    pub(super) fn fail(&self, what: String) {
        self.record.borrow_mut().fail(what);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.record.borrow().failure.is_some()
    }

    /// Lets everything happen until then, or until a promise is broken.
    pub(super) fn run_until(&mut self, until: Duration) {
        while let Some(((at, _), _)) = self.queue.first_key_value() {
            if *at > until || self.has_failed() {
                break;
            }
            let Some(((at, _), what)) = self.queue.pop_first() else { break };
            self.now = at;
            self.record.borrow_mut().now = at;
            self.handle(what);
        }
        if !self.has_failed() {
            self.now = self.now.max(until);
        }
    }

    pub(super) fn handle(&mut self, what: WorldEvent) {
        match what {
            WorldEvent::Tick { host, start } => self.tick(host, start),
            WorldEvent::Persist { host, start } => self.persist(host, start),
            WorldEvent::Compact { host, start } => self.compact(host, start),
            WorldEvent::Message(message) => self.deliver(*message),
            WorldEvent::Connect { client, incarnation, host, outcome } => {
                self.accept(client, incarnation, host, outcome)
            }
            WorldEvent::Connected { client, incarnation, connection, outcome } => {
                if self.clients[client].incarnation == incarnation
                    && let Some(open) = self.connections.get(&connection)
                {
                    drop(outcome.send(Ok(stream(&open.pipe))));
                    self.run_client(client);
                }
            }
            WorldEvent::Unreachable { client, incarnation, outcome } => {
                drop(outcome.send(Err(std::io::ErrorKind::ConnectionRefused.into())));
                if self.clients[client].incarnation == incarnation {
                    self.run_client(client);
                }
            }
            WorldEvent::ToHost(connection) => self.deliver_to_host(connection),
            WorldEvent::ToClient(connection) => self.deliver_to_client(connection),
            WorldEvent::Reset(connection) => self.reset(connection),
            WorldEvent::Close(connection) => self.close_at_host(connection),
            WorldEvent::Wake { client, at } => {
                if self.clients[client].wake_at == Some(at) {
                    self.clients[client].wake_at = None;
                    self.run_client(client);
                }
            }
            WorldEvent::Request { client, incarnation, call } => self.request(client, incarnation, call),
            WorldEvent::Repeat { counter, request } => {
                self.count("fault: request to a resource repeated late");
                let _ = self.answer(counter, request);
            }
            WorldEvent::Reply { client, incarnation, caller, reply } => {
                // Its caller may be gone.
                let _ = caller.send(reply);
                if self.clients[client].incarnation == incarnation {
                    self.run_client(client);
                }
            }
            WorldEvent::Suspect { host, member } => {
                self.arrive(host, Arrival::Input(Input::Suspect { member }));
            }
            WorldEvent::Restart { host } => self.restart(host),
            WorldEvent::PowerCut { host, start } => self.flicker(host, start),
            WorldEvent::ResumeHost { host, start } => self.resume_host(host, start),
            WorldEvent::StartClient { client } => self.start_client(client),
            WorldEvent::ResumeClient { client, incarnation } => self.resume_client(client, incarnation),
            WorldEvent::HealLinks { cut } => {
                self.note(format_args!("mended: {cut:?}"));
                self.cut.retain(|link| !cut.contains(link));
            }
            WorldEvent::HealClient { client, host } => {
                self.note(format_args!("client {client} reaches node {} again", self.hosts[host].id));
                self.client_cut.remove(&(client, host));
            }
            WorldEvent::RepairDisk { host } => {
                self.note(format_args!("the disk of node {} has space again", self.hosts[host].id));
                self.hosts[host].disk.make_space();
            }
            WorldEvent::ReadAtLeaders => self.read_at_leaders(),
            WorldEvent::ExtendRedisLock(locks, secret) => self.extend_redis_lock(locks, secret),
            WorldEvent::Damage { host, how, until } => self.damage(host, how, until),
            WorldEvent::Add { host, until } => self.add_cut_off(host, until),
            WorldEvent::Fault => {
                if !self.are_faults_over.get() {
                    self.inject_fault();
                    self.schedule_fault();
                }
            }
        }
    }

    /// Returns the time that a message takes.
    pub(super) fn latency(&mut self) -> Duration {
        let longest =
            if self.rng.below(50) == 0 && !self.are_faults_over.get() { 300_000 } else { self.plan.latency_us };
        Duration::from_micros(50 + self.rng.below(longest) as u64)
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
