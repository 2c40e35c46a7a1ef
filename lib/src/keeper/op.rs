//! The operations that an application's futures send to the keeper.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use palisade_core::{Delay, Label, LockName, LockNames, SessionId, Token, Value, Wants};
use tokio::sync::{mpsc, oneshot};

use super::session::Grant;
use crate::engine::{Forced, LockInfo, Raised};
use crate::{Error, SignedToken, Watch};

/// Sends the result of an operation to the future that waits for it.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// An operation on the keeper's thread.
pub(crate) enum Op {
    Acquire(AcquireOp, Reply<Option<Delivered>>),
    /// Retried until it succeeds or the session ends. The reply, if any, has the result of the first attempt.
    Release(Arc<Grant>, Option<Reply<()>>),
    Publish(Arc<Grant>, Value, Reply<()>),
    Sign(Arc<Grant>, LockName, Reply<SignedToken>),
    ForceRelease(ForceRelease, Reply<Forced>),
    Resize(LockName, u32, Reply<()>),
    RaiseTokens(Token, Reply<Raised>),
    Inspect(LockName, Reply<Option<LockInfo>>),
    List(String, Reply<Vec<LockInfo>>),
    Watch(String, Reply<Watch>),
    ForSession(SessionId, SessionOp, Reply<()>),
    /// Runs a task of the library on the keeper's thread, where it goes on while the application blocks its own.
    Spawn(Spawn),
    /// Ends the client and leaves its session open until the TTL expires.
    Detach(Reply<SessionId>),
    Close(Reply<()>),
}

/// Makes the future of a task, on the thread that runs it.
pub(crate) type Spawn = Box<dyn FnOnce() -> LocalBoxFuture<'static, ()> + Send>;

/// An operation on a session that another client opened.
pub(crate) enum SessionOp {
    KeepAlive,
    Release(LockName, Token),
    Close,
}

impl SessionOp {
    /// The operation's name in messages.
    pub(super) fn operation(&self) -> &'static str {
        match self {
            SessionOp::KeepAlive => "keep alive session",
            SessionOp::Release(..) => "release what is held by session",
            SessionOp::Close => "close session",
        }
    }
}

/// An acquire as the application requested it.
#[derive(Debug, Clone)]
pub(crate) struct AcquireOp {
    pub(crate) wants: Wants,
    pub(crate) wait: Wait,
    pub(crate) delay: Option<Delay>,
    pub(crate) value: Option<Value>,
}

impl AcquireOp {
    pub(crate) fn locks(&self) -> LockNames {
        self.wants.iter().map(|want| want.lock.clone()).collect()
    }

    /// The locks' names, for messages.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.wants.iter().map(|want| want.lock.as_str()).collect();
        names.join(", ")
    }
}

/// How long an acquire waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    Within(Duration),
    Forever,
}

pub(crate) struct ForceRelease {
    pub(crate) lock: LockName,
    pub(crate) only: Option<Token>,
    pub(crate) by: Label,
    pub(crate) reason: Label,
}

/// A grant on its way to the caller. If the caller's future was dropped, the grant is released.
pub(crate) struct Delivered {
    grant: Option<Arc<Grant>>,
    ops: mpsc::WeakUnboundedSender<Op>,
}

impl Delivered {
    pub(super) fn new(grant: Arc<Grant>, ops: mpsc::WeakUnboundedSender<Op>) -> Delivered {
        Delivered { grant: Some(grant), ops }
    }

    /// Hands the grant to the caller.
    pub(crate) fn take(mut self) -> Arc<Grant> {
        match self.grant.take() {
            Some(grant) => grant,
            None => unreachable!("a grant arrives once"),
        }
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        // Without a sender the client is gone, and the keeper closes the session.
        if let Some(grant) = self.grant.take()
            && let Some(ops) = self.ops.upgrade()
        {
            drop(ops.send(Op::Release(grant, None)));
        }
    }
}
