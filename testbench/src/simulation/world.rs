//! The world: machines, clients, the network and the resources, in one thread and one time. What happens next is the earliest of
//! what was planned.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use palisade::simulation::{Process, Stream};
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
use super::resource::{Call, CounterState, Reply, Request};
use super::stream::{Dials, SharedPipe, stream};
use crate::faulty_disk::Dice;

/// Two clocks that differ by less than this, in millionths, are within what the clients allow for.
pub(super) const TAME: i64 = 3_000;

/// What is planned.
pub(super) enum Happening {
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
        life: u64,
        host: usize,
        outcome: oneshot::Sender<std::io::Result<Stream>>,
    },
    Connected {
        client: usize,
        life: u64,
        connection: u64,
        outcome: oneshot::Sender<std::io::Result<Stream>>,
    },
    Unreachable {
        client: usize,
        life: u64,
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
        life: u64,
        call: Call,
    },
    /// A copy of a request reaches a counter late.
    Repeat {
        counter: usize,
        request: Request,
    },
    Reply {
        client: usize,
        life: u64,
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
        life: u64,
    },
    /// Links that were cut are mended.
    Mend {
        cut: Vec<(u64, u64)>,
    },
    MendClient {
        client: usize,
        host: usize,
    },
    MendDisk {
        host: usize,
    },
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
    pub(super) life: u64,
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
    pub(super) life: u64,
    pub(super) shared: Rc<Shared>,
    pub(super) dials: Dials,
    pub(super) clock: Clock,
    /// Its clock may have misled it until then, because it was far off.
    pub(super) misled_until: Duration,
    /// How long its machine was suspended.
    pub(super) suspended: Duration,
    pub(super) is_paused: bool,
    pub(super) wake_at: Option<Duration>,
    pub(super) connections: BTreeSet<u64>,
}

/// The world.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) dice: Dice,
    pub(super) record: Rc<RefCell<Record>>,
    pub(super) now: Duration,
    pub(super) planned: BTreeMap<(Duration, u64), Happening>,
    pub(super) last_planned: u64,
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
    pub(super) is_calm: Rc<Cell<bool>>,
    pub(super) is_ending: Rc<Cell<bool>>,
    pub(super) acknowledged: Rc<RefCell<[u64; COUNTED.len()]>>,
    pub(super) unknown: Rc<RefCell<[u64; COUNTED.len()]>>,
    /// The clock of a node may have misled it until then, because it was far off.
    pub(super) nodes_misled_until: Duration,
    /// How many faults were injected.
    pub(super) faults: usize,
    pub(super) redis_requests: u64,
    /// Entries that nodes have applied since the state of one was compared.
    pub(super) uncompared: usize,
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
            nodes_misled_until: Duration::ZERO,
            faults: 0,
            redis_requests: 0,
            uncompared: 0,
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
                misled_until: Duration::ZERO,
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

    pub(super) fn happen(&mut self, what: Happening) {
        match what {
            Happening::Tick { host, start } => self.tick(host, start),
            Happening::Persist { host, start } => self.persist(host, start),
            Happening::Compact { host, start } => self.compact(host, start),
            Happening::Message(message) => self.deliver(&message),
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
            Happening::ToHost(connection) => self.deliver_to_host(connection),
            Happening::ToClient(connection) => self.deliver_to_client(connection),
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
            Happening::PowerCut { host, start } => self.flicker(host, start),
            Happening::ResumeHost { host, start } => self.resume_host(host, start),
            Happening::StartClient { client } => self.start_client(client),
            Happening::ResumeClient { client, life } => self.resume_client(client, life),
            Happening::Mend { cut } => {
                self.note(format_args!("mended: {cut:?}"));
                self.cut.retain(|link| !cut.contains(link));
            }
            Happening::MendClient { client, host } => {
                self.note(format_args!("client {client} reaches node {} again", self.hosts[host].id));
                self.client_cut.remove(&(client, host));
            }
            Happening::MendDisk { host } => {
                self.note(format_args!("the disk of node {} has space again", self.hosts[host].id));
                self.hosts[host].disk.mend();
            }
            Happening::Damage { host, how, until } => self.damage(host, how, until),
            Happening::Add { host, until } => self.add_cut_off(host, until),
            Happening::Fault => {
                if !self.is_calm.get() {
                    self.inject_fault();
                    self.plan_fault();
                }
            }
        }
    }

    /// Returns the time that a message takes.
    pub(super) fn latency(&mut self) -> Duration {
        let longest = if self.dice.roll(50) == 0 && !self.is_calm.get() { 300_000 } else { self.plan.latency_us };
        Duration::from_micros(50 + self.dice.roll(longest) as u64)
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
