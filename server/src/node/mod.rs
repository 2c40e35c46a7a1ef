//! Everything that decides: the replica, the sessions' deadlines, waiting acquires, watches, permissions, limits and
//! metrics. No socket, thread, file, clock or async: time and everything else comes in as [`Input`], and what is to be
//! done goes out as [`Output`].
//!
//! ```text
//! Input ──> Node::step(now, input)          Node::take_output() ──> Output
//!   requests and disconnects of clients       replies and pushes, by connection
//!   messages of other members                 messages to other members
//!   writes that became durable                writes, a watermark, a compaction
//!   the time                                  when to call again
//! ```

mod clients;
mod cluster;
mod contacts;
mod held;
mod metrics;
mod permissions;
mod principal;
mod queries;
mod queue_limit;
mod random;
mod reads;
mod response;
mod sessions;
#[cfg(test)]
mod tests;
mod tokens;
mod user_sessions;
mod waits;
mod watches;
mod wheel;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use palisade_core::{
    Acquire, Answer, Caller, Command, Cursor, Event, Label, Limits, LockName, LockNames, OpenAndAcquire, Patience,
    Reentry, Refusal, RequestNo, Secret, SessionId, Token, Ttl, Waiting, Want,
};
use smallvec::SmallVec;

use crate::access::Users;
use crate::replica::{Compacted, Compaction, Done, LogLost, PeerMessage, Proposal, Replica};
use crate::request::{AcquireRequest, Request};
use crate::storage::{Identity, Member, Membership, Snapshot, Watermark, Write};
use clients::Clients;
use contacts::Contacts;
use metrics::Metrics;
use queries::PendingRead;
use queue_limit::{QueueLimit, QueuePlaces};
use random::Random;
use reads::Reads;
use sessions::Sessions;
use tokens::TokenBlock;
use user_sessions::UserSessions;
use waits::{PendingId, PendingStep, Waits};
use watches::Watches;

pub use clients::ConnectionId;
pub use cluster::{ChangeRefused, ClusterReport};
pub(crate) use metrics::WAIT_SECONDS;
pub use metrics::{Counts, Histogram, Metrics as NodeMetrics};
pub(crate) use permissions::{check_cluster, check_metrics};
pub use principal::{Principal, Protocol, RequestContext};
pub use response::{
    GrantReply, HeldReport, HolderReport, LeaderReport, LockReport, Push, Refused, Response, WaiterReport,
};
pub use wheel::Moment;

/// How often the node wants a tick: the precision of its deadlines.
const TICK: Duration = Duration::from_millis(20);
/// The most expiries in one log entry, so that many expiries at once do not delay requests.
const EXPIRIES: usize = 256;
/// Without a tick for this long, the process was paused or waited for the disk. It could not receive keep-alives
/// meanwhile.
const PAUSED: Duration = Duration::from_secs(1);

/// Identifies a request: its connection, and its number on that connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RequestId {
    pub connection: ConnectionId,
    pub number: u64,
}

/// An input of the node.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Input {
    /// A client has connected.
    Connected {
        connection: ConnectionId,
        context: RequestContext,
    },
    /// The client has logged in.
    Authenticated {
        connection: ConnectionId,
        principal: Principal,
    },
    Request {
        id: RequestId,
        request: Request,
    },
    /// The client does not wait any longer. Its waiting acquires end, and are still answered.
    Abandoned {
        connection: ConnectionId,
    },
    /// The connection is closed. `delivered`: the client has every reply that was sent to it.
    Disconnected {
        connection: ConnectionId,
        delivered: bool,
    },
    /// Every write up to this number is durable.
    Persisted {
        number: u64,
    },
    /// A compaction has ended, with a durable snapshot or without.
    Compacted(Option<Compacted>),
    /// A message of another member.
    Received(PeerMessage),
    /// A message of another member with a snapshot, which is durable.
    ReceivedSnapshot(PeerMessage, Box<Snapshot>),
    /// A snapshot has reached a member, or has not.
    SnapshotSent {
        member: u64,
        has_arrived: bool,
    },
    /// Messages to a member were dropped.
    Unreachable {
        member: u64,
    },
    /// A member has connected to this node. It understands this version of the log, and says where it listens.
    MemberConnected {
        id: u64,
        member: Option<Member>,
        log: u16,
    },
    /// A member has closed its connection: it may have died.
    Suspect {
        member: u64,
    },
    /// Users were changed or removed.
    UsersChanged,
    /// The service stops: acquires that wait are ended.
    Closing,
    /// Time has passed.
    Tick,
}

/// The effects that the node requests, in this order: the watermark, the replies and pushes, the messages, the writes.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Output {
    /// To be made durable before the replies are sent.
    pub watermark: Option<Watermark>,
    /// Replies and pushes, in the order in which a connection must get them.
    pub messages: Vec<Message>,
    pub audit: Vec<AuditEvent>,
    /// To other members.
    pub peer_messages: Vec<PeerMessage>,
    /// The members, if they have changed.
    pub membership: Option<Membership>,
    /// The other members that this node must be connected to, if they have changed.
    pub contacts: Option<BTreeMap<u64, Member>>,
    /// Whether this node has stopped leading. The connections of all clients must be closed: what they were not answered may
    /// have happened, and they learn the outcome from the new leader.
    pub is_deposed: bool,
    /// The log of this node was cut. It must stop, and be replaced.
    pub log_lost: Option<LogLost>,
    /// To be made durable in order, each followed by [`Input::Persisted`].
    pub writes: Vec<(u64, Write)>,
    /// To be carried out on another thread, followed by [`Input::Compacted`].
    pub compaction: Option<Compaction>,
    /// Whether there is more to do without any further input.
    pub has_more: bool,
    /// When the node wants the next [`Input::Tick`].
    pub wake_at: Moment,
}

/// A message to clients.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Message {
    Reply(RequestId, Response),
    Push(Recipients, Push),
}

/// Connections that get the same push; nearly always one.
pub type Recipients = SmallVec<[ConnectionId; 1]>;

/// An entry of the audit log.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct AuditEvent {
    pub context: RequestContext,
    pub what: Audited,
}

/// The recorded event.
#[derive(Debug)]
pub enum Audited {
    /// The user lacked a right.
    Denied(String),
    /// A request named the grant of another session.
    ForeignGrant(Refusal),
    /// A request to take a lock away.
    Break(Box<BreakRecord>),
    /// The tokens were raised above this one; `last` was the last token before.
    RaiseTokens {
        /// Every later token is greater.
        above: Token,
        /// The last token before.
        last: u64,
    },
}

/// A request to take a lock away, and its outcome.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct BreakRecord {
    pub lock: LockName,
    pub only: Option<Token>,
    pub by: Label,
    pub reason: Label,
    /// How many grants ended, and the token that the lock was moved to.
    pub outcome: Result<(u32, Token), Refusal>,
}

/// The configuration of a node.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct NodeConfig {
    /// The limits of the lock machine; `None` leaves them as they were.
    pub limits: Option<Limits>,
    /// The users; `None` if every client may do everything.
    pub users: Option<Users>,
    /// The longest wait of an acquire.
    pub wait_ms: u64,
    /// Prefixes that one connection watches.
    pub watches: usize,
    pub sessions_per_user: usize,
    /// Places in queues, of all clients together and of one user.
    pub waiters: usize,
    pub waiters_per_user: usize,
    /// The log grows by this many bytes before the node asks for a snapshot. Bounds the disk space and the time of a start.
    pub compact_after: usize,
}

/// Random numbers of the host. Two starts of a service never have the same.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    /// Keys the look-up tables, so that clients cannot choose names that collide.
    pub hash_key: u64,
    /// Starts the ids of sessions. Clients see those, so it must not be the hash key.
    pub session_ids: u64,
}

/// Numbers about the node, for operators.
#[allow(missing_docs)]
pub struct NodeReport {
    pub metrics: NodeMetrics,
    pub sessions: u32,
    pub locks: u32,
    pub last_token: u64,
    pub watchers: usize,
    pub is_leader: bool,
    pub cluster: ClusterReport,
    /// How long the oldest write has been on its way to the disk.
    pub oldest_write: Option<Duration>,
}

/// The origin of a proposed command, which gets its answer.
enum Origin {
    /// The node itself: a deadline has passed, or a client has disconnected.
    Node,
    Request(RequestId, ReplyKind),
    /// A step of an acquire that takes several.
    Pending(PendingId, PendingStep, ConnectionId),
}

/// The kind of reply to a request, and what is needed to build it.
enum ReplyKind {
    Opened {
        ttl: Ttl,
    },
    Acquired {
        session: SessionId,
        number: Option<RequestNo>,
        is_async: bool,
        locks: LockNames,
        /// Counted until the request is answered.
        _places: Option<QueuePlaces>,
    },
    Released,
    /// Released by the lock's name.
    Dropped,
    Matched,
    /// Like `Matched`. The session of the grant does not expire until the request is answered.
    Extended {
        locks: LockNames,
        secret: Secret,
    },
    Cancelled,
    /// The fields are for the audit log.
    Broken {
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    },
    Raised {
        above: Token,
    },
    Done,
}

/// One node of the service.
pub struct Node {
    /// The number of the cluster, also of a service of one node.
    cluster: u128,
    config: NodeConfig,
    replica: Replica<Origin, PendingRead>,
    tokens: TokenBlock,
    /// The time of the last input.
    now: Moment,
    ticked_at: Moment,
    /// How long the node was paused in total. Sessions do not age during a pause.
    paused_for: Duration,
    queue: Vec<Proposal<Origin>>,
    /// Whether anything in the queue needs a write at once.
    is_urgent: bool,
    expired: VecDeque<Command>,
    /// Writes that are on their way to the disk, with the time they were handed over, the oldest first.
    writing: VecDeque<(u64, Moment)>,
    clients: Clients,
    sessions: Sessions,
    user_sessions: UserSessions,
    waits: Waits,
    queue_limit: QueueLimit,
    watches: Watches,
    /// Reads that may be answered now.
    reads: Reads,
    /// When this node asks for votes, because it has seen the leader's connection close.
    campaign_at: Option<Moment>,
    /// The last leader that this node knew, and the term.
    last_leader: Option<(u64, u64)>,
    /// Whether this node has counted its state since it was elected, and follows each change of it.
    is_leading: bool,
    replica_ticked_at: Moment,
    random: Random,
    /// The version of the log that each other member understands, as far as it has said so.
    understood: BTreeMap<u64, u16>,
    contacts: Contacts,
    /// The name of this node, which it gets once it leads a service of one node.
    name: Option<Member>,
    /// When the watermark was written last because the log had grown.
    progress_noted_at: Moment,
    /// Whether the next snapshot is made as soon as there is anything new.
    is_snapshot_wanted: bool,
    /// How long writes took lately.
    write_time: Duration,
    metrics: Metrics,
    is_closing: bool,
    output: Output,
}

impl Node {
    /// Returns a node that continues from the state on disk, as this member. It gives only tokens above `raise_above`.
    ///
    /// # Errors
    ///
    /// The state on disk cannot be used.
    pub fn new(
        config: NodeConfig,
        identity: &Identity,
        recovered: &crate::storage::Recovered,
        seeds: Seeds,
        raise_above: Option<u64>,
    ) -> Result<Node, crate::replica::ReplicaError> {
        let replica = Replica::new(identity.member, &identity.founders, seeds.hash_key, recovered)?;
        Ok(Node {
            cluster: identity.cluster,
            replica,
            tokens: TokenBlock::new(recovered.watermark, raise_above),
            now: Moment::ZERO,
            ticked_at: Moment::ZERO,
            paused_for: Duration::ZERO,
            queue: Vec::new(),
            is_urgent: false,
            expired: VecDeque::new(),
            writing: VecDeque::new(),
            clients: Clients::default(),
            sessions: Sessions::new(seeds.session_ids),
            user_sessions: UserSessions::new(config.users.as_ref().map(|_| config.sessions_per_user)),
            waits: Waits::new(),
            queue_limit: QueueLimit::new(config.waiters, config.waiters_per_user),
            watches: Watches::default(),
            reads: Reads::default(),
            campaign_at: None,
            last_leader: None,
            is_leading: false,
            replica_ticked_at: Moment::ZERO,
            random: Random::new(seeds.session_ids.rotate_left(32)),
            understood: BTreeMap::new(),
            contacts: Contacts::new(identity),
            name: None,
            progress_noted_at: Moment::ZERO,
            is_snapshot_wanted: false,
            write_time: Duration::ZERO,
            metrics: Metrics::default(),
            is_closing: false,
            output: Output::default(),
            config,
        })
    }

    /// Handles an input. `now` never goes back.
    pub fn step(&mut self, now: Moment, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Connected { connection, context } => self.clients.connected(connection, context),
            Input::Authenticated { connection, principal } => self.clients.authenticated(connection, principal),
            Input::Request { id, request } => self.request(id, request),
            Input::Abandoned { connection } => self.abandon(connection),
            Input::Disconnected { connection, delivered } => self.disconnected(connection, delivered),
            Input::Persisted { number } => self.persisted(number),
            Input::Compacted(compacted) => self.replica.compacted(compacted),
            Input::Received(message) => {
                if let Err(lost) = self.replica.receive(message) {
                    self.output.log_lost = Some(lost);
                }
            }
            Input::ReceivedSnapshot(message, snapshot) => self.receive_snapshot(message, &snapshot),
            Input::SnapshotSent { member, has_arrived } => self.snapshot_sent(member, has_arrived),
            Input::Unreachable { member } => self.replica.unreachable(member),
            Input::Suspect { member } => self.suspect(member),
            Input::MemberConnected { id, member, log } => self.member_connected(id, member, log),
            Input::UsersChanged => self.end_forbidden_waits(),
            Input::Closing => self.close(),
            Input::Tick => self.tick(),
        }
    }

    /// Proposes and answers what is ready, and returns the effects.
    pub fn take_output(&mut self) -> Output {
        self.propose();
        let outputs = self.replica.outputs();
        self.note_leader();
        if outputs.deposed.is_some() {
            self.stop_leading();
        }
        if outputs.members_changed {
            self.output.membership = Some(self.replica.membership().clone());
            self.output.contacts = Some(self.contacts.list(self.replica.membership()));
        }
        self.output.peer_messages.extend(outputs.messages);
        for (number, write) in outputs.persist {
            self.writing.push_back((number, self.now));
            self.output.writes.push((number, write));
        }
        if let Some(watermark) = self.tokens.needed_for(self.last_token(), self.replica.applied()) {
            self.output.watermark = Some(watermark);
        }
        for done in outputs.applied {
            self.applied(done);
        }
        if outputs.became_leader {
            self.start_leading();
        }
        self.reads.extend(outputs.reads);
        self.answer_reads();
        let compact_after = if self.is_snapshot_wanted { 0 } else { self.config.compact_after };
        self.output.compaction = self.replica.compaction(compact_after);
        self.is_snapshot_wanted &= self.output.compaction.is_none();
        self.output.has_more = !self.reads.is_empty() || self.replica.has_new_reads() || self.has_to_propose();
        self.output.wake_at = self.next_tick();
        std::mem::take(&mut self.output)
    }

    /// Returns when the node wants the next tick: for its deadlines if it leads, and for the replica's clock.
    fn next_tick(&self) -> Moment {
        let mut at = self.next_replica_tick();
        if !self.queue.is_empty() {
            at = at.min(self.ticked_at + TICK);
        }
        if self.is_leader() {
            let ticks = (at.saturating_sub(self.now).as_nanos() / TICK.as_nanos()) as u64 + 1;
            at = at.min(self.sessions.next_look(ticks) + self.paused_for).min(self.waits.next_look(ticks));
        }
        at
    }

    /// Returns whether this node is about to lead, because no other one votes. Until then it could only refuse requests.
    pub fn is_about_to_lead(&self) -> bool {
        !self.is_leader() && self.membership().is_only_voter(self.replica.id())
    }

    /// Returns whether this node is the leader, and has applied everything that earlier leaders committed.
    pub fn is_leader(&self) -> bool {
        self.replica.is_leader()
    }

    /// Returns the watermark of a node that stops in order. It excludes the unused rest of the token block, so that the
    /// next start continues with the next token. In a cluster the others go on with that block.
    pub fn last_watermark(&mut self) -> Watermark {
        match self.membership().members.len() {
            0 | 1 => self.tokens.stopped(self.last_token(), self.replica.applied()),
            _ => self.tokens.started(self.replica.applied()),
        }
    }

    /// Returns the node's metrics, and counts of its state.
    pub fn report(&self, now: Moment) -> NodeReport {
        let machine = self.replica.machine();
        NodeReport {
            metrics: self.metrics.clone(),
            sessions: machine.session_count(),
            locks: machine.lock_count(),
            last_token: self.last_token(),
            watchers: self.watches.len(),
            is_leader: self.is_leader(),
            cluster: self.cluster_report(),
            oldest_write: self.writing.front().map(|(_, at)| now.saturating_sub(*at)),
        }
    }

    fn last_token(&self) -> u64 {
        self.replica.machine().last_token().map_or(0, Token::get)
    }

    /// Returns the clock of session deadlines. It stops while the node is paused and cannot receive keep-alives.
    fn session_time(&self) -> Moment {
        self.now.saturating_sub(self.paused_for)
    }

    fn reply(&mut self, id: RequestId, response: Response) {
        self.output.messages.push(Message::Reply(id, response));
    }

    fn refuse(&mut self, id: RequestId, refused: impl Into<Refused>) {
        self.reply(id, Response::Refused(refused.into()));
    }

    /// Replies with what the state says now, once a majority has confirmed that this node still leads. The state of a leader that was
    /// deposed is old.
    fn reply_once_confirmed(&mut self, id: RequestId, response: Response) {
        self.replica.read(PendingRead::Reply(id, response));
    }

    fn request(&mut self, id: RequestId, request: Request) {
        let Some(context) = self.clients.context(id.connection) else { return };
        if let Principal::Unauthenticated = context.principal {
            return self.refuse(id, Refused::Unauthenticated);
        }
        if let Some(user) = context.principal.user().filter(|user| user.is_revoked()) {
            let why = format!("user '{}' was changed or removed; nothing was changed, log in again", user.name());
            return self.refuse(id, Refused::Denied(why));
        }
        // Only a leader has applied everything that was acknowledged.
        if !self.is_leader() {
            return self.refuse(id, Refused::NotLeader);
        }
        if let Err(refused) = permissions::check(context.principal.user(), &request, self.replica.machine()) {
            if let Refused::Denied(why) = &refused {
                let what = Audited::Denied(why.clone());
                self.output.audit.push(AuditEvent { context: context.clone(), what });
            }
            return match refused {
                Refused::Refusal(_) => self.reply_once_confirmed(id, Response::Refused(refused)),
                _ => self.refuse(id, refused),
            };
        }
        match request {
            Request::Acquire(acquire) => self.acquire(id, acquire),
            Request::KeepAlive { sessions } => self.keep_alive_all(id, sessions),
            Request::Attach { session } => self.attach(id, session),
            Request::Watch { prefix } => self.watch(id, prefix),
            Request::Unwatch { prefix } => self.unwatch(id, &prefix),
            Request::Query(query) => self.query(id, query),
            Request::DropHeld { lock } => self.drop_held(id, lock),
            Request::ExpireHeld { lock, ttl } => self.expire_held(id, lock, ttl),
            Request::ExtendHeld { locks, secret, time } => self.extend_held(id, locks, secret, time),
            other => self.change(id, other),
        }
    }

    /// Proposes a request that one command carries out.
    fn change(&mut self, id: RequestId, request: Request) {
        let label = |label: Option<&Label>| self.clients.label(id.connection, label);
        let (command, kind) = match request {
            Request::OpenSession { ttl, label: own } => {
                let label = label(own.as_ref());
                if let Err(refusal) = self.begin_session(id.connection) {
                    return self.reply_once_confirmed(id, Response::Refused(refusal.into()));
                }
                (Command::OpenSession { session: self.sessions.draw_id(), ttl, label }, ReplyKind::Opened { ttl })
            }
            Request::CloseSession { session } => (Command::CloseSession { session }, ReplyKind::Done),
            Request::Release { lock, token, session, number } => {
                let caller = session.map(|session| Caller { session, number });
                (Command::Release { caller, lock, token }, ReplyKind::Released)
            }
            Request::Cancel { session, number } => {
                (Command::Cancel { caller: session.into(), waiting: Waiting::Request(number) }, ReplyKind::Cancelled)
            }
            Request::Publish { session, lock, token, value } => {
                (Command::Publish { caller: session.into(), lock, token, value }, ReplyKind::Done)
            }
            Request::Break { lock, only, by, reason } => {
                let by = label(by.as_ref());
                let kind = ReplyKind::Broken { lock: lock.clone(), only, by: by.clone(), reason: reason.clone() };
                (Command::ForceRelease { lock, only, by, reason }, kind)
            }
            Request::Resize { lock, permits } => (Command::Resize { lock, limit: permits }, ReplyKind::Done),
            Request::RaiseTokens { above } => (Command::RaiseTokens { above }, ReplyKind::Raised { above }),
            Request::ReleaseHeld { locks, secret } => (Command::ReleaseHeld { locks, secret }, ReplyKind::Matched),
            Request::DropHeld { .. }
            | Request::ExpireHeld { .. }
            | Request::ExtendHeld { .. }
            | Request::Acquire(_)
            | Request::KeepAlive { .. }
            | Request::Attach { .. }
            | Request::Watch { .. }
            | Request::Unwatch { .. }
            | Request::Query(_) => return,
        };
        self.submit_for(id.connection, command, Origin::Request(id, kind));
    }

    /// Counts a session that is about to be opened for the client's user.
    fn begin_session(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        match self.clients.context(connection).and_then(|context| context.principal.user_name()) {
            Some(user) => self.user_sessions.open(user),
            None => Ok(()),
        }
    }

    /// Stops counting a session as about to be opened. Its events count it from now on.
    fn session_answered(&mut self, connection: ConnectionId) {
        if let Some(user) = self.clients.context(connection).and_then(|context| context.principal.user_name()) {
            self.user_sessions.answered(user);
        }
    }

    /// Queues a command of a client. The client's context is kept until the answer.
    fn submit_for(&mut self, connection: ConnectionId, command: Command, origin: Origin) {
        if let Some(protocol) = self.clients.begin_request(connection) {
            self.metrics.command(protocol, &command);
        }
        self.submit(command, origin);
    }

    fn submit(&mut self, command: Command, origin: Origin) {
        if let Some(acquire) = acquire_of(&command) {
            self.waits.arriving(acquire);
        }
        self.is_urgent |= !self.will_wait(&command);
        self.queue.push(Proposal { command, origin });
    }

    /// Returns whether a command will only join a queue. No client waits for its write, so it can wait for the next
    /// one.
    fn will_wait(&self, command: &Command) -> bool {
        acquire_of(command).is_some_and(|acquire| {
            acquire.patience == Patience::Wait && acquire.wants.iter().any(|want| self.is_taken(want))
        })
    }

    fn is_taken(&self, want: &Want) -> bool {
        self.replica.machine().lock(&want.lock).is_some_and(|lock| !lock.is_available(want.mode))
    }

    fn has_to_propose(&self) -> bool {
        self.writing.is_empty() && self.is_leader() && (self.is_urgent || !self.expired.is_empty())
    }

    /// Proposes what was queued while the last write became durable, as one entry.
    fn propose(&mut self) {
        if !self.has_to_propose() {
            return;
        }
        self.is_urgent = false;
        let mut batch = std::mem::take(&mut self.queue);
        let expired = self.expired.drain(..self.expired.len().min(EXPIRIES));
        batch.extend(expired.map(|command| Proposal { command, origin: Origin::Node }));
        let size = batch.len();
        match self.replica.propose(batch) {
            Ok(()) => self.metrics.batches.observe(size as f64),
            // It is about to let another node lead. Tried again with the next tick, if it still leads then.
            Err(refused) => self.queue = refused,
        }
    }

    fn persisted(&mut self, number: u64) {
        while self.writing.front().is_some_and(|(written, _)| *written <= number) {
            if let Some((_, at)) = self.writing.pop_front() {
                let took = self.now.saturating_sub(at);
                self.write_time = (self.write_time * 7 + took) / 8;
                self.metrics.commits.observe(took.as_secs_f64());
            }
        }
        self.replica.persisted(number);
    }

    fn tick(&mut self) {
        self.tick_replica();
        self.advance_members();
        self.note_progress();
        let since = self.now.saturating_sub(std::mem::replace(&mut self.ticked_at, self.now));
        if since > PAUSED {
            self.paused_for += since;
        }
        self.is_urgent |= !self.queue.is_empty();
        if self.is_leader() {
            self.expire_sessions();
            self.expire_waits();
        }
    }

    /// Starts to lead: restarts all deadlines, so that each session has its full TTL again.
    fn start_leading(&mut self) {
        self.is_leading = true;
        self.output.watermark = Some(self.tokens.started(self.replica.applied()));
        self.restart_deadlines();
        let machine = self.replica.machine();
        self.metrics.waiting = machine.locks(Cursor(0)).map(|(_, lock)| u64::from(lock.waiter_count())).sum();
        self.user_sessions.count(machine);
        self.queue_limit.count(machine, |session| self.user_sessions.user_of(session));
        self.end_forbidden_waits();
        let machine = self.replica.machine();
        if let Some(limits) = self.config.limits.clone().filter(|limits| limits != machine.limits()) {
            self.submit(Command::Configure { limits }, Origin::Node);
        }
        if let Some(above) = self.tokens.raise_after(self.last_token()).and_then(|above| Token::new(above).ok()) {
            // Before all queued requests of clients.
            self.queue.insert(0, Proposal { command: Command::RaiseTokens { above }, origin: Origin::Node });
            self.is_urgent = true;
        }
        tracing::info!(sessions = self.replica.machine().session_count(), "this node is the leader");
    }

    /// Answers a command that was committed, and handles its events.
    fn applied(&mut self, done: Done<Origin>) {
        let Done { origin, applied } = done;
        // `start_leading` counts the whole state again.
        if !self.is_leading {
            return;
        }
        // Commands from before a restart were counted then.
        if origin.is_some() {
            applied.events.iter().for_each(|event| self.metrics.event(event));
        }
        // A wait must be known before the events that may end it.
        match origin {
            None | Some(Origin::Node) => {}
            Some(Origin::Pending(id, step, connection)) => {
                if step == PendingStep::Acquire {
                    self.waits.arrived(id);
                }
                self.pending_answered(id, step, connection, applied.answer);
                self.clients.end_request(connection);
            }
            Some(Origin::Request(id, kind)) => {
                match &kind {
                    ReplyKind::Acquired { locks, .. } => self.waits.locks_arrived(locks.iter()),
                    ReplyKind::Extended { locks, secret } => self.sessions.extended(locks, secret),
                    _ => {}
                }
                self.audit_answer(id.connection, &kind, &applied.answer);
                let repeated = if applied.events.is_empty() { granted(&kind, &applied.answer) } else { None };
                self.answer(id, kind, applied.answer);
                if let Some((session, token)) = repeated {
                    self.push_if_ended(id.connection, session, token);
                }
                self.clients.end_request(id.connection);
            }
        }
        for event in &applied.events {
            self.event(event);
        }
    }

    fn audit_answer(&mut self, connection: ConnectionId, kind: &ReplyKind, answer: &Result<Answer, Refusal>) {
        let what = match (kind, answer) {
            (ReplyKind::Broken { lock, only, by, reason }, answer) => {
                let outcome = match answer {
                    Ok(Answer::Forced { grants, moved_to }) => Ok((*grants, *moved_to)),
                    Ok(_) => return,
                    Err(refusal) => Err(refusal.clone()),
                };
                self.metrics.forced += u64::from(outcome.is_ok());
                let (lock, by, reason) = (lock.clone(), by.clone(), reason.clone());
                Audited::Break(Box::new(BreakRecord { lock, only: *only, by, reason, outcome }))
            }
            (ReplyKind::Raised { above }, Ok(Answer::Raised { last })) => {
                Audited::RaiseTokens { above: *above, last: *last }
            }
            (_, Err(refusal @ Refusal::OtherSession { .. })) => Audited::ForeignGrant(refusal.clone()),
            _ => return,
        };
        if let Some(context) = self.clients.context(connection) {
            self.output.audit.push(AuditEvent { context: context.clone(), what });
        }
    }

    fn answer(&mut self, id: RequestId, kind: ReplyKind, answer: Result<Answer, Refusal>) {
        let response = match (kind, answer) {
            (ReplyKind::Opened { ttl }, answer) => {
                self.session_answered(id.connection);
                match answer {
                    Ok(Answer::Opened { session }) => {
                        self.sessions.subscribe(session, id.connection, &self.clients);
                        Response::Opened { session, ttl }
                    }
                    Ok(_) => Response::Done,
                    Err(refusal) => Response::Refused(refusal.into()),
                }
            }
            (ReplyKind::Acquired { session, .. }, Ok(Answer::Granted { token })) => {
                Response::Granted(self.grant(session, token))
            }
            (ReplyKind::Acquired { number, is_async: true, .. }, Ok(Answer::Queued { ticket })) => {
                self.waits.subscribe(ticket, number, id.connection, &self.clients);
                Response::Queued
            }
            (ReplyKind::Acquired { .. }, Ok(_)) => Response::NotGranted,
            (ReplyKind::Released, Ok(_)) => Response::Released,
            (ReplyKind::Matched | ReplyKind::Extended { .. }, Ok(Answer::Matched { locks, others })) => {
                Response::Matched { locks, others }
            }
            (ReplyKind::Dropped, Ok(_)) => Response::Matched { locks: 1, others: 0 },
            (ReplyKind::Dropped, Err(Refusal::NotHeld { .. })) => Response::Matched { locks: 0, others: 0 },
            (ReplyKind::Cancelled, Ok(_) | Err(Refusal::NotWaiting)) => Response::Cancelled { granted: None },
            (ReplyKind::Cancelled, Err(Refusal::AlreadyGranted { token })) => {
                Response::Cancelled { granted: Some(token) }
            }
            (ReplyKind::Broken { .. }, Ok(Answer::Forced { grants, moved_to })) => {
                Response::Broken { grants, moved_to }
            }
            (ReplyKind::Raised { above }, Ok(Answer::Raised { last })) => Response::TokensRaised(last < above.get()),
            (_, Ok(_)) => Response::Done,
            (_, Err(refusal)) => Response::Refused(refusal.into()),
        };
        self.reply(id, response);
    }

    fn grant(&self, session: SessionId, token: Token) -> GrantReply {
        let ttl_ms = self.replica.machine().session(session).map_or(0, |session| session.ttl().as_ms());
        GrantReply { token, session, ttl_ms }
    }

    fn push(&mut self, to: Recipients, push: Push) {
        if !to.is_empty() {
            self.output.messages.push(Message::Push(to, push));
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::SessionOpened { session, ttl } => self.session_opened(*session, *ttl),
            Event::TtlChanged { session, ttl } => self.start_deadline(*session, *ttl),
            Event::SessionEnded { session, how } => self.session_ended(*session, *how),
            Event::Granted { session, token, ticket, .. } => {
                self.sessions.granted(*token, self.session_time());
                if let Some(ticket) = ticket {
                    self.wait_ended(*ticket, *session, Ok(*token));
                }
            }
            Event::Queued { ticket, session, locks } => self.wait_began(*ticket, *session, locks.len()),
            Event::LeftQueue { ticket, why, session, .. } => self.wait_ended(*ticket, *session, Err(why)),
            Event::GrantEnded { session, token, how, .. } => self.grant_ended(*session, *token, how),
            Event::Withheld { locks, token, delay } => {
                self.sessions.withhold(*token, locks[0].clone(), *delay, self.session_time());
            }
            Event::DelayEnded { token, .. } => self.sessions.end_delay(*token),
            Event::Published { .. } | Event::Resized { .. } => {}
            Event::TokensRaised { .. } | Event::Configured { .. } => {}
        }
        self.notify_watchers(event);
    }
}

/// Returns the grant in the answer to an acquire.
fn granted(kind: &ReplyKind, answer: &Result<Answer, Refusal>) -> Option<(SessionId, Token)> {
    match (kind, answer) {
        (ReplyKind::Acquired { session, .. }, Ok(Answer::Granted { token })) => Some((*session, *token)),
        _ => None,
    }
}

/// Returns the acquire in a command, if there is one.
fn acquire_of(command: &Command) -> Option<&Acquire> {
    match command {
        Command::Acquire(acquire) | Command::OpenAndAcquire(OpenAndAcquire { acquire, .. }) => Some(acquire),
        _ => None,
    }
}

/// Returns the acquire of a request. A request that waits for its reply is refused if its own session holds the lock:
/// nothing else on its connection could release it. A session of asynchronous requests may be shared by many tasks, and
/// can queue behind itself.
fn acquire(request: &AcquireRequest, session: SessionId) -> Acquire {
    let waits = request.waits();
    Acquire {
        caller: Caller { session, number: request.number },
        wants: request.wants.clone(),
        patience: if waits { Patience::Wait } else { Patience::Try },
        reentry: if waits && !request.is_async { Reentry::Refuse } else { Reentry::Queue },
        delay: request.delay,
        value: request.value.clone(),
    }
}
