//! Engines: the stores that keep sessions and locks, behind one small trait.
//!
//! An engine keeps sessions and locks. It lives on the keeper's own thread (see [`Engine`]), where it is free to do
//! I/O. Renewal, deadlines, retries, loss and cancellation are written once, above it.

#[cfg(feature = "postgres")]
pub mod advisory;
#[cfg(feature = "embedded")]
pub mod embedded;
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
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "redlock", feature = "service"))]
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

use std::future::Future;
use std::os::fd::OwnedFd;

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
/// Any future may be dropped at any await point. What the call did until then stands, or does not; for
/// [`acquire`](Engine::acquire) the caller finds out by [`cancel`](Engine::cancel) with the same number.
pub trait Engine: Sized + 'static {
    /// What this engine promises. Constant from the moment it is connected.
    fn guarantees(&self) -> Guarantees;

    /// Begins a session that lives for `ttl` after this call, and after each keep-alive, was *answered*.
    fn open_session(&self, ttl: Ttl, label: Label) -> impl Future<Output = Result<Opened, Failure>>;

    /// Keeps a session alive for another TTL. [`Failure::SessionEnded`] when it lives no longer.
    fn keep_alive(&self, session: SessionId) -> impl Future<Output = Result<(), Failure>>;

    /// Ends a session and everything it holds or waits for. Ending one that has ended is no error.
    fn close_session(&self, session: SessionId) -> impl Future<Output = Result<(), Failure>>;

    /// Keeps a session alive for another TTL, and from now on it lives by its TTL alone: neither the end of this engine
    /// nor that of its process ends it. Any client can then keep it alive, release what it holds and close it.
    fn leave_session(&self, session: SessionId) -> impl Future<Output = Result<(), Failure>>;

    /// Takes locks. With [`Patience::Wait`] the call lasts until they are granted;
    /// with `Try`, [`Acquired::Busy`] says that they are not available now.
    fn acquire(&self, ask: Acquire) -> impl Future<Output = Result<Acquired, Failure>>;

    /// Gives up the acquire of this number, whatever became of it: it waits no longer, and if it has not arrived yet
    /// it never will. If it was granted, [`Cancelled::WasGranted`] says with which token; the grant stands.
    fn cancel(&self, session: SessionId, number: RequestNo) -> impl Future<Output = Result<Cancelled, Failure>>;

    /// Gives back a grant. Never frees anything but the grant of this token.
    fn release(
        &self,
        session: SessionId,
        lock: LockName,
        token: Token,
    ) -> impl Future<Output = Result<Released, Failure>>;

    /// Replaces the value that the holder of a lock shows to observers.
    fn publish(
        &self,
        session: SessionId,
        lock: LockName,
        token: Token,
        value: Value,
    ) -> impl Future<Output = Result<(), Failure>>;

    /// Signs a token that holds this lock now, so that a resource can verify it without a request.
    fn sign(
        &self,
        session: SessionId,
        lock: LockName,
        token: Token,
    ) -> impl Future<Output = Result<SignedToken, Failure>>;

    /// Ends all grants of a lock, or only the grant of one token. Records `by` and `reason`.
    fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> impl Future<Output = Result<Forced, Failure>>;

    /// Changes the permits of a semaphore that is in use.
    fn resize(&self, lock: LockName, limit: u32) -> impl Future<Output = Result<(), Failure>>;

    /// Raises the tokens: every grant that begins after this was answered has a token above this one. Grants that are
    /// held keep their tokens. Tokens are never lowered. Durable before it is answered, as far as the engine's grants are.
    fn raise_tokens(&self, above: Token) -> impl Future<Output = Result<Raised, Failure>>;

    /// A lock as it is now; `None` without holders and waiters.
    fn inspect(&self, lock: LockName) -> impl Future<Output = Result<Option<LockInfo>, Failure>>;

    /// All locks in use whose names begin so, sorted by name.
    fn list(&self, prefix: String) -> impl Future<Output = Result<Vec<LockInfo>, Failure>>;

    /// Everything that happens from now on to locks whose names begin so.
    fn watch(&self, prefix: String) -> impl Future<Output = Result<mpsc::Receiver<Watched>, Failure>>;
}

/// A session that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its number.
    pub session: SessionId,
    /// What ends against its will, from now on.
    pub notices: mpsc::UnboundedReceiver<Notice>,
    /// What the engine takes for the client's life, if it sees a client's death before the TTL is over: the session
    /// lives at least as long as a copy of this is open, in whatever process, but never longer than its TTL.
    pub lifeline: Option<OwnedFd>,
}

/// Something of a session ended, and not on its wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A grant.
    GrantEnded {
        /// Its token.
        token: Token,
        /// How it ended.
        how: Ending,
    },
    /// The session itself, and with it all that it had.
    SessionEnded(SessionEnd),
    /// The store has lost its data, and with it the session: others may hold what it held.
    DataLost {
        /// What was noticed.
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
    /// Nothing waits, and nothing will.
    Gone,
    /// It had been granted; the grant stands.
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

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// Something happened.
    Event(Event),
    /// The watcher was too slow, and some events are missing here: look at the locks again.
    Missed,
}
