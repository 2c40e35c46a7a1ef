//! An engine that repeats calls that failed and may be repeated, as a careful application does.

use std::cell::Cell;
use std::future::Future;

use async_trait::async_trait;
use palisade::engine::{
    Acquire, Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Label, LockInfo, Opened, Raised, Released,
    RequestNo, Ttl, Value, Watched,
};
use palisade::{LockName, SessionId, SignedToken, Token};
use tokio::sync::mpsc;

use crate::bounded::until_some;

/// An engine whose calls are repeated until they are answered. Keep-alives are not: the keeper repeats them, and counts the time.
pub struct Repeating<E>(E);

impl<E: Engine> Repeating<E> {
    /// Connects, and repeats that too.
    ///
    /// # Errors
    ///
    /// A failure that cannot be repeated.
    pub async fn connect(connect: impl AsyncFn() -> Result<E, Failure>) -> Result<Repeating<E>, Failure> {
        repeat(|| connect()).await.map(Repeating)
    }
}

async fn repeat<T, F: Future<Output = Result<T, Failure>>>(call: impl Fn() -> F) -> Result<T, Failure> {
    let attempt = async || match call().await {
        Err(failure) if failure.is_retryable() => None,
        outcome => Some(outcome),
    };
    until_some("a call is answered", attempt).await
}

#[async_trait(?Send)]
impl<E: Engine> Engine for Repeating<E> {
    fn guarantees(&self) -> Guarantees {
        self.0.guarantees()
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        repeat(|| self.0.open_session(ttl, label.clone())).await
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        self.0.keep_alive(session).await
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        repeat(|| self.0.close_session(session)).await
    }

    async fn detach_session(&self, session: SessionId) -> Result<(), Failure> {
        repeat(|| self.0.detach_session(session)).await
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Acquired, Failure> {
        repeat(|| self.0.acquire(acquire.clone())).await
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        repeat(|| self.0.cancel(session, number)).await
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        let may_be_done = Cell::new(false);
        let attempt = async || {
            let released = self.0.release(session, lock.clone(), token).await;
            may_be_done.set(may_be_done.get() || released.as_ref().is_err_and(Failure::may_have_taken_effect));
            released
        };
        match repeat(attempt).await {
            // An earlier attempt has released it.
            Ok(Released::Before) if may_be_done.get() => Ok(Released::Now),
            released => released,
        }
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        repeat(|| self.0.publish(session, lock.clone(), token, value.clone())).await
    }

    async fn sign(&self, session: SessionId, lock: LockName, token: Token) -> Result<SignedToken, Failure> {
        repeat(|| self.0.sign(session, lock.clone(), token)).await
    }

    async fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> Result<Forced, Failure> {
        repeat(|| self.0.force_release(lock.clone(), only, by.clone(), reason.clone())).await
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        repeat(|| self.0.resize(lock.clone(), limit)).await
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        repeat(|| self.0.raise_tokens(above)).await
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        repeat(|| self.0.inspect(lock.clone())).await
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        repeat(|| self.0.list(prefix.clone())).await
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        repeat(|| self.0.watch(prefix.clone())).await
    }
}
