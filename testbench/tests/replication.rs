//! Three nodes and two spare ones in virtual time: clients that follow the leader, lost and late messages, cut links, paused nodes,
//! power cuts, lost disks, and members that are added and removed meanwhile. Everything follows from a seed.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Mode, RequestNo, SessionId, Ttl, Want};
use palisade_server::node::{
    ConnectionId, GrantReply, Input, Message, Node, NodeConfig, Principal, Protocol, Push, RequestContext, RequestId,
    Response, Seeds,
};
use palisade_server::replica::PeerMessage;
use palisade_server::request::{AcquireRequest, Holder, Request};
use palisade_server::storage::{
    Identity, Member, Membership, Stage, Store, Watermark, Write, read_snapshot, read_watermark,
    write_received_snapshot, write_watermark,
};
use palisade_server::{LockName, Token};
use palisade_testbench::faulty_disk::{Dice, FaultyDisk};

/// The nodes that found the cluster.
const FOUNDERS: usize = 3;
/// All nodes. The others wait until they are added.
const NODES: usize = 5;
const CLIENTS: usize = 3;
const TTL: Duration = Duration::from_millis(3_000);
/// Small, so that snapshots are made and sent in every run.
const COMPACT_AFTER: usize = 4_000;
/// A client that has no answer for this long tries another node.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// A node, its disk, and the writes that are on their way.
struct Host {
    /// The number of its member. It gets another one with another disk.
    id: u64,
    disk: FaultyDisk,
    running: Option<Running>,
    paused_until: Duration,
    /// Requests that came while it was paused.
    inbox: Vec<Input>,
    /// Its disk is slow until then.
    stalled_until: Duration,
    starts: u64,
}

struct Running {
    store: Store<FaultyDisk>,
    node: Node,
    writes: VecDeque<(u64, Write)>,
}

/// A client: where it is connected, and what it believes.
#[derive(Default)]
struct Client {
    at: Option<(usize, ConnectionId)>,
    session: Option<SessionId>,
    /// Until when its session is alive, for all that it knows.
    safe_until: Duration,
    /// The request that it waits for, and when it was first sent.
    waiting: Option<(u64, Duration, Asked)>,
    sent_at: Duration,
    /// It does nothing until then.
    idle_until: Duration,
    held: BTreeMap<LockName, Token>,
    /// The locks that it has asked for, by request number.
    queued: HashMap<u64, LockName>,
}

#[derive(Clone)]
enum Asked {
    Open,
    KeepAlive,
    Attach,
    Acquire(LockName),
    Release(LockName, Token),
}

struct World {
    hosts: Vec<Host>,
    network: Vec<(Duration, PeerMessage)>,
    /// Links that are cut, from one member to another.
    cut: Vec<(u64, u64)>,
    clients: Vec<Client>,
    now: Duration,
    dice: Dice,
    trace: String,
    last_connection: u64,
    /// The last number of a member.
    last_id: u64,
    /// How many members were added and removed.
    changes: usize,
    last_number: u64,
    tokens: BTreeMap<LockName, Token>,
    grants: usize,
    snapshots: usize,
    elections: usize,
    last_leader: Option<(usize, u64)>,
}

fn member(id: u64) -> Member {
    Member::new(format!("node{id}"), format!("node{id}:7422"))
}

fn founders() -> Membership {
    Membership::founded_by((1..=FOUNDERS as u64).map(|id| (id, member(id))).collect())
}

impl Host {
    fn new(id: u64) -> Host {
        Host {
            id,
            disk: FaultyDisk::default(),
            running: None,
            paused_until: Duration::ZERO,
            inbox: Vec::new(),
            stalled_until: Duration::ZERO,
            starts: 0,
        }
    }

    /// Returns whether it has taken part in the cluster, so that it starts again after a power cut.
    fn has_begun(&self) -> bool {
        self.starts > 0
    }

    fn start(&mut self) {
        self.starts += 1;
        let (store, found) = Store::open_with(self.disk.clone(), None, 4096).unwrap();
        let config = NodeConfig {
            wait_ms: 60_000,
            waiters: 1_000,
            waiters_per_user: 1_000,
            compact_after: COMPACT_AFTER,
            ..NodeConfig::default()
        };
        let (member, founders) = (self.id, founders());
        let identity =
            Identity { cluster: 1, member, node: None, founders, contacts: BTreeMap::new(), stage: Stage::Member };
        let seeds = Seeds { hash_key: 7, session_ids: self.starts << 8 | self.id };
        let node = Node::new(config, &identity, &found, seeds, None).unwrap();
        self.running = Some(Running { store, node, writes: VecDeque::new() });
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut hosts: Vec<_> = (1..=NODES as u64).map(Host::new).collect();
        hosts[..FOUNDERS].iter_mut().for_each(Host::start);
        World {
            hosts,
            network: Vec::new(),
            cut: Vec::new(),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            now: Duration::ZERO,
            dice: Dice::new(seed),
            trace: String::new(),
            last_connection: 0,
            last_id: NODES as u64,
            changes: 0,
            last_number: 0,
            tokens: BTreeMap::new(),
            grants: 0,
            snapshots: 0,
            elections: 0,
            last_leader: None,
        }
    }

    /// Returns the host that has this number, unless its disk was lost.
    fn host_of(&self, id: u64) -> Option<usize> {
        self.hosts.iter().position(|host| host.id == id)
    }

    fn is_running(&self, at: usize) -> bool {
        self.hosts[at].running.is_some() && self.hosts[at].paused_until <= self.now
    }

    fn step(&mut self, at: usize, input: Input) {
        let is_paused = self.hosts[at].paused_until > self.now;
        match &mut self.hosts[at].running {
            Some(_) if is_paused => self.hosts[at].inbox.push(input),
            Some(running) => running.node.step(self.now, input),
            None => {}
        }
    }

    /// Lets a node that was paused handle what has come meanwhile.
    fn resume(&mut self, at: usize) {
        for input in std::mem::take(&mut self.hosts[at].inbox) {
            self.step(at, input);
            self.settle(at);
        }
    }

    /// Carries out a node's output, except for the writes, which take time.
    fn settle(&mut self, at: usize) {
        for _ in 0..10_000 {
            let Some(running) = &mut self.hosts[at].running else { return };
            let output = running.node.take_output();
            assert_eq!(output.log_lost, None, "{}", self.trace);
            running.writes.extend(output.writes);
            if let Some(watermark) = output.watermark {
                write_watermark(&self.hosts[at].disk, watermark).unwrap();
            }
            if output.is_deposed {
                self.disconnect_all(at);
            }
            output.peer_messages.into_iter().for_each(|message| self.send(message));
            for message in output.messages {
                self.receive(at, message);
            }
            if let Some(compaction) = output.compaction {
                let compacted = compaction.carry_out(&self.hosts[at].disk).ok();
                if let (Some(compacted), Some(running)) = (&compacted, &mut self.hosts[at].running) {
                    running.store.forget(compacted.index).unwrap();
                }
                self.step(at, Input::Compacted(compacted));
            } else if !output.has_more {
                return;
            }
        }
        panic!("the output of the node does not end");
    }

    fn send(&mut self, message: PeerMessage) {
        let is_lost = self.cut.contains(&(message.from(), message.to())) || self.dice.roll(20) == 0;
        let to = message.to();
        if let Some(from) = self.host_of(message.from()).filter(|_| message.needs_snapshot()) {
            self.step(from, Input::SnapshotSent { member: to, has_arrived: !is_lost });
        }
        if !is_lost {
            let longest = if self.dice.roll(10) == 0 { 300 } else { 5 };
            let delay = 1 + self.dice.roll(longest) as u64;
            self.network.push((self.now + Duration::from_millis(delay), message));
        }
    }

    /// Delivers the messages whose time has come.
    fn deliver(&mut self) {
        let (due, later) = std::mem::take(&mut self.network).into_iter().partition(|(at, _)| *at <= self.now);
        self.network = later;
        let mut due: Vec<_> = due;
        due.sort_by_key(|(at, _)| *at);
        for (_, message) in due {
            let Some(at) = self.host_of(message.to()) else { continue };
            if self.hosts[at].paused_until > self.now {
                // The system keeps what was sent to a paused process.
                self.network.push((self.hosts[at].paused_until, message));
                continue;
            }
            // Bytes come over a wire.
            let message = PeerMessage::decode(&message.encode()).unwrap();
            if !message.needs_snapshot() {
                self.step(at, Input::Received(message));
            } else if let Some(from) = self.host_of(message.from())
                && let Some(snapshot) = read_snapshot(&self.hosts[from].disk).unwrap()
            {
                self.snapshots += 1;
                let newest = read_snapshot(&self.hosts[at].disk).unwrap().map_or(0, |own| own.index);
                if snapshot.index > newest {
                    write_received_snapshot(&self.hosts[at].disk, &snapshot).unwrap();
                    self.step(at, Input::ReceivedSnapshot(message, Box::new(snapshot)));
                }
            }
            self.settle(at);
        }
    }

    /// Makes the oldest write of a node durable.
    fn persist(&mut self, at: usize) {
        let is_stalled = self.hosts[at].stalled_until > self.now;
        let Some(running) = self.hosts[at].running.as_mut().filter(|_| !is_stalled) else { return };
        if let Some((number, write)) = running.writes.pop_front() {
            running.store.append(&write).unwrap();
            self.step(at, Input::Persisted { number });
            self.settle(at);
        }
    }

    fn disconnect_all(&mut self, at: usize) {
        for client in &mut self.clients {
            if client.at.is_some_and(|(node, _)| node == at) {
                client.at = None;
            }
        }
    }

    fn crash(&mut self, at: usize) {
        writeln!(self.trace, "{:?} power cut at node {}", self.now, self.hosts[at].id).unwrap();
        self.hosts[at].disk = self.hosts[at].disk.after_power_cut(&mut self.dice);
        self.hosts[at].running = None;
        self.hosts[at].inbox.clear();
        self.disconnect_all(at);
        for other in (0..NODES).filter(|other| *other != at) {
            self.step(other, Input::Suspect { member: self.hosts[at].id });
        }
    }

    /// The highest term.
    fn term(&self) -> u64 {
        let terms = self.hosts.iter().filter_map(|host| Some(host.running.as_ref()?.node.cluster_report().term));
        terms.max().unwrap_or(0)
    }

    fn leader(&self) -> Option<usize> {
        (0..NODES).find(|at| {
            self.is_running(*at) && self.hosts[*at].running.as_ref().is_some_and(|running| running.node.is_leader())
        })
    }
}

// Clients.
impl World {
    fn connect(&mut self, client: usize) {
        let at = self.dice.roll(NODES);
        if !self.is_running(at) {
            return;
        }
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        self.clients[client].at = Some((at, connection));
        let context = RequestContext {
            principal: Principal::Anyone,
            protocol: Protocol::Resp,
            peer: Arc::from(format!("client-{client}")),
            address: [127, 0, 0, 1].into(),
        };
        self.step(at, Input::Connected { connection, context });
        match self.clients[client].session {
            Some(_) => self.ask(client, Asked::Attach),
            None => self.repeat(client),
        }
    }

    fn ask(&mut self, client: usize, asked: Asked) {
        let pending = self.clients[client].waiting.take();
        self.last_number += 1;
        let number = self.last_number;
        // A request without an answer is repeated under its number; an attach comes first, and forgets nothing.
        match (asked, pending) {
            (Asked::Attach, Some(pending)) => {
                self.send_request(client, number, &Asked::Attach);
                self.clients[client].waiting = Some(pending);
                self.repeat(client);
            }
            (asked, _) => {
                self.clients[client].waiting = Some((number, self.now, asked.clone()));
                self.send_request(client, number, &asked);
            }
        }
    }

    /// Sends the request again that has no answer.
    fn repeat(&mut self, client: usize) {
        if let Some((number, first, asked)) = self.clients[client].waiting.clone() {
            self.clients[client].waiting = Some((number, first, asked.clone()));
            self.send_request(client, number, &asked);
        }
    }

    fn send_request(&mut self, client: usize, number: u64, asked: &Asked) {
        let Some((at, connection)) = self.clients[client].at else { return };
        let session = self.clients[client].session;
        let request = match (asked, session) {
            (Asked::Open, _) => {
                Request::OpenSession { ttl: Ttl::from_ms(TTL.as_millis() as u64).unwrap(), label: None }
            }
            (_, None) => return self.clients[client].waiting = None,
            (Asked::KeepAlive, Some(session)) => Request::KeepAlive { sessions: vec![session] },
            (Asked::Attach, Some(session)) => Request::Attach { session },
            (Asked::Release(lock, token), session) => {
                let number = RequestNo::new(number).ok();
                Request::Release { lock: lock.clone(), token: *token, session, number }
            }
            (Asked::Acquire(lock), Some(session)) => {
                self.clients[client].queued.insert(number, lock.clone());
                Request::Acquire(AcquireRequest {
                    wants: [Want { lock: lock.clone(), mode: Mode::Exclusive }].into_iter().collect(),
                    holder: Holder::Session(session),
                    wait_ms: Some(60_000),
                    delay: None,
                    number: RequestNo::new(number).ok(),
                    is_async: true,
                    value: None,
                })
            }
        };
        self.clients[client].sent_at = self.now;
        self.step(at, Input::Request { id: RequestId { connection, number }, request });
    }

    fn receive(&mut self, at: usize, message: Message) {
        writeln!(self.trace, "{:?} node {} {message:?}", self.now, self.hosts[at].id).unwrap();
        let of = |clients: &[Client], id: ConnectionId| clients.iter().position(|client| client.at == Some((at, id)));
        match message {
            Message::Reply(id, response) => {
                if let Some(client) = of(&self.clients, id.connection) {
                    self.answered(client, id.number, response);
                }
            }
            Message::Push(to, push) => {
                for client in to.into_iter().filter_map(|to| of(&self.clients, to)).collect::<Vec<_>>() {
                    match &push {
                        Push::Granted { number: Some(number), token, .. } => {
                            self.granted(client, number.get(), *token)
                        }
                        Push::Lost { token, .. } => self.clients[client].held.retain(|_, held| held != token),
                        Push::SessionEnded { .. } => self.forget_session(client),
                        _ => {}
                    }
                }
            }
        }
    }

    fn answered(&mut self, client: usize, number: u64, response: Response) {
        let sent_at = self.clients[client].sent_at;
        let is_current = self.clients[client].waiting.as_ref().is_some_and(|(waiting, ..)| *waiting == number);
        match response {
            Response::Refused(palisade_server::node::Refused::NotLeader) => {
                self.clients[client].at = None;
                return;
            }
            Response::Refused(_) if is_current => {
                // Its session is over, or the request was.
                let asked = self.clients[client].waiting.take();
                if !matches!(asked, Some((_, _, Asked::Release(..)))) {
                    self.forget_session(client);
                }
            }
            Response::Refused(_) => self.forget_session(client),
            Response::Opened { session, .. } if is_current => {
                self.clients[client].session = Some(session);
                self.clients[client].safe_until = sent_at + TTL;
            }
            Response::KeptAlive(kept) if kept == [None] => self.forget_session(client),
            Response::KeptAlive(_) => self.clients[client].safe_until = sent_at + TTL,
            Response::Attached { held, .. } => {
                // No client takes a lock away by force, so a session that is alive has what it was granted.
                let is_alive = self.now < self.clients[client].safe_until;
                let is_kept = self.clients[client].held.values().all(|token| held.contains(token));
                assert!(!is_alive || is_kept, "client {client} has lost a grant\n{}", self.trace);
                self.clients[client].held.retain(|_, token| held.contains(token));
            }
            Response::Granted(GrantReply { token, .. }) => self.granted(client, number, token),
            _ => {}
        }
        if is_current {
            self.clients[client].waiting = None;
        }
    }

    fn forget_session(&mut self, client: usize) {
        let at = self.clients[client].at;
        self.clients[client] = Client { at, ..Client::default() };
    }

    /// Checks a grant against what the clients believe: its token is the highest, and no other client holds the lock.
    fn granted(&mut self, client: usize, number: u64, token: Token) {
        let Some(lock) = self.clients[client].queued.remove(&number) else { return };
        self.grants += 1;
        let last = self.tokens.insert(lock.clone(), token);
        let is_repeat = self.clients[client].held.get(&lock) == Some(&token);
        assert!(
            is_repeat || last.is_none_or(|last| last < token),
            "{lock}: {token} follows {last:?}\n{}",
            self.trace
        );
        for (other, holder) in self.clients.iter().enumerate().filter(|(other, _)| *other != client) {
            let believes = holder.held.contains_key(&lock) && self.now < holder.safe_until;
            assert!(!believes, "{lock} has two holders: client {client} and client {other}\n{}", self.trace);
        }
        self.clients[client].held.insert(lock, token);
    }

    /// One step of one client, chosen by the dice.
    fn act(&mut self) {
        let client = self.dice.roll(CLIENTS);
        if self.now < self.clients[client].idle_until {
            return;
        }
        if self.dice.roll(60) == 0 {
            self.clients[client].idle_until = self.now + Duration::from_millis(self.dice.roll(5_000) as u64);
        }
        if self.clients[client].session.is_some() && self.now >= self.clients[client].safe_until {
            self.forget_session(client);
        }
        if self.clients[client].at.is_none() {
            self.connect(client);
        } else if self.clients[client].waiting.is_some() {
            if self.now > self.clients[client].sent_at + PATIENCE {
                self.clients[client].at = None;
            }
        } else if self.clients[client].session.is_none() {
            self.ask(client, Asked::Open);
        } else {
            let lock = LockName::new(["orders", "users"][self.dice.roll(2)]).unwrap();
            let held = self.clients[client].held.get(&lock).copied();
            let is_queued = self.clients[client].queued.values().any(|queued| *queued == lock);
            match (self.dice.roll(3), held) {
                (0, _) => self.ask(client, Asked::KeepAlive),
                (_, Some(token)) => {
                    // The client does not rely on it any longer once it has sent this.
                    self.clients[client].held.remove(&lock);
                    self.ask(client, Asked::Release(lock, token));
                }
                (_, None) if !is_queued => self.ask(client, Asked::Acquire(lock)),
                _ => self.ask(client, Asked::KeepAlive),
            }
        }
        if let Some((at, _)) = self.clients[client].at
            && self.is_running(at)
        {
            self.settle(at);
        }
    }

    /// Something goes wrong, or is mended.
    fn disturb(&mut self) {
        let at = self.dice.roll(NODES);
        match self.dice.roll(24) {
            0 if self.hosts[at].running.is_some() => self.crash(at),
            1 => {
                if let Some(leader) = self.leader() {
                    self.crash(leader);
                }
            }
            2 => {
                let (from, to) = (self.hosts[at].id, self.hosts[self.dice.roll(NODES)].id);
                self.cut.push((from, to));
                if self.dice.roll(2) == 0 {
                    self.cut.push((to, from));
                }
            }
            3 => self.cut_off(at),
            4 => self.hosts[at].paused_until = self.now + Duration::from_millis(self.dice.roll(5_000) as u64),
            5 if self.leader() == Some(at) => {
                let to = (at + 1 + self.dice.roll(NODES - 1)) % NODES;
                let to = member(self.hosts[to].id).name;
                let running = self.hosts[at].running.as_mut();
                let _ = running.map(|running| running.node.transfer(Some(&to)));
                self.settle(at);
            }
            6..9 => self.cut.clear(),
            9 => (0..NODES).for_each(|at| self.crash(at)),
            10 => {
                // What a follower has not written is lost with the leader.
                let others = (0..NODES).filter(|other| *other != at);
                others.for_each(|other| self.crash(other));
            }
            11..13 => {
                self.hosts[at].stalled_until = self.now + Duration::from_millis(self.dice.roll(2_000) as u64);
            }
            13..15 => self.add(at),
            15..17 => self.remove(at),
            17 => self.lose_disk(at),
            _ if self.hosts[at].running.is_none() && self.hosts[at].has_begun() => {
                self.hosts[at].start();
                self.settle(at);
            }
            _ => {}
        }
    }

    fn cut_off(&mut self, at: usize) {
        let id = self.hosts[at].id;
        let others: Vec<_> = self.hosts.iter().map(|host| host.id).collect();
        self.cut.extend(others.into_iter().flat_map(|other| [(id, other), (other, id)]));
    }

    /// The members as the leader knows them.
    fn members(&self) -> Option<(usize, Membership)> {
        let leader = self.leader()?;
        Some((leader, self.hosts[leader].running.as_ref()?.node.membership().clone()))
    }

    /// Adds the next host that is no member, with an empty disk and a new number.
    fn add(&mut self, at: usize) {
        let Some((leader, membership)) = self.members() else { return };
        let is_spare = |at: &usize| !membership.members.contains_key(&self.hosts[*at].id);
        let Some(at) = (0..NODES).map(|next| (at + next) % NODES).find(is_spare) else { return };
        self.empty(at);
        let id = self.hosts[at].id;
        let Some(leading) = &mut self.hosts[leader].running else { return };
        if leading.node.add_member(id, member(id)).is_ok() {
            writeln!(self.trace, "{:?} node {id} is added", self.now).unwrap();
            // As a node does before it takes part.
            write_watermark(&self.hosts[at].disk, Watermark::default()).unwrap();
            self.hosts[at].start();
            self.changes += 1;
            self.settle(leader);
        }
    }

    fn remove(&mut self, at: usize) {
        let Some((leader, membership)) = self.members() else { return };
        // Without a member whose disk was lost, the others may be needed. The leader notices only after a while that it is gone.
        if membership.members.len() < 3 || membership.members.keys().any(|id| self.host_of(*id).is_none()) {
            return;
        }
        let hosts = (0..NODES).map(|next| self.hosts[(at + next) % NODES].id);
        let Some(id) = hosts.into_iter().find(|id| membership.members.contains_key(id)) else { return };
        let Some(leading) = &mut self.hosts[leader].running else { return };
        if leading.node.remove_member(&member(id).name).is_ok() {
            writeln!(self.trace, "{:?} node {id} is removed", self.now).unwrap();
            self.changes += 1;
        }
        self.settle(leader);
    }

    /// Replaces the disk of a host, if the others can do without it. Its number never comes back.
    fn lose_disk(&mut self, at: usize) {
        let Some((leader, membership)) = self.members() else { return };
        let Some(leading) = &self.hosts[leader].running else { return };
        let report = leading.node.cluster_report();
        let Membership { voters, learners, outgoing, members, .. } = &membership;
        // A change that is not applied yet may need it, and so may the loss of another disk.
        let is_changing = report.applied < report.last_index || !learners.is_empty() || !outgoing.is_empty();
        // A member that does not know yet that it votes would not vote without the lost one.
        let knows_all = |at: usize| {
            self.hosts[at].running.as_ref().is_some_and(|it| it.node.cluster_report().membership == membership)
        };
        let is_whole = members.keys().all(|id| self.host_of(*id).is_some_and(knows_all));
        if leader != at && !is_changing && is_whole && voters.len() > 2 && voters.contains(&self.hosts[at].id) {
            writeln!(self.trace, "{:?} node {} loses its disk", self.now, self.hosts[at].id).unwrap();
            self.empty(at);
        }
    }

    /// Gives a host an empty disk and a new number.
    fn empty(&mut self, at: usize) {
        self.disconnect_all(at);
        self.last_id += 1;
        self.hosts[at] = Host::new(self.last_id);
    }

    /// Removes members whose disks were lost.
    fn remove_lost(&mut self) {
        let Some((leader, membership)) = self.members() else { return };
        for (id, lost) in &membership.members {
            if self.host_of(*id).is_none()
                && let Some(leading) = &mut self.hosts[leader].running
            {
                let _ = leading.node.remove_member(&lost.name);
                self.settle(leader);
            }
        }
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(1 + self.dice.roll(10) as u64);
        self.deliver();
        for at in 0..NODES {
            if self.is_running(at) {
                self.resume(at);
                self.step(at, Input::Tick);
                self.settle(at);
                if self.dice.roll(3) > 0 {
                    self.persist(at);
                }
            }
        }
        let leader = self.leader().map(|at| (at, self.term()));
        if leader.is_some() && leader != self.last_leader {
            self.elections += 1;
            self.last_leader = leader;
        }
    }

    fn run(mut self, steps: usize, is_disturbed: bool) -> World {
        for _ in 0..steps {
            self.pass_time();
            if self.dice.roll(2) == 0 {
                self.act();
            }
            if is_disturbed && self.dice.roll(150) == 0 {
                self.disturb();
            }
        }
        self
    }

    /// Mends everything, and waits until all nodes have the same state.
    fn settle_all(mut self) -> World {
        self.cut.clear();
        for at in 0..NODES {
            self.hosts[at].paused_until = Duration::ZERO;
            self.hosts[at].stalled_until = Duration::ZERO;
            if self.hosts[at].running.is_none() && self.hosts[at].has_begun() {
                self.hosts[at].start();
            }
        }
        for _ in 0..20_000 {
            self.pass_time();
            self.remove_lost();
            let Some((_, membership)) = self.members() else { continue };
            let running = self.hosts.iter().filter(|host| membership.members.contains_key(&host.id));
            let running: Vec<_> = running.filter_map(|host| Some(&host.running.as_ref()?.node)).collect();
            let reports: Vec<_> = running.iter().map(|node| node.cluster_report()).collect();
            let is_settled = |at: u64| reports.iter().all(|report| report.applied == at && report.last_index == at);
            let is_changing = !membership.learners.is_empty() || membership.is_joint();
            if !is_changing && running.len() == membership.members.len() && is_settled(reports[0].applied) {
                assert!(reports.windows(2).all(|pair| pair[0].membership == pair[1].membership), "{reports:?}");
                let states = running.iter().map(|node| node.report(self.now));
                let states: Vec<_> = states.map(|state| (state.sessions, state.locks, state.last_token)).collect();
                assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{states:?}");
                // Followers, too, write down how far they have come, a few seconds after they joined.
                let mut members = self.hosts.iter().filter(|host| membership.members.contains_key(&host.id));
                let has_noted =
                    |host: &Host| read_watermark(&host.disk).unwrap().is_some_and(|noted| noted.index > 0);
                // All clients are gone, so all sessions end.
                if states[0].0 == 0 && members.all(has_noted) {
                    return self;
                }
            }
        }
        let hosts = self.hosts.iter().map(|host| (host.id, host.running.as_ref().map(|it| it.node.cluster_report())));
        panic!("the nodes do not agree in the end: {:#?}\n{}", hosts.collect::<Vec<_>>(), self.trace);
    }
}

/// Names the seed of a world that panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

#[test]
fn no_grant_is_lost_and_locks_have_one_holder_whatever_fails() {
    let (mut grants, mut snapshots, mut elections, mut changes) = (0, 0, 0, 0);
    let seeds = std::env::var("PALISADE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    for seed in 0..seeds {
        let _named = Named(seed);
        let world = World::new(seed).run(6_000, true).settle_all();
        grants += world.grants;
        snapshots += world.snapshots;
        elections += world.elections;
        changes += world.changes;
    }
    let counts = format!("{grants} grants, {snapshots} snapshots sent, {elections} elections, {changes} changes");
    assert!(grants > 20 * seeds as usize && snapshots > 0 && elections > seeds as usize, "{counts}");
    assert!(changes > seeds as usize, "{counts}");
}

#[test]
fn a_quiet_cluster_elects_once() {
    for seed in 0..10 {
        let world = World::new(seed).run(3_000, false);
        assert_eq!(world.elections, 1, "seed {seed}: {}", world.term());
    }
}

#[test]
fn a_seed_gives_the_same_trace_twice() {
    let run = |seed| World::new(seed).run(2_000, true).trace;
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// Otherwise its client would count on the lock for longer than the new leader lets it live.
#[test]
fn a_leader_that_is_cut_off_confirms_no_keep_alive() {
    let mut both_led = 0;
    for seed in 0..60 {
        let mut world = World::new(seed).run(1_000, false);
        let old = world.leader().unwrap();
        world.cut_off(old);
        let leads =
            |world: &World, at: usize| world.hosts[at].running.as_ref().is_some_and(|host| host.node.is_leader());
        let has_new = |world: &World| (0..NODES).any(|at| at != old && leads(world, at));
        for _ in 0..1_000 {
            if has_new(&world) {
                break;
            }
            world.pass_time();
        }
        assert!(has_new(&world), "seed {seed} elects no other leader");
        let Some(client) = (0..CLIENTS).find(|client| world.clients[*client].session.is_some()) else { continue };
        if !leads(&world, old) {
            continue;
        }
        both_led += 1;
        world.clients[client].at = None;
        world.last_connection += 1;
        let connection = ConnectionId(world.last_connection);
        let context = RequestContext {
            principal: Principal::Anyone,
            protocol: Protocol::Resp,
            peer: Arc::from("client"),
            address: [127, 0, 0, 1].into(),
        };
        let sessions = vec![world.clients[client].session.unwrap()];
        world.trace.clear();
        world.step(old, Input::Connected { connection, context });
        world.step(
            old,
            Input::Request { id: RequestId { connection, number: 1 }, request: Request::KeepAlive { sessions } },
        );
        for _ in 0..500 {
            world.settle(old);
            world.pass_time();
        }
        assert!(!world.trace.contains("KeptAlive"), "seed {seed}\n{}", world.trace);
    }
    assert!(both_led > 0, "no seed has two nodes that believe to lead");
}
