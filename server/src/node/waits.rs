//! Acquires that wait: those whose client gets a push, and those that the node carries out in several steps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use palisade_core::{
    Acquire, Answer, Command, Cursor, Departure, LockName, LockNames, OpenAndAcquire, Refusal, RequestNo, Secret,
    SessionId, Ticket, Token, Waiting, Want,
};

use super::clients::{Clients, ConnectionId};
use super::queue_limit::QueuePlaces;
use super::response::{GrantReply, Push, Refused, Response};
use super::sessions::Subscribers;
use super::wheel::{Moment, Wheel};
use super::{Node, Origin, Protocol, ReplyKind, RequestId, acquire};
use crate::access::Verb;
use crate::request::{AcquireRequest, Holder};

/// Identifies a pending acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PendingId(u64);

/// The steps of a [`PendingAcquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PendingStep {
    Acquire,
    Cancel,
}

/// A request that may take several steps: acquire, wait, and cancel if the time is over or the client has disconnected.
struct PendingAcquire {
    id: RequestId,
    request: AcquireRequest,
    session: SessionId,
    /// Its ticket, while it is in a queue.
    ticket: Option<Ticket>,
    /// The acquire is to be cancelled: its time is over, or its client has left.
    is_abandoned: bool,
    /// The client has closed its side of the connection.
    has_client_left: bool,
    places: Option<QueuePlaces>,
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
    /// Sessions that were opened for acquires that are in a queue.
    temporary_sessions: HashSet<SessionId>,
    /// The locks of acquires that were submitted and are not applied yet, and how many acquires.
    arriving: HashMap<LockName, u32>,
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
            arriving: HashMap::new(),
        }
    }

    /// Counts an acquire that was submitted.
    pub(super) fn arriving(&mut self, acquire: &Acquire) {
        for want in &acquire.wants {
            *self.arriving.entry(want.lock.clone()).or_default() += 1;
        }
    }

    /// Stops counting an acquire that was applied.
    pub(super) fn arrived(&mut self, pending: PendingId) {
        if let Some(acquire) = self.pending.get(&pending) {
            let locks: LockNames = acquire.request.wants.iter().map(|want| want.lock.clone()).collect();
            self.locks_arrived(locks.iter());
        }
    }

    pub(super) fn locks_arrived<'a>(&mut self, locks: impl Iterator<Item = &'a LockName>) {
        for lock in locks {
            if let Some(count) = self.arriving.get_mut(lock) {
                *count -= 1;
                if *count == 0 {
                    self.arriving.remove(lock);
                }
            }
        }
    }

    /// Returns when a request joined its queue.
    pub(super) fn queued_at(&self, ticket: Ticket) -> Option<Moment> {
        self.queued_at.get(&ticket).copied()
    }

    /// Returns whether the session was opened for an acquire that is in a queue.
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
    /// Returns whether this acquire may join a queue, and be answered later than those behind it. It certainly does not if
    /// its locks are free and no other acquire of them is under way.
    pub(crate) fn may_queue(&self, request: &AcquireRequest) -> bool {
        let may_wait = |want: &Want| self.waits.arriving.contains_key(&want.lock) || self.is_taken(want);
        request.waits() && !request.is_async && request.wants.iter().any(may_wait)
    }

    pub(super) fn acquire(&mut self, id: RequestId, request: AcquireRequest) {
        let places = match self.places(id.connection, &request) {
            Ok(places) => places,
            Err(refused) => return self.reply_once_confirmed(id, Response::Refused(refused)),
        };
        match request.holder {
            Holder::Session(session) if (!request.waits() || request.is_async) && !self.is_http(id.connection) => {
                let command = Command::Acquire(acquire(&request, session));
                let AcquireRequest { number, is_async, wants, .. } = request;
                let locks = wants.into_iter().map(|want| want.lock).collect();
                let kind = ReplyKind::Acquired { session, number, is_async, locks, _places: places };
                self.submit_for(id.connection, command, Origin::Request(id, kind));
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

    fn begin_pending(&mut self, id: RequestId, mut request: AcquireRequest, places: Option<QueuePlaces>) {
        let (session, command) = match request.holder {
            Holder::Session(session) => (session, Command::Acquire(acquire(&request, session))),
            Holder::NewSession(ttl) => {
                if let Err(refusal) = self.begin_session(id.connection) {
                    return self.reply_once_confirmed(id, Response::Refused(refusal.into()));
                }
                let (session, label) = (self.sessions.draw_id(), self.clients.label(id.connection, None));
                // A grant that is about to end is not renewed: the client gets a grant of its own, once the locks are free.
                request.renews &= renewed(&request).is_some_and(|(locks, secret)| !self.is_expiring(&locks, secret));
                if let Some((locks, secret)) = renewed(&request) {
                    self.sessions.extending(&locks, secret);
                }
                let (secret, renews, acquire) = (request.secret.clone(), request.renews, acquire(&request, session));
                let ttl = if secret.is_some() { self.at_least_shortest(ttl) } else { ttl };
                (session, Command::OpenAndAcquire(OpenAndAcquire { ttl, label, secret, renews, acquire }))
            }
        };
        self.waits.last_pending += 1;
        let pending = PendingId(self.waits.last_pending);
        let acquire = PendingAcquire {
            id,
            request,
            session,
            ticket: None,
            is_abandoned: false,
            has_client_left: false,
            places,
        };
        self.waits.pending.insert(pending, acquire);
        self.clients.add_pending(id.connection, pending);
        self.submit_for(id.connection, command, Origin::Pending(pending, PendingStep::Acquire, id.connection));
    }

    /// Takes the next step of an acquire.
    pub(super) fn pending_answered(
        &mut self,
        pending: PendingId,
        step: PendingStep,
        connection: ConnectionId,
        answer: Result<Answer, Refusal>,
    ) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        if step == PendingStep::Acquire {
            // If it waits, the queue counts it from now on.
            acquire.places = None;
            if let Some((locks, secret)) = renewed(&acquire.request) {
                self.sessions.extended(&locks, secret);
            }
            if acquire.request.holder.session().is_none() {
                self.session_answered(connection);
            }
        }
        match (step, answer) {
            (PendingStep::Acquire, Ok(Answer::Granted { token })) => self.finish(pending, Ok(token)),
            (PendingStep::Acquire, Ok(Answer::Queued { ticket })) => self.queued(pending, ticket),
            (PendingStep::Cancel, Err(Refusal::AlreadyGranted { token })) => self.finish(pending, Ok(token)),
            // The event that it has left the queue follows.
            (PendingStep::Cancel, Ok(_)) => {}
            (PendingStep::Cancel, Err(Refusal::NotWaiting)) => self.finish(pending, Err(NoGrant::NotAvailable)),
            (PendingStep::Acquire, Ok(_)) => self.finish(pending, Err(NoGrant::NotAvailable)),
            (_, Err(refusal)) => self.finish(pending, Err(NoGrant::Refused(refusal))),
        }
    }

    fn queued(&mut self, pending: PendingId, ticket: Ticket) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        acquire.ticket = Some(ticket);
        if acquire.request.holder.session().is_none() {
            self.waits.temporary_sessions.insert(acquire.session);
        }
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
        if let Some(ticket) = acquire.ticket {
            let connection = acquire.id.connection;
            let cancel = Command::Cancel { caller: acquire.session.into(), waiting: Waiting::Ticket(ticket) };
            self.submit_for(connection, cancel, Origin::Pending(pending, PendingStep::Cancel, connection));
        }
    }

    /// Ends a pending acquire.
    fn finish(&mut self, pending: PendingId, outcome: Result<Token, NoGrant>) {
        let Some(acquire) = self.waits.pending.get_mut(&pending) else { return };
        self.waits.deadlines.remove(pending);
        if let Some(ticket) = acquire.ticket.take() {
            self.waits.by_ticket.remove(&ticket);
        }
        self.waits.temporary_sessions.remove(&acquire.session);
        match outcome {
            Ok(token) => self.answer_with_grant(pending, token),
            Err(why) => self.answer_without_grant(pending, why),
        }
    }

    fn answer_with_grant(&mut self, pending: PendingId, token: Token) {
        let Some(PendingAcquire { id, request, session, has_client_left, .. }) = self.waits.pending.remove(&pending)
        else {
            return;
        };
        // The session can repeat a numbered request, and keeps its grant.
        let is_unwanted = (has_client_left || self.is_revoked(id.connection)) && request.number.is_none();
        let undelivered = Undelivered { grant: self.grant(session, token), request };
        if !self.clients.is_connected(id.connection) {
            self.release_undelivered(&undelivered);
        } else if is_unwanted {
            self.release_undelivered(&undelivered);
            let response = self.not_granted(id.connection);
            self.reply(id, response);
        } else {
            if undelivered.request.holder.session().is_none() {
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
        let user = self.clients.context(connection).and_then(|context| context.principal.user());
        if let Some(user) = user.filter(|user| user.is_revoked()) {
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

    /// Cancels the pending acquires of a client that does not wait any more. Those that do not wait are answered anyway.
    pub(super) fn abandon(&mut self, connection: ConnectionId) {
        for pending in self.clients.pending(connection) {
            if let Some(acquire) = self.waits.pending.get_mut(&pending).filter(|acquire| acquire.request.waits()) {
                acquire.has_client_left = true;
                self.cancel(pending);
            }
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
        // Their secret may be known to others. Over HTTP, no connection ends that would end the wait.
        let pending = self.waits.pending.iter().filter(|(_, acquire)| self.is_revoked(acquire.id.connection));
        let revoked: Vec<_> = pending.map(|(pending, _)| *pending).collect();
        revoked.into_iter().for_each(|pending| self.cancel(pending));
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

    /// Returns whether the client's user was changed or removed since it logged in.
    fn is_revoked(&self, connection: ConnectionId) -> bool {
        self.clients.context(connection).is_some_and(|context| context.principal.is_revoked())
    }

    fn cancel_wait(&mut self, session: SessionId, ticket: Ticket) {
        let cancel = Command::Cancel { caller: session.into(), waiting: Waiting::Ticket(ticket) };
        self.submit(cancel, Origin::Node);
    }
}

/// Returns the locks and the secret of the grant that this request renews, if there is such a grant.
fn renewed(request: &AcquireRequest) -> Option<(LockNames, &Secret)> {
    let is_possible = request.renews && request.holder.session().is_none();
    let secret = request.secret.as_ref().filter(|_| is_possible)?;
    Some((request.wants.iter().map(|want| want.lock.clone()).collect(), secret))
}
