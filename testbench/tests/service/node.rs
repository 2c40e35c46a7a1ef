//! The whole node in virtual time: requests of two clients, a power cut, a restart. Everything follows from a seed.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use palisade_server::node::{
    ChangeRefused, ConnectionId, GrantReply, Input, Message, Node, NodeConfig, Principal, Protocol, Push,
    RequestContext, RequestId, Response, Seeds,
};
use palisade_server::request::{AcquireRequest, Holder, Request};
use palisade_server::storage::{Identity, Member, Store, write_watermark};
use palisade_server::{LockName, Token};
use palisade_testbench::faulty_disk::{FaultyDisk, Rng};

use palisade_core::{Mode, RequestNo, SessionId, Ttl, Want};

/// A node on a simulated disk.
struct World {
    disk: FaultyDisk,
    store: Store<FaultyDisk>,
    node: Node,
    now: Duration,
    rng: Rng,
    trace: String,
    clients: Vec<Client>,
    last_connection: u64,
    last_number: u64,
    /// The highest token of each lock that a client was told of.
    tokens: BTreeMap<LockName, Token>,
}

/// A client: its connection, and what it believes.
#[derive(Default)]
struct Client {
    connection: u64,
    session: Option<SessionId>,
    /// The locks of its requests, by request number.
    asked: HashMap<u64, LockName>,
    held: BTreeMap<LockName, Token>,
}

impl World {
    fn new(seed: u64) -> World {
        let disk = FaultyDisk::default();
        let (store, node) = start(&disk);
        let mut world = World {
            disk,
            store,
            node,
            now: Duration::ZERO,
            rng: Rng::new(seed),
            trace: String::new(),
            clients: (0..2).map(|_| Client::default()).collect(),
            last_connection: 0,
            last_number: 0,
            tokens: BTreeMap::new(),
        };
        world.connect_all();
        world
    }

    fn connect_all(&mut self) {
        for at in 0..self.clients.len() {
            self.last_connection += 1;
            self.clients[at].connection = self.last_connection;
            let context = RequestContext {
                principal: Principal::Anyone,
                protocol: Protocol::Resp,
                peer: Arc::from(format!("client-{at}")),
                address: [127, 0, 0, 1].into(),
            };
            self.step(Input::Connected { connection: ConnectionId(self.last_connection), context });
        }
        self.settle();
    }

    fn step(&mut self, input: Input) {
        self.node.step(self.now, input);
    }

    /// Carries out the node's output, until there is none.
    fn settle(&mut self) {
        // One input causes a few outputs.
        for _ in 0..100_000 {
            let output = self.node.take_output();
            if let Some(watermark) = output.watermark {
                write_watermark(&self.disk, watermark).unwrap();
            }
            let is_idle = output.writes.is_empty() && !output.has_more;
            for message in output.messages {
                writeln!(self.trace, "{:?} {message:?}", self.now).unwrap();
                self.receive(message);
            }
            for (number, write) in output.writes {
                self.store.append(&write).unwrap();
                self.step(Input::Persisted { number });
            }
            if is_idle {
                return;
            }
        }
        panic!("the output of the node does not end");
    }

    fn receive(&mut self, message: Message) {
        let of = |clients: &[Client], id: u64| clients.iter().position(|client| client.connection == id);
        match message {
            Message::Reply(id, response) => {
                let Some(at) = of(&self.clients, id.connection.0) else { return };
                match response {
                    Response::Opened { session, .. } => self.clients[at].session = Some(session),
                    Response::Granted(GrantReply { token, .. }) => self.granted(at, id.number, token),
                    _ => {}
                }
            }
            Message::Push(to, push) => {
                let to: Vec<_> = to.into_iter().filter_map(|to| of(&self.clients, to.0)).collect();
                for at in to {
                    match &push {
                        Push::Granted { number: Some(number), token, .. } => self.granted(at, number.get(), *token),
                        Push::Lost { token, .. } => self.clients[at].held.retain(|_, held| held != token),
                        Push::SessionEnded { .. } => {
                            self.clients[at].held.clear();
                            self.clients[at].session = None;
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Checks a grant against what the clients believe: its token is the highest, and no other client holds the lock.
    fn granted(&mut self, at: usize, number: u64, token: Token) {
        let Some(lock) = self.clients[at].asked.remove(&number) else { return };
        let last = self.tokens.insert(lock.clone(), token);
        assert!(last.is_none_or(|last| last < token), "{lock}: {token} follows {last:?}\n{}", self.trace);
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != at);
        for (_, other) in others {
            assert!(!other.held.contains_key(&lock), "{lock} has two holders\n{}", self.trace);
        }
        self.clients[at].held.insert(lock, token);
    }

    fn request(&mut self, at: usize, request: Request) {
        let (connection, number) = (ConnectionId(self.clients[at].connection), self.last_number);
        self.step(Input::Request { id: RequestId { connection, number }, request });
    }

    /// The token of the last grant in the trace.
    fn last_token(&self) -> Token {
        let (_, rest) = self.trace.rsplit_once("token: Token(").unwrap();
        Token::new(rest.split(')').next().unwrap().parse().unwrap()).unwrap()
    }

    /// One step of one client, chosen by the rng.
    fn act(&mut self) {
        let at = self.rng.below(self.clients.len());
        self.last_number += 1;
        let Some(session) = self.clients[at].session else {
            return self.request(at, Request::OpenSession { ttl: Ttl::from_ms(1_000).unwrap(), label: None });
        };
        let lock = LockName::new(["orders", "users", "jobs"][self.rng.below(3)]).unwrap();
        match (self.rng.below(4), self.clients[at].held.get(&lock).copied()) {
            (0, _) => self.request(at, Request::KeepAlive { sessions: vec![session] }),
            (_, Some(token)) => {
                // The client does not rely on it any longer once it has sent this.
                self.clients[at].held.remove(&lock);
                self.request(at, Request::Release { lock, token, session: Some(session), number: None });
            }
            (_, None) => {
                self.clients[at].asked.insert(self.last_number, lock.clone());
                let request = AcquireRequest {
                    wants: [Want { lock, mode: Mode::Exclusive }].into_iter().collect(),
                    holder: Holder::Session(session),
                    wait_ms: Some(60_000),
                    delay: None,
                    number: RequestNo::new(self.last_number).ok(),
                    is_async: true,
                    value: None,
                    secret: None,
                    renews: false,
                };
                self.request(at, Request::Acquire(request));
            }
        }
    }

    /// Cuts the power: what was not flushed may be lost. The clients reconnect, and open new sessions.
    fn crash(&mut self) {
        self.disk = self.disk.after_power_cut(&mut self.rng);
        (self.store, self.node) = start(&self.disk);
        writeln!(self.trace, "{:?} power cut", self.now).unwrap();
        for client in &mut self.clients {
            *client = Client::default();
        }
        self.connect_all();
    }

    fn run(mut self, steps: usize) -> String {
        for step in 0..steps {
            self.act();
            if self.rng.below(3) > 0 {
                self.settle();
            }
            self.now += Duration::from_millis(self.rng.below(40) as u64);
            self.step(Input::Tick);
            if step % 97 == 96 {
                self.crash();
            }
        }
        self.settle();
        self.trace
    }
}

fn start(disk: &FaultyDisk) -> (Store<FaultyDisk>, Node) {
    let (store, found) = Store::open_with(disk.clone(), None, 4096).unwrap();
    let config = NodeConfig {
        wait_ms: 60_000,
        waiters: 1_000,
        waiters_per_user: 1_000,
        compact_after: usize::MAX,
        ..NodeConfig::default()
    };
    (store, Node::new(config, &Identity::alone(1, 1), &found, Seeds { hash_key: 7, session_ids: 7 }, None).unwrap())
}

#[test]
fn tokens_rise_and_locks_have_one_holder_over_power_cuts() {
    for seed in 0..40 {
        let trace = World::new(seed).run(600);
        assert!(trace.contains("Granted"), "seed {seed} grants nothing");
    }
}

#[test]
fn a_seed_gives_the_same_trace_twice() {
    let run = |seed| World::new(seed).run(400);
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// Its cancel arrives when the grant is decided already. The client closed its side without a reply, so the lock must not
/// stay held.
#[test]
fn a_grant_to_a_client_that_has_left_is_released() {
    let mut world = World::new(0);
    let lock = LockName::new("orders").unwrap();
    let ttl = Ttl::from_ms(60_000).unwrap();
    let acquire = |holder, wait_ms| {
        Request::Acquire(AcquireRequest {
            wants: [Want { lock: lock.clone(), mode: Mode::Exclusive }].into_iter().collect(),
            holder,
            wait_ms,
            delay: None,
            number: None,
            is_async: false,
            value: None,
            secret: None,
            renews: false,
        })
    };
    let replies = |world: &mut World, at: usize, request: Request| {
        world.trace.clear();
        world.request(at, request);
        world.settle();
        world.trace.clone()
    };
    replies(&mut world, 0, Request::OpenSession { ttl, label: None });
    let session = world.clients[0].session.unwrap();
    for waiter in [Holder::NewSession(ttl), Holder::Session(session)] {
        assert!(replies(&mut world, 0, acquire(Holder::NewSession(ttl), None)).contains("Granted"));
        let token = world.last_token();
        assert_eq!(replies(&mut world, 1, acquire(waiter, Some(60_000))), "");
        world.request(0, Request::Release { lock: lock.clone(), token, session: None, number: None });
        world.step(Input::Abandoned { connection: ConnectionId(world.clients[1].connection) });
        world.settle();
        assert!(
            !world.trace.contains("Reply(RequestId { connection: ConnectionId(2), number: 0 }, Granted"),
            "{}",
            world.trace
        );
        let again = replies(&mut world, 0, acquire(Holder::NewSession(ttl), None));
        assert!(again.contains("Granted"), "the lock stays held: {again}");
        let token = world.last_token();
        world.request(0, Request::Release { lock: lock.clone(), token, session: None, number: None });
        world.settle();
    }
}

/// It may have died before it was upgraded, and would hinder every change for ever.
#[test]
fn a_member_with_an_older_build_can_be_removed() {
    let mut world = World::new(0);
    let member = |number: u64| Member::new(format!("node{number}"), format!("node{number}:7422"));
    let pass_time = |world: &mut World| {
        world.now += Duration::from_secs(1);
        world.step(Input::Tick);
        world.settle();
    };
    world.node.name_member(member(1));
    (0..3).for_each(|_| pass_time(&mut world));
    world.node.add_member(2, member(2)).unwrap();
    pass_time(&mut world);
    world.step(Input::MemberConnected { id: 2, member: None, log: 1 });
    assert_eq!(world.node.add_member(3, member(3)), Err(ChangeRefused::OldMember("node2".to_owned())));
    assert_eq!(world.node.remove_member("node2"), Ok(2));
    pass_time(&mut world);
    world.node.add_member(3, member(3)).unwrap();
}
