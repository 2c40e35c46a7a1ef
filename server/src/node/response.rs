//! The node's replies and pushes. Each protocol encodes them in its own way.

use std::sync::Arc;

use palisade_core::{
    Claims, Departure, Ended, Ending, Event, Label, LockName, Mode, Refusal, RequestNo, Secret, SessionEnd,
    SessionId, Token, Ttl, Value,
};

/// How a lock is held, for a client that may take it.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldReport {
    /// The token and the secret, if it is held with one by the client's own user.
    pub own: Option<(Token, Secret)>,
    /// The time until its holder's session expires; `None` for a session that does not expire, or a lock-delay.
    pub time_left_ms: Option<u64>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Response {
    /// The request was carried out, and there is nothing to add.
    Done,
    Opened {
        session: SessionId,
        ttl: Ttl,
    },
    /// For each session the TTL that began again; `None` for one that has ended.
    KeptAlive(Vec<Option<Ttl>>),
    Attached {
        session: SessionId,
        ttl: Ttl,
        held: Vec<Token>,
    },
    Granted(GrantReply),
    /// The request waits in the queue. A [`Push::Granted`] or [`Push::WaitEnded`] follows.
    Queued,
    /// The locks were not available, within the time that the request was willing to wait.
    NotGranted,
    Released,
    /// How many of the request's locks were held with its secret, and how many are held otherwise.
    Matched {
        locks: u32,
        others: u32,
    },
    /// How each of the request's locks is held; `None` for one that is free.
    Held(Vec<Option<HeldReport>>),
    /// The token, if the request had been granted before it was cancelled.
    Cancelled {
        granted: Option<Token>,
    },
    Broken {
        grants: u32,
        moved_to: Token,
    },
    /// Whether this request has raised the tokens; they may have been high enough before.
    TokensRaised(bool),
    Lock(Option<Box<LockReport>>),
    Locks {
        cursor: u32,
        locks: Vec<LockReport>,
    },
    Leader(Option<LeaderReport>),
    /// The claims of a signed token. The node has no keys; the server signs them.
    Claims(Box<Claims>),
    /// A signed token.
    Signed(String),
    Refused(Refused),
}

/// The reply to an acquire that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GrantReply {
    pub token: Token,
    pub session: SessionId,
    pub ttl_ms: u64,
}

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The client has not logged in.
    Unauthenticated,
    /// The user lacks a right.
    Denied(String),
    /// The lock machine refuses it.
    Refusal(Refusal),
    /// The service has no keys to sign with.
    NotSigning,
    /// A bound on clients would be exceeded.
    OverBound(String),
    /// This node is not the leader, or not yet.
    NotLeader,
    /// The service is stopping.
    Closing,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused::Refusal(refusal)
    }
}

/// A message to a connection that is no reply.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Push {
    /// A waiting request was granted.
    Granted {
        session: SessionId,
        number: Option<RequestNo>,
        token: Token,
    },
    /// A waiting request left the queue without a grant.
    WaitEnded {
        session: SessionId,
        number: Option<RequestNo>,
        why: Departure,
    },
    /// A grant ended, and not by its holder's release. `None`: it ended before the repeat of its request was answered.
    Lost {
        session: SessionId,
        token: Token,
        how: Option<Ending>,
    },
    SessionEnded {
        session: SessionId,
        how: SessionEnd,
    },
    /// Something happened to a watched lock.
    Event(Arc<Event>),
}

/// A lock, with a page of its holders and waiters.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct LockReport {
    pub name: LockName,
    /// The permits of a semaphore.
    pub limit: Option<u32>,
    pub holder_count: u32,
    pub waiter_count: u32,
    pub holders: Vec<HolderReport>,
    pub waiters: Vec<WaiterReport>,
    /// Where the next page begins; 0 after the last.
    pub cursor: u32,
    pub value: Option<Value>,
    pub history: Vec<Ended>,
}

/// A grant of a lock.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct HolderReport {
    pub token: Token,
    pub mode: Mode,
    /// `None` when the session expired and the lock is withheld.
    pub session: Option<(SessionId, Label)>,
    pub held_for_ms: Option<u64>,
    pub time_left_ms: Option<u64>,
    /// How long the session lives after a keep-alive; `None` if it has no end.
    pub ttl_ms: Option<u64>,
}

/// A request in the queue of a lock.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct WaiterReport {
    pub session: SessionId,
    pub label: Label,
    pub mode: Mode,
    pub waits_for_ms: Option<u64>,
    /// The time until its session expires.
    pub time_left_ms: Option<u64>,
    /// How long the session lives after a keep-alive; `None` if it has no end.
    pub ttl_ms: Option<u64>,
}

/// The leader of an election.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct LeaderReport {
    pub value: Value,
    pub token: Token,
    pub session: SessionId,
    pub label: Label,
}

/// The approximate size of a holder or waiter in a page without its label, in bytes.
const ENTRY: usize = 160;

impl HolderReport {
    pub(super) fn weight(&self) -> usize {
        ENTRY + self.session.as_ref().map_or(0, |(_, label)| label.as_str().len())
    }
}

impl WaiterReport {
    pub(super) fn weight(&self) -> usize {
        ENTRY + self.label.as_str().len()
    }
}

impl LockReport {
    /// Returns its approximate size on the wire, in bytes.
    pub(super) fn weight(&self) -> usize {
        let holders: usize = self.holders.iter().map(HolderReport::weight).sum();
        let waiters: usize = self.waiters.iter().map(WaiterReport::weight).sum();
        let history: usize = self.history.iter().map(|ended| ENTRY + ended.label.as_str().len()).sum();
        let value = self.value.as_ref().map_or(0, |value| value.as_bytes().len());
        ENTRY + self.name.as_str().len() + holders + waiters + history + value
    }
}
