//! Acquires that wait: those whose client gets a push, and those that the node carries out in several steps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use palisade_core::{Answer, Command, Cursor, Departure, Refusal, RequestNo, SessionId, Ticket, Token, Waiting};

use super::clients::{Clients, ConnectionId};
use super::queue_limit::QueuePlaces;
use super::response::{GrantReply, Push, Refused, Response};
use super::sessions::Subscribers;
use super::wheel::{Moment, Wheel};
use super::{Node, Origin, Protocol, ReplyKind, RequestId, acquire_command};
use crate::access::Verb;
use crate::request::{AcquireRequest, Holder};

/// Identifies a pending acquire.
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
/// disconnected.
struct PendingAcquire {
    id: RequestId,
    request: AcquireRequest,
    session: Option<SessionId>,
    /// Its ticket, while it is in a queue.
    ticket: Option<Ticket>,
    /// The acquire is to be cancelled: its time is over, or its client has left.
    is_abandoned: bool,
    /// The client has closed its side of the connection.
    has_client_left: bool,
    places: Option<QueuePlaces>,
    /// Why nothing was granted. Set while the session that was opened for the request is being closed.
    no_grant: Option<NoGrant>,
}

/// Why a pending acquire ended without a grant.
enum NoGrant {
    /// It timed out or was cancelled, or the lock was not available.
    NotAvailable,
    Refused(Refusal),
}

/// A grant whose reply may not reach its client.
#[derive(Debug)]
pub(super) struct Undelivered {
    grant: GrantReply,
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
    /// Sessions that the node has opened for pending acquires.
    temporary_sessions: HashSet<SessionId>,
}

impl Waits {
    /// Returns when to look for passed deadlines again, not later than so many ticks after the last look.
    pub(super) fn next_look(&self, ticks: u64) -> Moment {
        self.deadlines.next_look(ticks)
    }

    pub(super) fn new() -> Waits {
        Waits {
            by_ticket: HashMap::new(),
            queued_at: HashMap::new(),
            pending: BTreeMap::new(),
            last_pending: 0,
            deadlines: Wheel::new(),
            temporary_sessions: HashSet::new(),
        }
    }

    /// Returns whether the node has opened the session for a pending acquire.
    pub(super) fn is_temporary(&self, session: SessionId) -> bool {
        self.temporary_sessions.contains(&session)
    }

    /// Subscribes the connection to the push that ends this wait.
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
                self.submit_for(id.connection, acquire_command(&request, session), Origin::Request(id, kind));
            }
            _ => self.begin_pending(id, request, places),
        }
    }

    /// Returns whether the client uses HTTP. Over HTTP a grant is released if its reply does not arrive.
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
        // A repeat takes no further places.
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
        let acquire = PendingAcquire {
            id,
            request,
            session,
            ticket: None,
            is_abandoned: false,
            has_client_left: false,
            places,
            no_grant: None,
        };
        self.waits.pending.insert(pending, acquire);
        self.clients.add_pending(id.connection, pending);
        match holder {
            Holder::Session(session) => self.submit_acquire(pending, session),
            Holder::NewSession(ttl) => {
                let label = self.clients.label(id.connection, None);
                let open = Command::OpenSession { session: self.sessions.draw_id(), ttl, label };
                self.submit_for(id.connection, open, Origin::Pending(pending, PendingStep::Open, id.connection));
            }
        }
    }

    fn submit_acquire(&mut self, pending: PendingId, session: SessionId) {
        let Some(acquire) = self.waits.pending.get(&pending) else { return };
        let (connection, command) = (acquire.id.connection, acquire_command(&acquire.request, session));
        self.submit_for(connection, command, Origin::Pending(pending, PendingStep::Acquire, connection));
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
            // If it waits, the queue counts it from now on.
            acquire.places = None;
        }
        match (step, answer) {
            (PendingStep::Close, _) => {
                let why = acquire.no_grant.take().unwrap_or(NoGrant::NotAvailable);
                self.answer_without_grant(pending, why);
            }
            (PendingStep::Open, Ok(Answer::Opened { session })) => self.session_ready(pending, session),
            (PendingStep::Acquire, Ok(Answer::Granted { token })) => self.finish(pending, Ok(token)),
            (PendingStep::Acquire, Ok(Answer::Queued { ticket })) => self.queued(pending, ticket),
            (PendingStep::Cancel, Err(Refusal::AlreadyGranted { token })) => self.finish(pending, Ok(token)),
            // The event that it has left the queue follows.
            (PendingStep::Cancel, Ok(_)) => {}
            (PendingStep::Cancel, Err(Refusal::NotWaiting)) => self.finish(pending, Err(NoGrant::NotAvailable)),
            (PendingStep::Open | PendingStep::Acquire, Ok(_)) => self.finish(pending, Err(NoGrant::NotAvailable)),
            (_, Err(refusal)) => self.finish(pending, Err(NoGrant::Refused(refusal))),
        }
    }

    fn session_ready(&mut self, pending: PendingId, session: SessionId) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        acquire.session = Some(session);
        let is_abandoned = acquire.is_abandoned;
        self.waits.temporary_sessions.insert(session);
        match is_abandoned {
            true => self.finish(pending, Err(NoGrant::NotAvailable)),
            false => self.submit_acquire(pending, session),
        }
    }

    fn queued(&mut self, pending: PendingId, ticket: Ticket) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        acquire.ticket = Some(ticket);
        let wait = Duration::from_millis(acquire.request.wait_ms.unwrap_or(0));
        let is_abandoned = acquire.is_abandoned;
        // A repeat of a numbered request takes over the wait of the first one, which is answered without a grant.
        if let Some(Waiter::Pending(first)) = self.waits.by_ticket.insert(ticket, Waiter::Pending(pending))
            && first != pending
        {
            if let Some(first) = self.waits.pending.get_mut(&first) {
                first.ticket = None;
            }
            self.finish(first, Err(NoGrant::NotAvailable));
        }
        match is_abandoned {
            true => self.cancel(pending),
            false => self.waits.deadlines.set(pending, self.now + wait),
        }
    }

    /// Cancels the request, or marks it as abandoned if it is not in a queue yet.
    fn cancel(&mut self, pending: PendingId) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        acquire.is_abandoned = true;
        if let (Some(session), Some(ticket)) = (acquire.session, acquire.ticket) {
            let connection = acquire.id.connection;
            let cancel = Command::Cancel { caller: session.into(), waiting: Waiting::Ticket(ticket) };
            self.submit_for(connection, cancel, Origin::Pending(pending, PendingStep::Cancel, connection));
        }
    }

    /// Ends a pending acquire.
    fn finish(&mut self, pending: PendingId, outcome: Result<Token, NoGrant>) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        if acquire.no_grant.is_some() {
            // A second cancel is answered while the session is being closed; the reply follows the close.
            return;
        }
        let (connection, session) = (acquire.id.connection, acquire.session);
        self.waits.deadlines.remove(pending);
        if let Some(ticket) = acquire.ticket.take() {
            self.waits.by_ticket.remove(&ticket);
        }
        let temporary = session.filter(|session| self.waits.temporary_sessions.remove(session));
        let why = match (outcome, session) {
            (Ok(token), Some(session)) => return self.answer_with_grant(pending, session, temporary, token),
            // Only a session can be granted a lock.
            (Ok(_), None) => NoGrant::NotAvailable,
            (Err(why), _) => why,
        };
        match temporary {
            Some(session) => {
                acquire.no_grant = Some(why);
                let close = Command::CloseSession { session };
                self.submit_for(connection, close, Origin::Pending(pending, PendingStep::Close, connection));
            }
            None => self.answer_without_grant(pending, why),
        }
    }

    fn answer_with_grant(
        &mut self,
        pending: PendingId,
        session: SessionId,
        temporary: Option<SessionId>,
        token: Token,
    ) {
        let Some(PendingAcquire { id, request, has_client_left, .. }) = self.waits.pending.remove(&pending) else {
            return;
        };
        // The session can repeat a numbered request, and keeps its grant.
        let is_unwanted = has_client_left && request.number.is_none();
        let undelivered = Undelivered { grant: self.grant(session, token), request };
        if !self.clients.is_connected(id.connection) {
            self.release_undelivered(&undelivered);
        } else if is_unwanted {
            self.release_undelivered(&undelivered);
            let response = self.not_granted(id.connection);
            self.reply(id, response);
        } else {
            if let Some(session) = temporary {
                // The client gets the lock for the whole TTL, however long it has waited. It fails only on a node that
                // does not lead, and such a node grants nothing.
                let _ = self.keep_alive(session);
            }
            self.reply(id, Response::Granted(undelivered.grant));
            if self.is_http(id.connection) {
                self.clients.set_undelivered(id.connection, undelivered);
            }
        }
        self.clients.remove_pending(id.connection, pending);
    }

    fn answer_without_grant(&mut self, pending: PendingId, why: NoGrant) {
        let Some(PendingAcquire { id, .. }) = self.waits.pending.remove(&pending) else { return };
        let response = match why {
            NoGrant::Refused(refusal) => Response::Refused(refusal.into()),
            NoGrant::NotAvailable => self.not_granted(id.connection),
        };
        self.reply(id, response);
        self.clients.remove_pending(id.connection, pending);
    }

    fn not_granted(&self, connection: ConnectionId) -> Response {
        let context = self.clients.context(connection);
        if let Some(user) = context.and_then(|context| context.principal.user()).filter(|user| user.is_revoked()) {
            return Response::Refused(Refused::Denied(format!(
                "user '{}' was changed or removed while it waited; nothing is held or queued",
                user.name()
            )));
        }
        if self.is_closing { Response::Refused(Refused::Closing) } else { Response::NotGranted }
    }

    /// Releases a grant whose client has disconnected. The grant of a numbered request stays: the client can repeat the
    /// request, and gets the same token.
    fn release_undelivered(&mut self, undelivered: &Undelivered) {
        let Undelivered { grant, request } = undelivered;
        let command = match (request.holder, request.number, request.wants.first()) {
            (Holder::NewSession(_), _, _) => Command::CloseSession { session: grant.session },
            (Holder::Session(_), None, Some(want)) => {
                Command::Release { caller: None, lock: want.lock.clone(), token: grant.token }
            }
            _ => return,
        };
        self.submit(command, Origin::Node);
    }

    /// Cancels the pending acquires of a client that does not wait any more.
    pub(super) fn abandon(&mut self, connection: ConnectionId) {
        for pending in self.clients.pending(connection) {
            if let Some(acquire) = self.waits.pending.get_mut(&pending) {
                acquire.has_client_left = true;
            }
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
            self.release_undelivered(&undelivered);
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
        if users.is_some_and(|users| user.and_then(|user| users.find(user)).is_none()) {
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
                    Ok(token) => Ok(token),
                    Err(Departure::Refused(refusal)) => Err(NoGrant::Refused(refusal.clone())),
                    Err(Departure::SessionEnded(_)) => Err(NoGrant::Refused(Refusal::NoSuchSession { session })),
                    Err(Departure::Cancelled) => Err(NoGrant::NotAvailable),
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
                let user = self.user_sessions.user_of(waiter.session).and_then(|name| users.find(name));
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
        self.submit(cancel, Origin::Node);
    }
}
