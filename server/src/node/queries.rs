//! Queries of the state. Each sees every change that was acknowledged before it arrived.

use std::time::Duration;

use palisade_core::{
    Claims, Cursor, GrantState, GrantView, Kind, LockName, LockView, SessionId, Token, Ttl, WaiterView,
};

use super::clients::ConnectionId;
use super::response::{HolderReport, LeaderReport, LockReport, Refused, Response, WaiterReport};
use super::{Node, RequestId};
use crate::request::Query;

/// The size of an answer after which the rest is left to the next page, in bytes.
const PAGE_BYTES: usize = 1 << 20;
/// How many holders and waiters a page has at most.
const PAGE_COUNT: u32 = 1000;
/// How many holders and waiters a list shows of each lock.
const LISTED: usize = 16;
/// The most locks that one list visits, and the most that it returns. They bound the time in which no request is
/// handled.
const VISITED: usize = 20_000;
const LISTED_LOCKS: u32 = 1000;
/// How much work the queries may do before requests are handled again: locks visited, and entries shown.
const WORK: usize = 20_000;

/// A request that is answered once a majority has confirmed that this node still leads.
pub(super) enum PendingRead {
    Query(RequestId, Query),
    /// The reply was decided when the request arrived. For a keep-alive, the TTLs began then.
    Reply(RequestId, Response),
    Attach(RequestId, SessionId),
}

impl PendingRead {
    pub(super) fn id(&self) -> RequestId {
        match self {
            PendingRead::Query(id, _) | PendingRead::Reply(id, _) | PendingRead::Attach(id, _) => *id,
        }
    }
}

/// Which of a lock's holders and waiters are shown.
struct Page {
    /// How many to skip, of the holders and then of the waiters.
    skip: usize,
    count: usize,
}

pub(super) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Node {
    pub(super) fn query(&mut self, id: RequestId, query: Query) {
        if let Some(context) = self.clients.context(id.connection) {
            self.metrics.query(context.protocol, &query);
        }
        self.replica.read(PendingRead::Query(id, query));
    }

    /// Answers reads until they have done enough work for one turn.
    pub(super) fn answer_reads(&mut self) {
        let mut work = 0;
        while work < WORK
            && let Some(read) = self.reads.pop()
        {
            match read {
                PendingRead::Query(id, query) if self.clients.is_connected(id.connection) => {
                    let (response, done) = self.answer_query(id.connection, query);
                    work += done;
                    self.reply(id, response.unwrap_or_else(Response::Refused));
                }
                PendingRead::Query(..) => {}
                PendingRead::Reply(id, response) => self.reply(id, response),
                PendingRead::Attach(id, session) => work += self.attached(id, session),
            }
        }
    }

    /// Returns the answer, and how much work it was.
    fn answer_query(&self, connection: ConnectionId, query: Query) -> (Result<Response, Refused>, usize) {
        let machine = self.replica.machine();
        match query {
            Query::Lock { lock, cursor, count } => {
                let page = Page { skip: cursor as usize, count: count.clamp(1, PAGE_COUNT) as usize };
                let skipped = machine.lock(&lock).map_or(0, |view| view.holder_count() + view.waiter_count());
                let work = page.count + page.skip.min(skipped as usize);
                let report = machine.lock(&lock).map(|view| Box::new(self.lock_report(view, &page)));
                (Ok(Response::Lock(report)), work)
            }
            Query::Locks { prefix, cursor, count } => self.list(connection, &prefix, cursor, count),
            Query::Leader { lock } => (Ok(Response::Leader(machine.lock(&lock).and_then(leader))), 1),
            Query::Claims { lock, token, session } => {
                let claims = self.claims(lock, token, session);
                (claims.map(|claims| Response::Claims(Box::new(claims))), 1)
            }
            Query::Held { locks, secret } => {
                let report = |lock| self.held_report(connection, lock, secret.as_ref());
                let held: Vec<_> = locks.iter().map(report).collect();
                (Ok(Response::Held(held)), locks.len())
            }
        }
    }

    /// Returns the claims of a signed token, if this token holds this lock now.
    fn claims(&self, lock: LockName, token: Token, session: Option<SessionId>) -> Result<Claims, Refused> {
        let (session, mode) = self.replica.machine().held(session, &lock, token)?;
        let principal = self.user_sessions.user_of(session).map(str::to_owned);
        // The signer fills in the cluster.
        Ok(Claims { cluster: String::new(), principal, lock, token, session, scope: mode.into() })
    }

    fn list(
        &self,
        connection: ConnectionId,
        prefix: &str,
        cursor: u32,
        count: u32,
    ) -> (Result<Response, Refused>, usize) {
        let page = Page { skip: 0, count: LISTED };
        let count = count.clamp(1, LISTED_LOCKS) as usize;
        let (mut next, mut bytes, mut visited) = (0, 0, 0);
        let mut locks = Vec::new();
        for (after, view) in self.replica.machine().locks(Cursor(cursor)) {
            if locks.len() >= count || bytes >= PAGE_BYTES || visited >= VISITED {
                next = after.0 - 1;
                break;
            }
            visited += 1;
            let name = view.name().as_str();
            if name.starts_with(prefix) && self.clients.sees(connection, name) {
                let report = self.lock_report(view, &page);
                bytes += report.weight();
                locks.push(report);
            }
        }
        let work = visited + LISTED * locks.len();
        (Ok(Response::Locks { cursor: next, locks }), work)
    }

    fn lock_report(&self, view: LockView<'_>, page: &Page) -> LockReport {
        let (mut shown, mut bytes) = (0, 0);
        let mut has_room = |weight: usize| {
            let has_room = shown < page.count && (shown == 0 || bytes < PAGE_BYTES);
            (shown, bytes) = (shown + usize::from(has_room), bytes + weight);
            has_room
        };
        let holder_count = view.holder_count() as usize;
        let holders = view.holders().skip(page.skip).map(|grant| self.holder_report(&grant));
        let holders: Vec<_> = holders.take_while(|holder| has_room(holder.weight())).collect();
        let are_all_shown = page.skip + holders.len() >= holder_count;
        let waiters = view.waiters().skip(page.skip.saturating_sub(holder_count));
        let waiters = waiters.map(|waiter| self.waiter_report(&waiter));
        let waiters: Vec<_> = waiters.take_while(|waiter| are_all_shown && has_room(waiter.weight())).collect();
        let next = page.skip + holders.len() + waiters.len();
        let is_last = next >= holder_count + view.waiter_count() as usize;
        LockReport {
            name: view.name().clone(),
            limit: match view.kind() {
                Kind::Lock => None,
                Kind::Semaphore { limit } => Some(limit),
            },
            holder_count: view.holder_count(),
            waiter_count: view.waiter_count(),
            holders,
            waiters,
            cursor: if is_last { 0 } else { u32::try_from(next).unwrap_or(u32::MAX) },
            value: view.value().cloned(),
            history: view.history().cloned().collect(),
        }
    }

    fn holder_report(&self, grant: &GrantView<'_>) -> HolderReport {
        let now = self.session_time();
        let session = match grant.state {
            GrantState::Held { session, label } => Some((session, label.clone())),
            GrantState::Withheld => None,
        };
        let (time_left_ms, ttl_ms) = session.as_ref().map_or((None, None), |(session, _)| self.life(*session));
        HolderReport {
            token: grant.token,
            mode: grant.mode,
            session,
            held_for_ms: self.sessions.granted_at(grant.token).map(|at| ms(now.saturating_sub(at))),
            time_left_ms,
            ttl_ms,
        }
    }

    fn waiter_report(&self, waiter: &WaiterView<'_>) -> WaiterReport {
        let (time_left_ms, ttl_ms) = self.life(waiter.session);
        let since = self.waits.queued_at(waiter.ticket);
        WaiterReport {
            session: waiter.session,
            label: waiter.label.clone(),
            mode: waiter.mode,
            waits_for_ms: since.map(|at| ms(self.session_time().saturating_sub(at))),
            time_left_ms,
            ttl_ms,
        }
    }

    /// Returns how long a session still lives without a keep-alive, and how long it lives after one.
    fn life(&self, session: SessionId) -> (Option<u64>, Option<u64>) {
        let left = self.sessions.deadline(session).map(|at| ms(at.saturating_sub(self.session_time())));
        let ttl = self.replica.machine().session(session).map(|view| view.ttl()).filter(|ttl| *ttl != Ttl::ENDLESS);
        (left, ttl.map(Ttl::as_ms))
    }
}

fn leader(view: LockView<'_>) -> Option<LeaderReport> {
    let value = view.value()?.clone();
    let grant = view.holders().next()?;
    let GrantState::Held { session, label } = grant.state else { return None };
    Some(LeaderReport { value, token: grant.token, session, label: label.clone() })
}
