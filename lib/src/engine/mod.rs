//! Engines: the stores that keep sessions and locks, behind one small trait.
//!
//! An engine runs on the keeper's thread (see [`Engine`]), where it may do I/O. The keeper implements renewal, deadlines,
//! retries, loss and cancellation once for all engines.

#[cfg(feature = "postgres")]
pub mod advisory;
#[cfg(any(test, feature = "_claims"))]
mod claims;
#[cfg(feature = "consul")]
pub mod consul;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
mod failure;
mod guarantees;
mod host;
mod info;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(feature = "_remote")]
// No engine uses all of it.
#[cfg_attr(
    not(all(feature = "mysql", feature = "postgres", feature = "redis", feature = "service")),
    allow(dead_code, unused_imports)
)]
pub mod remote;
#[cfg(feature = "service")]
pub mod service;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql_text;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use palisade_core::{Ending, Event, LockName, SessionEnd, SessionId, Token};
use tokio::sync::mpsc;

use crate::SignedToken;

pub use failure::{Failure, Unavailable};
pub use guarantees::{Guarantees, Level, Offers, Order, SessionClock, WakeUp};
pub use info::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};
pub use palisade_core::{Acquire, Caller, Delay, Label, Patience, Reentry, RequestNo, Ttl, Value, Want};

/// A store that keeps sessions and locks.
///
/// All calls are made on one thread, inside a `tokio` runtime of that thread alone (a
/// [`LocalRuntime`](tokio::runtime::LocalRuntime)): an engine may use `Rc` and
/// [`spawn_local`](tokio::task::spawn_local). Calls overlap. A call that blocks its thread for long delays the session's renewal.
///
/// # Cancellation
///
/// Any future may be dropped at any await point. The call may have taken effect or not. For
/// [`acquire`](Engine::acquire) the caller finds out by [`cancel`](Engine::cancel) with the same number.
///
/// # Implementation
///
/// An implementation has the attribute `#[async_trait(?Send)]` of the crate `async-trait`: the keeper calls every engine
/// behind `dyn Engine`, so that it is compiled once.
#[async_trait(?Send)]
pub trait Engine: 'static {
    /// Returns the promises of this engine. They are constant once it is connected.
    fn guarantees(&self) -> Guarantees;

    /// Opens a session. It lives for `ttl` after the engine has answered this call, and after each answered keep-alive.
    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure>;

    /// Keeps a session alive for another TTL. [`Failure::SessionEnded`] if it has ended.
    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure>;

    /// Ends a session, all its grants and all its waits. Closing a session that has ended is not an error.
    async fn close_session(&self, session: SessionId) -> Result<(), Failure>;

    /// Keeps a session alive for another TTL, and detaches it: from now on neither the end of this engine nor that of its
    /// process ends the session. Any client can then keep it alive, release its grants and close it.
    async fn detach_session(&self, session: SessionId) -> Result<(), Failure>;

    /// Acquires locks. With [`Patience::Wait`] the call waits until they are granted. With `Try` it returns
    /// [`Acquired::Busy`] if they are not available now.
    async fn acquire(&self, acquire: Acquire) -> Result<Acquired, Failure>;

    /// Cancels the acquire with this number: it waits no longer, and if it has not arrived yet, it will be refused. If it
    /// was granted before, the result is [`Cancelled::WasGranted`], and the grant remains.
    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure>;

    /// Releases the grant with this token, and no other.
    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure>;

    /// Replaces the value that the holder of a lock shows to observers.
    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure>;

    /// Signs a token that holds this lock now, so that a resource can verify it without a request.
    async fn sign(&self, session: SessionId, lock: LockName, token: Token) -> Result<SignedToken, Failure>;

    /// Ends all grants of a lock, or only the grant of one token. Records `by` and `reason`.
    async fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> Result<Forced, Failure>;

    /// Changes the permits of a semaphore that is in use.
    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure>;

    /// Raises the tokens: every grant after the answer has a token above this one. Current grants keep their tokens. Tokens
    /// are never lowered. The change is as durable as a grant before the engine answers.
    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure>;

    /// Returns the current state of a lock; `None` if it has neither holders nor waiters.
    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure>;

    /// Returns all locks in use whose names have this prefix, sorted by name.
    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure>;

    /// Watches all locks whose names have this prefix, from now on.
    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure>;
}

/// A session that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its number.
    pub session: SessionId,
    /// Receives the ends of grants, and of the session, that its client did not request.
    pub notices: mpsc::UnboundedReceiver<Notice>,
    /// A descriptor by which the engine detects the death of the client before the TTL expires; `None` if it does not detect
    /// it. While any process has a copy open, the session stays open, but no longer than its TTL.
    pub lifeline: Option<OwnedFd>,
}

/// The end of a grant or a session that its client did not request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A grant ended.
    GrantEnded {
        /// Its token.
        token: Token,
        /// How it ended.
        how: Ending,
    },
    /// The session ended, with all its grants and waits.
    SessionEnded(SessionEnd),
    /// The store has lost its data, this session included. Other clients may hold its locks.
    DataLost {
        /// The sign of the data loss.
        what: String,
    },
}

/// The answer to an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// The locks are held.
    Granted {
        /// The grant's number: a fencing token where the engine declares [`Level::Fenced`], otherwise a number that
        /// only names the grant.
        token: Token,
    },
    /// They are not available now.
    Busy,
}

/// The answer to a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The acquire does not wait, and a late copy of it will be refused.
    Gone,
    /// The acquire had been granted. The grant remains.
    WasGranted {
        /// The grant's token.
        token: Token,
    },
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The grant ended by this call.
    Now,
    /// The grant had ended before.
    Before,
    /// The grant had ended before, perhaps by an earlier attempt of this call.
    Repeated,
}

/// The answer to a force-release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forced {
    /// How many grants ended.
    pub grants: u32,
    /// A token above those of the ended grants and below that of any later one.
    pub moved_to: Token,
}

/// The answer to raising tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raised {
    /// This call has raised them.
    Now,
    /// They were above it already. Nothing has changed.
    Before,
}

/// An item of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// An event of a lock.
    Event(Event),
    /// Some events are missing here, because the watcher was too slow or the connection broke: inspect the locks again.
    Missed,
}
