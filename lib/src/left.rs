//! Sessions that outlived their clients.

use std::sync::Arc;

use palisade_core::{SessionId, Token};

use crate::Error;
use crate::client::parse_name;
use crate::keeper::{Link, Op, SessionOp};

/// A session that its client has [left](crate::Palisade::leave). It lives by its TTL. A client that knows its number
/// can act for it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
/// let first = palisade::connect("memory:left").await?;
/// let guard = first.lock("production").acquire().await?;
/// let session = first.leave().await?;
///
/// let second = palisade::connect("memory:left").await?;
/// second.left_session(session).keep_alive().await?;
/// second.left_session(session).close().await?;
/// assert!(second.left_session(session).keep_alive().await.is_err());
/// # Ok(()) }
/// ```
pub struct LeftSession {
    link: Arc<Link>,
    session: SessionId,
}

impl std::fmt::Debug for LeftSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LeftSession").field(&self.session).finish()
    }
}

impl LeftSession {
    pub(crate) fn new(link: Arc<Link>, session: SessionId) -> LeftSession {
        LeftSession { link, session }
    }

    /// Gives it another TTL from now on.
    ///
    /// # Errors
    ///
    /// [`Loss::Expired`](crate::Loss::Expired) when it lives no longer: what it held may be another's by now. An
    /// engine that does not answer.
    pub async fn keep_alive(&self) -> Result<(), Error> {
        self.ask(SessionOp::KeepAlive).await
    }

    /// Releases what it holds with this token.
    ///
    /// # Errors
    ///
    /// [`Loss::Expired`](crate::Loss::Expired) when it does not hold the lock with this token (any more). A name that
    /// is none; an engine that does not answer.
    pub async fn release(&self, name: &str, token: Token) -> Result<(), Error> {
        let lock = parse_name(&self.link, name, "release")?;
        self.ask(SessionOp::Release(lock, token)).await
    }

    /// Ends it, and with it everything that it holds. Ending one that has ended is no error.
    ///
    /// # Errors
    ///
    /// An engine that does not answer.
    pub async fn close(&self) -> Result<(), Error> {
        self.ask(SessionOp::Close).await
    }

    async fn ask(&self, op: SessionOp) -> Result<(), Error> {
        self.link.ask(|reply| Op::ForSession(self.session, op, reply)).await
    }
}
