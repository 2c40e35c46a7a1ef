//! Requests to the node, independent of the client's protocol.

use palisade_core::{Delay, Label, LockName, LockNames, Mode, RequestNo, Secret, SessionId, Token, Ttl, Value, Want};
use smallvec::SmallVec;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request {
    OpenSession {
        ttl: Ttl,
        label: Option<Label>,
    },
    KeepAlive {
        sessions: Vec<SessionId>,
    },
    CloseSession {
        session: SessionId,
    },
    Attach {
        session: SessionId,
    },
    Acquire(AcquireRequest),
    Release {
        lock: LockName,
        token: Token,
        session: Option<SessionId>,
        number: Option<RequestNo>,
    },
    Cancel {
        session: SessionId,
        number: RequestNo,
    },
    Publish {
        session: SessionId,
        lock: LockName,
        token: Token,
        value: Value,
    },
    Break {
        lock: LockName,
        only: Option<Token>,
        by: Option<Label>,
        reason: Label,
    },
    Resize {
        lock: LockName,
        permits: u32,
    },
    RaiseTokens {
        above: Token,
    },
    Watch {
        prefix: String,
    },
    Unwatch {
        prefix: String,
    },
    /// Releases locks that are held with this secret.
    ReleaseHeld {
        locks: LockNames,
        secret: Secret,
    },
    /// Changes how long locks stay held that are held with this secret.
    ExtendHeld {
        locks: LockNames,
        secret: Secret,
        time: Extension,
    },
    /// Releases a lock that is held with any secret.
    DropHeld {
        lock: LockName,
    },
    /// Changes how long a lock stays held that is held with any secret.
    ExpireHeld {
        lock: LockName,
        ttl: Ttl,
    },
    Query(Query),
}

/// How long a grant stays held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// For this time from now on.
    For(Ttl),
    /// For this time from now on, unless it does not end.
    Replace(Ttl),
    /// For this time beyond the time that is left, in milliseconds, unless it does not end.
    Add(u64),
}

impl Request {
    /// Returns the request that takes locks with a secret, without waiting, for a session of its own.
    pub fn take(locks: LockNames, secret: Secret, ttl: Ttl, renews: bool) -> Request {
        Request::Acquire(AcquireRequest {
            wants: locks.into_iter().map(|lock| Want { lock, mode: Mode::Exclusive }).collect(),
            holder: Holder::NewSession(ttl),
            wait_ms: None,
            delay: None,
            number: None,
            is_async: false,
            value: None,
            secret: Some(secret),
            renews,
        })
    }

    /// Returns whether the node looks at its state before it proposes or answers the request. The client's earlier requests
    /// must be answered first, so that it sees what they did.
    pub(crate) fn reads_state(&self) -> bool {
        matches!(
            self,
            Request::DropHeld { .. }
                | Request::ExpireHeld { .. }
                | Request::ExtendHeld { time: Extension::Add(_) | Extension::Replace(_), .. }
                | Request::Query(Query::Held { .. })
        )
    }
}

/// A read of the node's state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Query {
    /// One page of a lock's holders and waiters.
    Lock {
        lock: LockName,
        cursor: u32,
        count: u32,
    },
    Locks {
        prefix: String,
        cursor: u32,
        count: u32,
    },
    Leader {
        lock: LockName,
    },
    /// Asks whether this token holds this lock now, for the claims of a signed token.
    Claims {
        lock: LockName,
        token: Token,
        session: Option<SessionId>,
    },
    /// Asks how each of these locks is held, perhaps with this secret.
    Held {
        locks: LockNames,
        secret: Option<Secret>,
    },
}

/// A request of an operator to a node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ClusterRequest {
    /// Reports the members and how far each has come.
    Status,
    /// Adds an empty node that waits at this address.
    Add {
        name: String,
        address: String,
    },
    Remove {
        name: String,
    },
    /// Lets another node lead: this one, or any.
    Transfer {
        name: Option<String>,
    },
    /// Makes a backup.
    Backup,
    /// Reads a part of the backup with this number, from this byte.
    ReadBackup {
        number: u64,
        from: u64,
    },
}

/// A request for locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest {
    /// Each lock with its mode. The node grants all of them or none.
    pub wants: SmallVec<[Want; 1]>,
    /// The session that will hold them.
    pub holder: Holder,
    /// How long to wait, in milliseconds; `None` or 0 for not at all. An asynchronous request waits in any case.
    pub wait_ms: Option<u64>,
    /// The lock-delay: how long the locks stay withheld after the session expires.
    pub delay: Option<Delay>,
    /// The request's number, by which a repeat is recognised.
    pub number: Option<RequestNo>,
    /// Whether a push announces the grant, instead of the reply.
    pub is_async: bool,
    /// The value that the leader of an election publishes.
    pub value: Option<Value>,
    /// The secret that stands for the token in later requests; only with a new session.
    pub secret: Option<Secret>,
    /// Whether a grant of these locks with the same secret is renewed.
    pub renews: bool,
}

/// The session that holds what a request acquires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// An open session.
    Session(SessionId),
    /// A session that the node opens for this request, with this TTL.
    NewSession(Ttl),
}

impl Holder {
    /// Returns the open session, if the request names one.
    pub fn session(self) -> Option<SessionId> {
        match self {
            Holder::Session(session) => Some(session),
            Holder::NewSession(_) => None,
        }
    }
}

impl AcquireRequest {
    /// Returns whether the request may join a queue.
    pub(crate) fn waits(&self) -> bool {
        self.is_async || self.wait_ms.is_some_and(|ms| ms > 0)
    }
}
