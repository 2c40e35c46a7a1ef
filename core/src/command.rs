//! Commands: the inputs of the machine.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Delay, Label, Limits, LockName, RequestNo, SessionId, Ticket, Token, Ttl, Value};

/// Everything that changes the machine. Applied one after the other, in the order of the host's log.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// Begin a session. Answered with [`Answer::Opened`](crate::Answer::Opened).
    OpenSession {
        /// How long it lives without being kept alive; the host counts.
        ttl: Ttl,
        /// Its name in listings.
        label: Label,
    },
    /// End a session at its client's request: its grants are released and its waits are cancelled.
    CloseSession {
        /// Which one.
        session: SessionId,
    },
    /// End a session because the host has found that its TTL has passed. Locks acquired with a delay are withheld.
    ExpireSession {
        /// Which one.
        session: SessionId,
    },
    /// Take one lock, or several at once, all or nothing.
    Acquire(Acquire),
    /// Give back a grant. A grant of several locks is given back whole, by any of its names.
    Release {
        /// The session and the request's number, where a repeat must be recognised.
        caller: Option<Caller>,
        /// A lock of the grant.
        lock: LockName,
        /// The grant's token; nothing else frees the lock.
        token: Token,
    },
    /// Leave the queue. Never frees a grant: a request that was already granted is refused, with its token when
    /// it is named by its number.
    Cancel {
        /// The session that asks.
        caller: Caller,
        /// Which wait.
        waiting: Waiting,
    },
    /// Replace the value that the holder of a lock shows to observers.
    Publish {
        /// The session that asks.
        caller: Caller,
        /// The lock, which the caller's session must hold exclusively.
        lock: LockName,
        /// The grant's token.
        token: Token,
        /// What observers read from now on.
        value: Value,
    },
    /// Take a lock away from its holders. Recorded, and moves the token on.
    ForceRelease {
        /// Which lock.
        lock: LockName,
        /// Only this grant; without it, all grants of the lock.
        only: Option<Token>,
        /// The operator.
        by: Label,
        /// Why.
        reason: Label,
    },
    /// Change the number of permits of a semaphore that is in use.
    Resize {
        /// Which semaphore.
        lock: LockName,
        /// Its permits from now on. What is held beyond that stays held until it is released.
        limit: u32,
    },
    /// End the delay after an expiry: the permits that this token still took are free.
    EndDelay {
        /// A lock of the withheld grant.
        lock: LockName,
        /// The token of the grant that expired.
        token: Token,
    },
    /// Give no token up to and including this one any more, as when locks move here from elsewhere. Grants that are held
    /// keep their tokens. Hosts check an operator's number with [`Token::check_raise`]; a host's own watermark may be
    /// higher.
    RaiseTokens {
        /// The next token is greater than this one.
        above: Token,
    },
    /// Replace the limits. What already exceeds them stays.
    Configure {
        /// The limits from now on.
        limits: Limits,
    },
}

impl Command {
    /// Returns the caller of a command whose repeats can be recognised.
    ///
    /// ```
    /// use palisade_core::{Acquire, Command, LockName, SessionId};
    /// let session = SessionId::new(1)?;
    /// let acquire = Command::Acquire(Acquire::exclusive(session, LockName::new("a")?));
    /// assert_eq!(acquire.caller(), Some(session.into()));
    /// assert_eq!(Command::CloseSession { session }.caller(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn caller(&self) -> Option<Caller> {
        match self {
            Command::Acquire(acquire) => Some(acquire.caller),
            Command::Release { caller, .. } => *caller,
            Command::Cancel { caller, .. } | Command::Publish { caller, .. } => Some(*caller),
            _ => None,
        }
    }
}

/// A session's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The session that asks.
    pub session: SessionId,
    /// The request's number, without which a repeat cannot be told from a second request.
    pub number: Option<RequestNo>,
}

impl From<SessionId> for Caller {
    fn from(session: SessionId) -> Caller {
        Caller { session, number: None }
    }
}

/// A request for one lock, or for several at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Acquire {
    /// The session that asks.
    pub caller: Caller,
    /// The locks, each once. All are granted in one step, under one token.
    pub wants: Wants,
    /// What to do when they are not available at once.
    pub patience: Patience,
    /// What to do when the session holds one of them already.
    pub reentry: Reentry,
    /// How long to withhold the locks should this holder's session expire.
    pub delay: Option<Delay>,
    /// What observers read while this grant lasts. For a single exclusive lock only.
    pub value: Option<Value>,
}

impl Acquire {
    /// One lock, exclusively, without waiting. Change the fields for anything else.
    ///
    /// ```
    /// use palisade_core::{Acquire, LockName, Mode, Patience, SessionId};
    /// let mut request = Acquire::exclusive(SessionId::new(1)?, LockName::new("orders/42")?);
    /// assert_eq!((request.wants[0].mode, request.patience), (Mode::Exclusive, Patience::Try));
    /// request.patience = Patience::Wait;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exclusive(caller: impl Into<Caller>, lock: LockName) -> Acquire {
        Acquire::many(caller, [Want { lock, mode: Mode::Exclusive }])
    }

    /// Several locks at once, without waiting. Change the fields for anything else.
    ///
    /// ```
    /// use palisade_core::{Acquire, LockName, Mode, SessionId, Want};
    /// let (from, to) = (LockName::new("account/1")?, LockName::new("account/2")?);
    /// let wants = [from, to].map(|lock| Want { lock, mode: Mode::Exclusive });
    /// assert_eq!(Acquire::many(SessionId::new(1)?, wants).wants.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn many(caller: impl Into<Caller>, wants: impl IntoIterator<Item = Want>) -> Acquire {
        let mut all = SmallVec::new();
        for want in wants {
            all.push(want);
        }
        Acquire {
            caller: caller.into(),
            wants: all,
            patience: Patience::Try,
            reentry: Reentry::Refuse,
            delay: None,
            value: None,
        }
    }
}

/// Locks that are wanted together: most often one.
pub type Wants = SmallVec<[Want; 1]>;

/// A lock, and how it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Want {
    /// Which lock.
    pub lock: LockName,
    /// How.
    pub mode: Mode,
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// By one session alone.
    Exclusive,
    /// Together with other shared holders.
    Shared,
    /// By some permits of a semaphore.
    Permits {
        /// How many are taken at once.
        count: u32,
        /// How many the semaphore has. All requests for it must say the same.
        of: u32,
    },
}

/// The kind of a lock in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Held by one session exclusively, or by several shared.
    Lock,
    /// Held by permits.
    Semaphore {
        /// How many there are.
        limit: u32,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Lock => f.write_str("lock"),
            Kind::Semaphore { limit } => write!(f, "semaphore of {limit}"),
        }
    }
}

/// What to do when a lock is not available at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Patience {
    /// Answer [`Answer::Busy`](crate::Answer::Busy).
    Try,
    /// Take a place at the end of the queue.
    Wait,
}

/// What to do when the session that asks holds the lock already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reentry {
    /// Refuse: a session that is one thread of work would wait for itself and never be granted.
    Refuse,
    /// Treat it as any other request: the session stands for several threads of work.
    Queue,
}

/// Names a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Waiting {
    /// The wait that this ticket was given for.
    Ticket(Ticket),
    /// The wait that the session's request of this number began. If no such request has arrived yet, it is
    /// refused when it does.
    Request(RequestNo),
}
