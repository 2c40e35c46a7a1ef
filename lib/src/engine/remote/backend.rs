//! The part of a remote engine that differs by store.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use palisade_core::{Acquire, Label, LockName, SessionId, Token, Ttl, Value};
use tokio::sync::mpsc;

use super::{ClientState, ConnectError, Peer, WaitKey};
use crate::SignedToken;
use crate::engine::{Failure, Forced, Guarantees, LockInfo, Raised, Watched};

/// A store that keeps locks and is reached over a connection.
///
/// An operation performs its calls once, each within [`CALL_TIMEOUT`](Backend::CALL_TIMEOUT), on the connection it is given. It never reconnects:
/// [`Remote`](super::Remote) does. A connection whose call was not answered in time is broken.
#[allow(async_fn_in_trait, reason = "everything runs on the keeper's thread")]
pub trait Backend: Sized + 'static {
    /// Where the store is, and how to reach it.
    type Config;
    /// A connection to the store, or several that are opened and replaced together.
    type Connection: RemoteConnection;
    /// The backend's data for each grant of this client.
    type GrantExtra;
    /// The backend's data for each waiting acquire.
    type WaitExtra: Default;
    /// The backend's data for each session.
    type SessionExtra: Default;
    /// The backend's data that all sessions share.
    type SharedExtra: Default;

    /// The store's name in messages.
    const NAME: &'static str;
    /// The longest time that one call may take.
    const CALL_TIMEOUT: Duration;

    fn new(config: Self::Config, client: Rc<ClientState<Self>>) -> Self;

    fn guarantees(&self) -> Guarantees;

    /// The store that the configuration names.
    fn peer(&self) -> &Peer;

    /// Returns for how long after its first attempt a release, an acquire that does not wait, or the opening of a session is
    /// repeated if its connection broke. Zero unless another server is expected to take over soon.
    fn repeat_within(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the backend's data for the grant of this acquire.
    fn grant_extra(acquire: &Acquire, session: &Self::SessionExtra) -> Self::GrantExtra;

    /// Connects, checks that the store still has the data of this client, attaches every session of the client state, and
    /// notifies sessions of grants that ended meanwhile.
    async fn connect(&self) -> Result<Connected<Self>, ConnectError>;

    async fn open_session(
        &self,
        connection: &Rc<Self::Connection>,
        ttl: Ttl,
        label: &Label,
    ) -> Result<SessionId, Failure>;

    async fn keep_alive(
        &self,
        connection: &Rc<Self::Connection>,
        session: SessionId,
        timeout: Duration,
    ) -> Result<(), Failure>;

    async fn close_session(&self, connection: &Rc<Self::Connection>, session: SessionId) -> Result<(), Failure>;

    /// Keeps a session alive once more, and lets other clients renew and close it by its number from now on.
    async fn detach_session(&self, connection: &Rc<Self::Connection>, session: SessionId) -> Result<(), Failure> {
        self.keep_alive(connection, session, Self::CALL_TIMEOUT).await
    }

    /// Requests locks. A waiting acquire that is queued is settled later through the client state.
    async fn acquire(&self, connection: &Rc<Self::Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure>;

    async fn cancel(
        &self,
        connection: &Rc<Self::Connection>,
        wait: WaitKey,
    ) -> Result<CancelReply<Self::GrantExtra>, Failure>;

    /// Releases a grant. `grant` is `None` for a grant that this client does not know.
    async fn release(
        &self,
        connection: &Rc<Self::Connection>,
        held: &Held,
        grant: Option<&Self::GrantExtra>,
    ) -> Result<(), Failure>;

    async fn publish(&self, connection: &Rc<Self::Connection>, held: &Held, value: &Value) -> Result<(), Failure>;

    async fn sign(&self, _: &Rc<Self::Connection>, _: &Held) -> Result<SignedToken, Failure> {
        Err(crate::engine::host::not_signing())
    }

    async fn force_release(&self, connection: &Rc<Self::Connection>, force: &ForceRelease)
    -> Result<Forced, Failure>;

    async fn resize(&self, connection: &Rc<Self::Connection>, lock: &LockName, limit: u32) -> Result<(), Failure>;

    async fn raise_tokens(&self, connection: &Rc<Self::Connection>, above: Token) -> Result<Raised, Failure>;

    async fn inspect(&self, connection: &Rc<Self::Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure>;

    async fn list(&self, connection: &Rc<Self::Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure>;

    async fn watch(
        &self,
        connection: &Rc<Self::Connection>,
        prefix: &str,
    ) -> Result<mpsc::Receiver<Watched>, Failure>;

    /// Runs before an acquire is sent for the first time.
    fn begin_request(&self, _: &Acquire) -> Result<(), Failure> {
        Ok(())
    }

    /// Runs before the caller of an acquire gets its outcome.
    fn end_request(&self, _: &Acquire, _: Option<&Failure>) {}

    /// Waits until a new grant is as durable as the configuration demands. On failure [`Remote`](super::Remote) releases the grant.
    async fn confirm_grant(&self, _: SessionId, _: &super::Reconnector<Self::Connection>) -> Result<(), Failure> {
        Ok(())
    }
}

/// A connection that can break.
pub trait RemoteConnection: 'static {
    /// Whether nothing can be sent any more, so that [`Remote`](super::Remote) opens the next connection.
    fn is_broken(&self) -> bool;
}

/// A connection that was opened and has attached all sessions.
pub struct Connected<B: Backend> {
    /// The connection.
    pub connection: Rc<B::Connection>,
    /// Grants at the store that no caller here waits for or holds.
    pub orphans: Vec<Held>,
    /// Receives pushes, and polls for what the store does not push. Ends when the connection breaks, with the reason.
    pub driver: LocalBoxFuture<'static, ConnectError>,
}

/// A grant of one of this client's sessions.
#[derive(Debug)]
pub struct Held {
    /// Its session.
    pub session: SessionId,
    /// One of its locks.
    pub lock: LockName,
    /// Its token.
    pub token: Token,
}

/// The end of all grants of a lock, or of one.
#[derive(Debug)]
pub struct ForceRelease {
    /// The lock.
    pub lock: LockName,
    /// The token of the only grant to end.
    pub only: Option<Token>,
    /// The user that ends it.
    pub by: Label,
    /// The user's reason.
    pub reason: Label,
}

/// The reply to an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireReply {
    /// The locks are held.
    Granted(Token),
    /// The acquire waits at the store.
    Queued,
    /// The locks are not available, and the acquire does not wait.
    Busy,
}

/// The reply to a cancel.
#[derive(Debug)]
pub enum CancelReply<G> {
    /// The acquire does not wait, and a late copy of it will not wait either.
    Gone,
    /// The acquire was granted before the cancel arrived. The grant remains.
    Granted(Token, G),
}
