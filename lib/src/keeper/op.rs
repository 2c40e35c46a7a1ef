//! What an application's futures ask of the keeper, and how they get their answers.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Delay, Label, LockName, LockNames, SessionId, Token, Value, Wants};
use tokio::sync::{mpsc, oneshot};

use super::session::Grant;
use crate::engine::{Forced, LockInfo, Raised};
use crate::{Error, SignedToken, Watch};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// Something to do on the keeper's thread.
pub(crate) enum Op {
    Acquire(Ask, Reply<Option<Delivered>>),
    /// With nobody to answer to, it is tried until it is done or the session is over.
    Release(Arc<Grant>, Option<Reply<()>>),
    Publish(Arc<Grant>, Value, Reply<()>),
    Sign(Arc<Grant>, LockName, Reply<SignedToken>),
    ForceRelease(ForceRelease, Reply<Forced>),
    Resize(LockName, u32, Reply<()>),
    RaiseTokens(Token, Reply<Raised>),
    Inspect(LockName, Reply<Option<LockInfo>>),
    List(String, Reply<Vec<LockInfo>>),
    Watch(String, Reply<Watch>),
    OfSession(SessionId, OfSession, Reply<()>),
    Leave(Reply<SessionId>),
    Close(Reply<()>),
}

/// Something to do for a session that is not this client's own.
pub(crate) enum OfSession {
    KeepAlive,
    Release(LockName, Token),
    Close,
}

impl OfSession {
    /// What it does, for messages.
    pub(super) fn operation(&self) -> &'static str {
        match self {
            OfSession::KeepAlive => "keep alive session",
            OfSession::Release(..) => "release what is held by session",
            OfSession::Close => "close session",
        }
    }
}

/// A request for locks.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) wants: Wants,
    pub(crate) patience: AskPatience,
    pub(crate) delay: Option<Delay>,
    pub(crate) value: Option<Value>,
}

impl Ask {
    pub(crate) fn locks(&self) -> LockNames {
        self.wants.iter().map(|want| want.lock.clone()).collect()
    }

    /// The locks' names, for messages.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.wants.iter().map(|want| want.lock.as_str()).collect();
        names.join(", ")
    }
}

/// How long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskPatience {
    Try,
    Within(Duration),
    Forever,
}

pub(crate) struct ForceRelease {
    pub(crate) lock: LockName,
    pub(crate) only: Option<Token>,
    pub(crate) by: Label,
    pub(crate) reason: Label,
}

/// A grant on its way to whoever asked for it. If it never arrives, because the future that waited for it was
/// dropped, it is given back.
pub(crate) struct Delivered {
    grant: Option<Arc<Grant>>,
    ops: mpsc::WeakUnboundedSender<Op>,
}

impl Delivered {
    pub(super) fn new(grant: Arc<Grant>, ops: mpsc::WeakUnboundedSender<Op>) -> Delivered {
        Delivered { grant: Some(grant), ops }
    }

    /// It has arrived.
    pub(crate) fn take(mut self) -> Arc<Grant> {
        match self.grant.take() {
            Some(grant) => grant,
            None => unreachable!("a grant arrives once"),
        }
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        // Without a sender there is no client any more, and the keeper closes the whole session.
        if let Some(grant) = self.grant.take()
            && let Some(ops) = self.ops.upgrade()
        {
            drop(ops.send(Op::Release(grant, None)));
        }
    }
}
