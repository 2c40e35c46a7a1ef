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
    /// A session was opened. The host starts to measure its TTL.
    SessionOpened {
        /// Which one.
        session: SessionId,
        /// How long it lives without a keep-alive.
        ttl: Ttl,
    },
    /// A session ended. Its grants and waits have ended before, in the same command.
    SessionEnded {
        /// Which one.
        session: SessionId,
        /// How.
        how: SessionEnd,
    },
    /// A request joined the end of the queue.
    Queued {
        /// Identifies the waiting request.
        ticket: Ticket,
        /// The waiter.
        session: SessionId,
        /// The locks that it waits for.
        locks: LockNames,
    },
    /// A wait ended without a grant.
    LeftQueue {
        /// The ticket of the wait that ended.
        ticket: Ticket,
        /// The waiter.
        session: SessionId,
        /// The locks that it waits for.
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
    /// A [lock-delay](Delay) began: the locks of an expired grant are withheld until the host applies
    /// [`EndDelay`](crate::Command::EndDelay).
    Withheld {
        /// The locks.
        locks: LockNames,
        /// The token of the grant that expired.
        token: Token,
        /// How long the host waits.
        delay: Delay,
    },
    /// A lock-delay ended: the locks of the expired grant are available again.
    DelayEnded {
        /// The locks.
        locks: LockNames,
        /// The token of the grant that had expired.
        token: Token,
        /// The force-release that ended the delay early; `None` if it ended in time.
        force: Option<Arc<Force>>,
    },
    /// A holder published a value.
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
    /// The token counter was raised.
    TokensRaised {
        /// The next token is greater than this one.
        above: Token,
    },
    /// The limits have changed.
    Configured {
        /// The limits from now on.
        limits: Limits,
    },
    /// A session has another TTL. The host measures it from now on.
    TtlChanged {
        /// Which session.
        session: SessionId,
        /// Its TTL.
        ttl: Ttl,
    },
}

impl Event {
    /// Returns the locks of the event; `None` for an event about sessions or settings.
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
            | Event::Configured { .. }
            | Event::TtlChanged { .. } => None,
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
    /// An operator force-released it.
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
    /// The token that it used up, above those of the ended grants.
    pub moved_to: Token,
}

/// Why a wait ended without a grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Departure {
    /// The waiter cancelled its request.
    Cancelled,
    /// The waiter's session ended.
    SessionEnded(SessionEnd),
    /// The request can no longer be granted.
    Refused(Refusal),
}
