//! Requests to the node, independent of the client's protocol.

use palisade_core::{Delay, Label, LockName, RequestNo, SessionId, Token, Ttl, Value, Want};
use smallvec::SmallVec;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request {
    OpenSession { ttl: Ttl, label: Option<Label> },
    KeepAlive { sessions: Vec<SessionId> },
    CloseSession { session: SessionId },
    Attach { session: SessionId },
    Acquire(AcquireRequest),
    Release { lock: LockName, token: Token, session: Option<SessionId>, number: Option<RequestNo> },
    Cancel { session: SessionId, number: RequestNo },
    Publish { session: SessionId, lock: LockName, token: Token, value: Value },
    Break { lock: LockName, only: Option<Token>, by: Option<Label>, reason: Label },
    Resize { lock: LockName, permits: u32 },
    RaiseTokens { above: Token },
    Watch { prefix: String },
    Unwatch { prefix: String },
    Query(Query),
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

    /// Returns whether the reply may come later than the next commit: the request waits for its locks, or opens a session
    /// first. A connection that answers in order runs no other command before that reply.
    pub(crate) fn is_blocking(&self) -> bool {
        self.holder.session().is_none() || (self.waits() && !self.is_async)
    }
}
