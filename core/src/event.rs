//! Events: the effects of a command, for waiters, watchers, timers and counters.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Delay, Label, Limits, LockName, Mode, Refusal, RequestNo, SessionId, Ticket, Token, Ttl, Value};

/// The events of one command, in the order in which they happened.
pub type Events = SmallVec<[Event; 2]>;

/// The locks of one grant or request; nearly always one.
pub type LockNames = SmallVec<[LockName; 1]>;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A session began; the host counts its TTL from now on.
    SessionOpened {
        /// Which one.
        session: SessionId,
        /// How long it lives without being kept alive.
        ttl: Ttl,
    },
    /// A session ended. Its grants and waits have ended before, in the same command.
    SessionEnded {
        /// Which one.
        session: SessionId,
        /// How.
        how: SessionEnd,
    },
    /// A request took its place at the end of the queue.
    Queued {
        /// Names the wait.
        ticket: Ticket,
        /// The waiter.
        session: SessionId,
        /// For what.
        locks: LockNames,
    },
    /// A wait ended without a grant.
    LeftQueue {
        /// The wait's ticket, which names nothing any more.
        ticket: Ticket,
        /// The waiter.
        session: SessionId,
        /// For what.
        locks: LockNames,
        /// Why it ended.
        why: Departure,
    },
    /// A session holds locks from now on.
    Granted {
        /// The locks.
        locks: LockNames,
        /// The holder.
        session: SessionId,
        /// The grant's token.
        token: Token,
        /// The ticket of the wait that this grant ends, if it had to wait.
        ticket: Option<Ticket>,
        /// The number of the request, if it had one.
        number: Option<RequestNo>,
    },
    /// A session does not hold locks any more.
    GrantEnded {
        /// The locks.
        locks: LockNames,
        /// The former holder.
        session: SessionId,
        /// The grant's token.
        token: Token,
        /// How it ended.
        how: Ending,
    },
    /// The locks of an expired grant are withheld until the host says [`EndDelay`](crate::Command::EndDelay).
    Withheld {
        /// The locks.
        locks: LockNames,
        /// The token of the grant that expired.
        token: Token,
        /// How long the host should wait.
        delay: Delay,
    },
    /// The locks of an expired grant are withheld no longer.
    DelayEnded {
        /// The locks.
        locks: LockNames,
        /// The token of the grant that had expired.
        token: Token,
        /// The force-release that cut the delay short; `None` if the host ended it in time.
        force: Option<Arc<Force>>,
    },
    /// A holder shows a value to observers.
    Published {
        /// The lock.
        lock: LockName,
        /// The holder's token.
        token: Token,
        /// The value.
        value: Value,
    },
    /// A semaphore has another number of permits.
    Resized {
        /// Which semaphore.
        lock: LockName,
        /// Its permits.
        limit: u32,
    },
    /// No token up to and including this one is given any more.
    TokensRaised {
        /// The next token is greater than this one.
        above: Token,
    },
    /// The limits have changed.
    Configured {
        /// The limits from now on.
        limits: Limits,
    },
}

impl Event {
    /// The locks that an event is about; `None` for an event about sessions or settings.
    ///
    /// ```
    /// use palisade_core::{Event, LockName};
    /// let resized = Event::Resized { lock: LockName::new("orders")?, limit: 3 };
    /// assert_eq!(resized.locks().map(|locks| locks[0].to_string()).as_deref(), Some("orders"));
    /// # Ok::<(), palisade_core::BadName>(())
    /// ```
    pub fn locks(&self) -> Option<LockNames> {
        match self {
            Event::Queued { locks, .. }
            | Event::LeftQueue { locks, .. }
            | Event::Granted { locks, .. }
            | Event::GrantEnded { locks, .. }
            | Event::Withheld { locks, .. }
            | Event::DelayEnded { locks, .. } => Some(locks.clone()),
            Event::Published { lock, .. } | Event::Resized { lock, .. } => Some([lock.clone()].into()),
            Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::TokensRaised { .. }
            | Event::Configured { .. } => None,
        }
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// Its TTL passed without a keep-alive.
    Expired,
}

/// How a grant ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Its holder gave it back.
    Released,
    /// Its holder's session ended.
    SessionEnded(SessionEnd),
    /// It was taken away.
    Forced(Arc<Force>),
}

/// A grant that has ended, in the history of its lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The former holder.
    pub session: SessionId,
    /// The label of that session. Not escaped.
    pub label: Label,
    /// The grant's token.
    pub token: Token,
    /// How it was held.
    pub mode: Mode,
    /// How it ended.
    pub how: Ending,
}

/// The record of a force-release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Force {
    /// The operator.
    pub by: Label,
    /// Why.
    pub reason: Label,
    /// The token was moved on to this one.
    pub moved_to: Token,
}

/// Why a wait ended without a grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Departure {
    /// The waiter gave up.
    Cancelled,
    /// The waiter's session ended.
    SessionEnded(SessionEnd),
    /// It can no longer be granted.
    Refused(Refusal),
}
