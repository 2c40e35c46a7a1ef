//! Sessions that outlived their clients.

use std::sync::Arc;

use palisade_core::{SessionId, Token};

use crate::Error;
use crate::client::parse_name;
use crate::keeper::{Link, Op, SessionOp};

/// A session whose client has [detached](crate::Palisade::detach) from it. It stays open until its TTL expires. Any client
/// that knows its number can renew it, release its grants and close it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
/// let first = palisade::connect("memory:detached").await?;
/// let guard = first.lock("production").acquire().await?;
/// let session = first.detach().await?;
///
/// let second = palisade::connect("memory:detached").await?;
/// second.detached_session(session).keep_alive().await?;
/// second.detached_session(session).close().await?;
/// assert!(second.detached_session(session).keep_alive().await.is_err());
/// # Ok(()) }
/// ```
pub struct DetachedSession {
    link: Arc<Link>,
    session: SessionId,
}

impl std::fmt::Debug for DetachedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DetachedSession").field(&self.session).finish()
    }
}

impl DetachedSession {
    pub(crate) fn new(link: Arc<Link>, session: SessionId) -> DetachedSession {
        DetachedSession { link, session }
    }

    /// Renews the session: its TTL starts again.
    ///
    /// # Errors
    ///
    /// [`Loss::Expired`](crate::Loss::Expired) if it has ended: another client may hold its locks by now. An
    /// engine that does not answer.
    pub async fn keep_alive(&self) -> Result<(), Error> {
        self.call(SessionOp::KeepAlive).await
    }

    /// Releases the session's grant with this token.
    ///
    /// # Errors
    ///
    /// [`Loss::Expired`](crate::Loss::Expired) if it does not hold the lock with this token. An invalid name; an
    /// engine that does not answer.
    pub async fn release(&self, name: &str, token: Token) -> Result<(), Error> {
        let lock = parse_name(&self.link, name, "release")?;
        self.call(SessionOp::Release(lock, token)).await
    }

    /// Closes the session, which releases everything that it holds. Closing a session that has ended is not an error.
    ///
    /// # Errors
    ///
    /// An engine that does not answer.
    pub async fn close(&self) -> Result<(), Error> {
        self.call(SessionOp::Close).await
    }

    async fn call(&self, op: SessionOp) -> Result<(), Error> {
        self.link.call(|reply| Op::ForSession(self.session, op, reply)).await
    }
}
