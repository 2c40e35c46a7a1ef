//! Acquires that wait: those whose client gets a push, and those that the node carries out in several steps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use palisade_core::{Answer, Command, Cursor, Departure, Refusal, RequestNo, SessionId, Ticket, Token, Waiting};

use super::clients::{Clients, ConnectionId};
use super::queue_limit::QueuePlaces;
use super::response::{Grant, Push, Refused, Response};
use super::sessions::Subscribers;
use super::wheel::{Moment, Wheel};
use super::{Caller, Node, Protocol, ReplyKind, RequestId, acquire_command};
use crate::access::Verb;
use crate::request::{AcquireRequest, Holder};

/// Names an acquire that takes several steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PendingId(u64);

/// The steps of a [`PendingAcquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PendingStep {
    Open,
    Acquire,
    Cancel,
    /// Nothing was granted: the session that was opened for the request is closed.
    Close,
}

/// A request that takes several steps: open a session, acquire, wait, and cancel if the time is over or the client has
/// gone.
struct PendingAcquire {
    id: RequestId,
    request: AcquireRequest,
    session: Option<SessionId>,
    /// Its ticket while it waits in a queue.
    ticket: Option<Ticket>,
    /// The client does not wait any longer.
    is_abandoned: bool,
    places: Option<QueuePlaces>,
    /// How it ended without a grant, while its session is being closed.
    refused: Option<Result<(), Refusal>>,
}

/// A grant whose reply may not reach its client.
#[derive(Debug)]
pub(super) struct Undelivered {
    grant: Grant,
    request: AcquireRequest,
}

enum Waiter {
    /// The client gets a push.
    Push(Subscribers, Option<RequestNo>),
    Pending(PendingId),
}

pub(super) struct Waits {
    by_ticket: HashMap<Ticket, Waiter>,
    queued_at: HashMap<Ticket, Moment>,
    pending: BTreeMap<PendingId, PendingAcquire>,
    last_pending: u64,
    deadlines: Wheel<PendingId>,
    /// Sessions that were opened for a pending acquire.
    owned: HashSet<SessionId>,
}

impl Waits {
    pub(super) fn new() -> Waits {
        Waits {
            by_ticket: HashMap::new(),
            queued_at: HashMap::new(),
            pending: BTreeMap::new(),
            last_pending: 0,
            deadlines: Wheel::new(),
            owned: HashSet::new(),
        }
    }

    /// Whether the session was opened for an acquire that is not yet answered.
    pub(super) fn owns(&self, session: SessionId) -> bool {
        self.owned.contains(&session)
    }

    /// Has the connection told how this wait ends.
    pub(super) fn subscribe(
        &mut self,
        ticket: Ticket,
        number: Option<RequestNo>,
        connection: ConnectionId,
        clients: &Clients,
    ) {
        let waiter = self.by_ticket.entry(ticket).or_insert_with(|| Waiter::Push(Subscribers::default(), number));
        if let Waiter::Push(subscribers, _) = waiter {
            subscribers.add(connection, clients);
        }
    }
}

impl Node {
    pub(super) fn acquire(&mut self, id: RequestId, request: AcquireRequest) {
        let places = match self.places(id.connection, &request) {
            Ok(places) => places,
            Err(refused) => return self.refuse(id, refused),
        };
        match request.holder {
            Holder::Session(session) if !request.is_blocking() && !self.is_http(id.connection) => {
                let AcquireRequest { number, is_async, .. } = request;
                let kind = ReplyKind::Acquired { session, number, is_async, _places: places };
                self.submit_for(id.connection, acquire_command(&request, session), Caller::Request(id, kind));
            }
            _ => self.begin_pending(id, request, places),
        }
    }

    /// Over HTTP a grant is given back if its reply does not arrive.
    fn is_http(&self, connection: ConnectionId) -> bool {
        self.clients.context(connection).is_some_and(|context| context.protocol == Protocol::Http)
    }

    /// Takes places in queues for a request that may wait, until it is answered. `None` for one that does not wait.
    fn places(&mut self, connection: ConnectionId, request: &AcquireRequest) -> Result<Option<QueuePlaces>, Refused> {
        let most = self.config.wait_ms;
        if let Some(wait_ms) = request.wait_ms.filter(|wait_ms| *wait_ms > most) {
            let why = format!("wait_ms is {wait_ms}, and at most {most}; nothing is held or queued");
            return Err(Refused::OverBound(why));
        }
        if !request.waits() {
            return Ok(None);
        }
        // A repeat has its places already.
        if let (Some(session), Some(number)) = (request.holder.session(), request.number)
            && self.replica.machine().has_request(session, number)
        {
            return Ok(None);
        }
        let user = self.clients.context(connection).and_then(|context| context.principal.user_name());
        self.queue_limit.take(user, request.wants.len()).map(Some)
    }

    fn begin_pending(&mut self, id: RequestId, request: AcquireRequest, places: Option<QueuePlaces>) {
        let holder = request.holder;
        if holder.session().is_none()
            && let Err(refusal) = self.begin_session(id.connection)
        {
            return self.refuse(id, refusal);
        }
        self.waits.last_pending += 1;
        let pending = PendingId(self.waits.last_pending);
        let session = holder.session();
        let acquire =
            PendingAcquire { id, request, session, ticket: None, is_abandoned: false, places, refused: None };
        self.waits.pending.insert(pending, acquire);
        self.clients.add_pending(id.connection, pending);
        match holder {
            Holder::Session(session) => self.submit_acquire(pending, session),
            Holder::NewSession(ttl) => {
                let label = self.clients.label(id.connection, None);
                let open = Command::OpenSession { ttl, label };
                self.submit_for(id.connection, open, Caller::Pending(pending, PendingStep::Open, id.connection));
            }
        }
    }

    fn submit_acquire(&mut self, pending: PendingId, session: SessionId) {
        let Some(acquire) = self.waits.pending.get(&pending) else { return };
        let (connection, command) = (acquire.id.connection, acquire_command(&acquire.request, session));
        self.submit_for(connection, command, Caller::Pending(pending, PendingStep::Acquire, connection));
    }

    /// Takes the next step of an acquire.
    pub(super) fn pending_answered(
        &mut self,
        pending: PendingId,
        step: PendingStep,
        connection: ConnectionId,
        answer: Result<Answer, Refusal>,
    ) {
        if step == PendingStep::Open {
            self.session_answered(connection);
        }
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        if step == PendingStep::Acquire {
            // From now on the queue itself counts it.
            acquire.places = None;
        }
        match (step, answer) {
            (PendingStep::Close, _) => {
                let refused = acquire.refused.take().unwrap_or(Ok(()));
                self.answer_without_grant(pending, refused);
            }
            (PendingStep::Open, Ok(Answer::Opened { session })) => self.session_ready(pending, session),
            (PendingStep::Acquire, Ok(Answer::Granted { token })) => self.finish(pending, Ok(Some(token))),
            (PendingStep::Acquire, Ok(Answer::Queued { ticket })) => self.queued(pending, ticket),
            (PendingStep::Cancel, Err(Refusal::AlreadyGranted { token })) => self.finish(pending, Ok(Some(token))),
            // The event that it has left the queue follows.
            (PendingStep::Cancel, Ok(_)) => {}
            (PendingStep::Cancel, Err(Refusal::NotWaiting)) => self.finish(pending, Ok(None)),
            (PendingStep::Open | PendingStep::Acquire, Ok(_)) => self.finish(pending, Ok(None)),
            (_, Err(refusal)) => self.finish(pending, Err(refusal)),
        }
    }

    fn session_ready(&mut self, pending: PendingId, session: SessionId) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        acquire.session = Some(session);
        let is_abandoned = acquire.is_abandoned;
        self.waits.owned.insert(session);
        match is_abandoned {
            true => self.finish(pending, Ok(None)),
            false => self.submit_acquire(pending, session),
        }
    }

    fn queued(&mut self, pending: PendingId, ticket: Ticket) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        acquire.ticket = Some(ticket);
        let wait = Duration::from_millis(acquire.request.wait_ms.unwrap_or(0));
        let is_abandoned = acquire.is_abandoned;
        // A repeat of a numbered request takes over the wait of the first, which ends without a word.
        if let Some(Waiter::Pending(first)) = self.waits.by_ticket.insert(ticket, Waiter::Pending(pending))
            && first != pending
        {
            if let Some(first) = self.waits.pending.get_mut(&first) {
                first.ticket = None;
            }
            self.finish(first, Ok(None));
        }
        match is_abandoned {
            true => self.cancel(pending),
            false => self.waits.deadlines.set(pending, self.now + wait),
        }
    }

    /// Leaves the queue, or remembers to do so once the request is in it.
    fn cancel(&mut self, pending: PendingId) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        acquire.is_abandoned = true;
        if let (Some(session), Some(ticket)) = (acquire.session, acquire.ticket) {
            let connection = acquire.id.connection;
            let cancel = Command::Cancel { caller: session.into(), waiting: Waiting::Ticket(ticket) };
            self.submit_for(connection, cancel, Caller::Pending(pending, PendingStep::Cancel, connection));
        }
    }

    /// Ends a pending acquire: with a grant, or without and perhaps with the reason.
    fn finish(&mut self, pending: PendingId, outcome: Result<Option<Token>, Refusal>) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        if acquire.refused.is_some() {
            // A second cancel is answered while the session is being closed; the reply follows the close.
            return;
        }
        let (connection, session) = (acquire.id.connection, acquire.session);
        self.waits.deadlines.remove(pending);
        if let Some(ticket) = acquire.ticket.take() {
            self.waits.by_ticket.remove(&ticket);
        }
        let owned = session.filter(|session| self.waits.owned.remove(session));
        match (outcome, session, owned) {
            (Ok(Some(token)), Some(session), owned) => self.answer_with_grant(pending, session, owned, token),
            (outcome, _, Some(session)) => {
                acquire.refused = Some(outcome.map(drop));
                let close = Command::CloseSession { session };
                self.submit_for(connection, close, Caller::Pending(pending, PendingStep::Close, connection));
            }
            (outcome, _, None) => self.answer_without_grant(pending, outcome.map(drop)),
        }
    }

    fn answer_with_grant(&mut self, pending: PendingId, session: SessionId, owned: Option<SessionId>, token: Token) {
        let Some(PendingAcquire { id, request, .. }) = self.waits.pending.remove(&pending) else { return };
        let undelivered = Undelivered { grant: self.grant(session, token), request };
        if !self.clients.is_connected(id.connection) {
            self.give_back(&undelivered);
        } else {
            if let Some(session) = owned {
                // The client has the lock for its whole TTL, however long it has waited. Only the leader can do this,
                // and only the leader grants.
                let _ = self.keep_alive(session);
            }
            self.reply(id, Response::Granted(undelivered.grant));
            if self.is_http(id.connection) {
                self.clients.set_undelivered(id.connection, undelivered);
            }
        }
        self.clients.remove_pending(id.connection, pending);
    }

    fn answer_without_grant(&mut self, pending: PendingId, refused: Result<(), Refusal>) {
        let Some(PendingAcquire { id, .. }) = self.waits.pending.remove(&pending) else { return };
        let response = match refused {
            Err(refusal) => Response::Refused(refusal.into()),
            Ok(()) => self.not_granted(id.connection),
        };
        self.reply(id, response);
        self.clients.remove_pending(id.connection, pending);
    }

    fn not_granted(&self, connection: ConnectionId) -> Response {
        let context = self.clients.context(connection);
        if let Some(user) = context.and_then(|context| context.principal.user()).filter(|user| user.is_gone()) {
            return Response::Refused(Refused::Denied(format!(
                "user '{}' was changed or removed while it waited; nothing is held or queued",
                user.name()
            )));
        }
        if self.is_closing { Response::Refused(Refused::Closing) } else { Response::NotGranted }
    }

    /// Gives back a grant whose client has gone. A numbered request is left to its session: the client can repeat it, and
    /// is told the same token.
    fn give_back(&mut self, undelivered: &Undelivered) {
        let Undelivered { grant, request } = undelivered;
        let command = match (request.holder, request.number, request.wants.first()) {
            (Holder::NewSession(_), _, _) => Command::CloseSession { session: grant.session },
            (Holder::Session(_), None, Some(want)) => {
                Command::Release { caller: None, lock: want.lock.clone(), token: grant.token }
            }
            _ => return,
        };
        self.submit(command, Caller::Node);
    }

    /// The client of this connection does not wait any longer.
    pub(super) fn abandon(&mut self, connection: ConnectionId) {
        for pending in self.clients.pending(connection) {
            self.cancel(pending);
        }
    }

    pub(super) fn disconnected(&mut self, connection: ConnectionId, delivered: bool) {
        self.watches.remove(connection);
        let (pending, undelivered) = self.clients.disconnected(connection);
        for pending in pending {
            self.cancel(pending);
        }
        if let Some(undelivered) = undelivered.filter(|_| !delivered) {
            self.give_back(&undelivered);
        }
    }

    /// Ends every acquire that the node carries out for a client.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        let pending: Vec<_> = self.waits.pending.keys().copied().collect();
        pending.into_iter().for_each(|pending| self.cancel(pending));
    }

    pub(super) fn expire_waits(&mut self) {
        for pending in self.waits.deadlines.due(self.now) {
            self.cancel(pending);
        }
    }

    pub(super) fn wait_began(&mut self, ticket: Ticket, session: SessionId, locks: usize) {
        let now = self.session_time();
        self.waits.queued_at.insert(ticket, now);
        let user = self.user_sessions.user_of(session);
        self.queue_limit.queued(ticket, user, locks);
        // The user may have been removed while the request became durable.
        let users = self.config.users.as_ref().filter(|_| self.is_leader());
        if users.is_some_and(|users| user.and_then(|user| users.vouched_for(user)).is_none()) {
            self.cancel_wait(session, ticket);
        }
    }

    pub(super) fn wait_ended(&mut self, ticket: Ticket, session: SessionId, outcome: Result<Token, &Departure>) {
        if let Some(at) = self.waits.queued_at.remove(&ticket) {
            let waited = self.session_time().saturating_sub(at).as_secs_f64();
            let waits = match outcome {
                Ok(_) => &mut self.metrics.waits_granted,
                Err(_) => &mut self.metrics.waits_left,
            };
            waits.observe(waited);
        }
        self.queue_limit.left(ticket);
        match self.waits.by_ticket.remove(&ticket) {
            Some(Waiter::Push(subscribers, number)) => {
                let push = match outcome {
                    Ok(token) => Push::Granted { session, number, token },
                    Err(why) => Push::WaitEnded { session, number, why: why.clone() },
                };
                self.push(subscribers.connected(&self.clients), push);
            }
            Some(Waiter::Pending(pending)) => self.finish(
                pending,
                match outcome {
                    Ok(token) => Ok(Some(token)),
                    Err(Departure::Refused(refusal)) => Err(refusal.clone()),
                    Err(Departure::SessionEnded(_)) => Err(Refusal::NoSuchSession { session }),
                    Err(Departure::Cancelled) => Ok(None),
                },
            ),
            None => {}
        }
    }

    /// Ends the waits of users that were removed, or that lost the right to what they wait for.
    pub(super) fn end_forbidden_waits(&mut self) {
        let Some(users) = self.config.users.clone().filter(|_| self.is_leader()) else { return };
        let mut forbidden = Vec::new();
        for (_, lock) in self.replica.machine().locks(Cursor(0)) {
            for waiter in lock.waiters() {
                let user = self.user_sessions.user_of(waiter.session).and_then(|name| users.vouched_for(name));
                let verb = Verb::to_acquire(waiter.mode);
                if !user.is_some_and(|user| user.may(verb, lock.name().as_str())) {
                    forbidden.push((waiter.session, waiter.ticket));
                }
            }
        }
        // A request for several locks is in several queues, and is cancelled once.
        forbidden.sort_unstable();
        forbidden.dedup();
        forbidden.into_iter().for_each(|(session, ticket)| self.cancel_wait(session, ticket));
    }

    fn cancel_wait(&mut self, session: SessionId, ticket: Ticket) {
        let cancel = Command::Cancel { caller: session.into(), waiting: Waiting::Ticket(ticket) };
        self.submit(cancel, Caller::Node);
    }
}
