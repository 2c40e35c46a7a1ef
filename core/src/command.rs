//! Commands: the inputs of the machine.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Delay, Label, Limits, LockName, LockNames, RequestNo, Secret, SessionId, Ticket, Token, Ttl, Value};

/// Everything that changes the machine. Applied one after the other, in the order of the host's log.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// Begin a session. Answered with [`Answer::Opened`](crate::Answer::Opened).
    OpenSession {
        /// Its id, which the host draws at random. A host that has lost its data, or restored older data, then never gives
        /// a new session the id of a session that a client still believes to be its own.
        session: SessionId,
        /// How long it lives without a keep-alive. The host measures the time.
        ttl: Ttl,
        /// Its name in listings.
        label: Label,
    },
    /// End a session at its client's request: its grants are released and its waits are cancelled.
    CloseSession {
        /// Which one.
        session: SessionId,
    },
    /// End a session because its TTL has passed, which the host decides. Locks that were acquired with a
    /// [lock-delay](Delay) are withheld.
    ExpireSession {
        /// Which one.
        session: SessionId,
    },
    /// Take one lock, or several at once, all or nothing.
    Acquire(Acquire),
    /// Release a grant. Naming any lock of a grant releases all of its locks.
    Release {
        /// The session and the request's number; `None` if a repeat need not be recognised.
        caller: Option<Caller>,
        /// A lock of the grant.
        lock: LockName,
        /// The grant's token; nothing else frees the lock.
        token: Token,
    },
    /// Cancel a waiting request. If it was already granted, the grant stays and the cancel is refused. The refusal has
    /// the token if the wait was named by its request number.
    Cancel {
        /// The session and the request's number.
        caller: Caller,
        /// The waiting request.
        waiting: Waiting,
    },
    /// Replace the value that the holder of a lock publishes.
    Publish {
        /// The session and the request's number.
        caller: Caller,
        /// The lock, which the caller's session must hold exclusively.
        lock: LockName,
        /// The grant's token.
        token: Token,
        /// The new value.
        value: Value,
    },
    /// End a lock's grants at an operator's request. The lock's history records it. It uses up a token, which is above
    /// those of the ended grants.
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
        /// Its permits from now on. Permits that are held beyond this number stay held until they are released.
        limit: u32,
    },
    /// End the lock-delay of an expired grant, which frees its permits.
    EndDelay {
        /// A lock of the withheld grant.
        lock: LockName,
        /// The token of the grant that expired.
        token: Token,
    },
    /// Raise the token counter, for example when locks move here from another engine. Grants that are held keep their
    /// tokens. Hosts check an operator's number with [`Token::check_raise`]; a host's own watermark may be higher.
    RaiseTokens {
        /// The next token is greater than this one.
        above: Token,
    },
    /// Replace the limits. Existing locks, sessions and waits that exceed them stay.
    Configure {
        /// The limits from now on.
        limits: Limits,
    },
    /// Open a session for one request, and acquire with it. The session ends with the grant or the wait. If the request is
    /// neither granted nor queued, no session is opened.
    OpenAndAcquire(OpenAndAcquire),
    /// Give the grants that hold these locks another TTL, if each of the locks is held with the secret. Answered with
    /// [`Answer::Matched`](crate::Answer::Matched).
    ExtendHeld {
        /// The locks: all locks of each grant.
        locks: LockNames,
        /// The secret of the grants.
        secret: Secret,
        /// The TTL of their sessions from now on.
        ttl: Ttl,
    },
    /// Release those of these locks that are held with the secret. Answered with
    /// [`Answer::Matched`](crate::Answer::Matched).
    ReleaseHeld {
        /// The locks: all locks of each grant.
        locks: LockNames,
        /// The secret of the grants.
        secret: Secret,
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

/// The session of a request, and the request's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The session.
    pub session: SessionId,
    /// The request's number. Without it, a repeat looks like a second request.
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
    /// The session and the request's number.
    pub caller: Caller,
    /// The locks, each once. All are granted in one step, under one token.
    pub wants: Wants,
    /// What to do when they are not available at once.
    pub patience: Patience,
    /// What to do when the session holds one of them already.
    pub reentry: Reentry,
    /// The lock-delay after an expiry of the holder's session.
    pub delay: Option<Delay>,
    /// The value that the holder publishes while this grant lasts. For a single exclusive lock only.
    pub value: Option<Value>,
}

impl Acquire {
    /// Returns a request for one lock, exclusive and without waiting. Set the fields for other requests.
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

    /// Returns a request for several locks at once, without waiting. Set the fields for other requests.
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

/// A request of a session that is opened for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenAndAcquire {
    /// How long the session lives without a keep-alive; [`Ttl::ENDLESS`] is accepted here.
    pub ttl: Ttl,
    /// The session's name in listings.
    pub label: Label,
    /// A secret that stands for the token in later commands. For exclusive locks only.
    pub secret: Option<Secret>,
    /// Whether a grant of exactly these locks with the same secret gets the new TTL, and is the answer.
    pub renews: bool,
    /// The request. Its caller is the new session, without a request number.
    pub acquire: Acquire,
}

/// The locks of one request, nearly always one.
pub type Wants = SmallVec<[Want; 1]>;

/// A lock, and the mode in which a request wants it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Want {
    /// Which lock.
    pub lock: LockName,
    /// The mode.
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
    /// Join the end of the queue.
    Wait,
}

/// What to do when the requesting session holds the lock already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reentry {
    /// Refuse. For a session that runs one task, which would wait for itself.
    Refuse,
    /// Queue it like any other request. For a session that is shared by several tasks.
    Queue,
}

/// Identifies a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Waiting {
    /// By its ticket.
    Ticket(Ticket),
    /// By its number in the session. If no such request has arrived yet, it is refused when it arrives.
    Request(RequestNo),
}
