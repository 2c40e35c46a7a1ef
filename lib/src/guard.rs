//! What is held, and whether it still is.

use std::future::Future;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use palisade_core::{LockName, SessionId, Token, Value};
use tracing::Instrument;

use crate::error::not_offered;
use crate::keeper::{Grant, Link, Op};
use crate::{BootInstant, Error, ErrorKind, Loss, Misuse, SignedToken, Standing};

const SIGN: &str = "sign the token of";

/// Something that is held. It knows when it is lost.
///
/// Dropping it releases it in the background, reliably: the keeper tries until it is done or the session is over.
pub struct Guard {
    grant: Arc<Grant>,
    link: Arc<Link>,
}

impl Guard {
    pub(crate) fn new(grant: Arc<Grant>, link: Arc<Link>) -> Guard {
        Guard { grant, link }
    }

    /// The fencing token: present it with every access to the resource.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// let token = guard.token()?;
    /// guard.release().await?;
    /// assert!(guard.token().is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Once the lock is lost, or past the moment until which it is certain that it is not. The check is made by the
    /// clock, whatever else in this process is stopped.
    pub fn token(&self) -> Result<Token, Error> {
        self.check("use").map(|()| self.grant.token)
    }

    /// The token of the one lock that is held, signed: for a resource that wants proof of it.
    ///
    /// ```
    /// # async fn example(palisade: palisade::Palisade) -> Result<(), palisade::Error> {
    /// let guard = palisade.lock("orders/42").acquire().await?;    // at a service that was started with --sign
    /// println!("Signed-Token: {}", guard.signed_token().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Nothing happens; call it again.
    ///
    /// # Errors
    ///
    /// The engine does not sign, the lock is lost, or the engine does not answer. With several locks,
    /// [`Misuse::WhichLock`]: ask [for one of them](Guard::signed_token_for).
    pub async fn signed_token(&self) -> Result<SignedToken, Error> {
        match self.grant.locks.as_slice() {
            [lock] => self.sign(lock.clone()).await,
            _ => Err(self.error(ErrorKind::Misuse(Misuse::WhichLock), SIGN)),
        }
    }

    /// The token of one of the locks that are held, signed. See [`Guard::signed_token`].
    ///
    /// # Errors
    ///
    /// As there; this lock is not one of them.
    pub async fn signed_token_for(&self, lock: &str) -> Result<SignedToken, Error> {
        let lock = LockName::new(lock).map_err(|bad| self.error(ErrorKind::Misuse(Misuse::Name(bad)), SIGN))?;
        self.sign(lock).await
    }

    async fn sign(&self, lock: LockName) -> Result<SignedToken, Error> {
        if !self.link.guarantees.offers.signed {
            return Err(self.error(not_offered("signed tokens"), SIGN));
        }
        self.check(SIGN)?;
        self.link.ask(|reply| Op::Sign(self.grant.clone(), lock, reply)).await
    }

    /// Makes sure that at least so much time is left, if no keep-alive succeeds any more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use std::time::Duration;
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// guard.ensure(Duration::from_secs(2))?;
    /// assert!(guard.ensure(Duration::from_secs(3600)).is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The lock is lost, or less time is left. In the latter case it is an outage that can be retried.
    pub fn ensure(&self, time: Duration) -> Result<(), Error> {
        self.check("use")?;
        let left = self.safe_until().left();
        if left >= time {
            return Ok(());
        }
        let what =
            format!("only {left:?} are left until it may be lost, and {time:?} are needed; wait for a renewal");
        let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: true, source: None };
        Err(self.error(kind, "use"))
    }

    /// Until when it is certainly held, unless it is released, forced away, or renewed before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// assert!(!guard.safe_until().has_passed());
    /// # Ok(()) }
    /// ```
    pub fn safe_until(&self) -> BootInstant {
        self.grant.session.safe_until()
    }

    /// Waits until [`safe_until`](Guard::safe_until) is no longer `seen`, because the session was renewed, and returns
    /// what it is now. Never, if it is not renewed any more: wait for [`lost`](Guard::lost) too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use std::time::Duration;
    /// let palisade = palisade::Options::new().ttl(Duration::from_millis(300)).connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// let seen = guard.safe_until();
    /// assert!(guard.renewed(seen).await > seen);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Nothing happens; call it again.
    pub async fn renewed(&self, seen: BootInstant) -> BootInstant {
        let moved = || Some(self.safe_until()).filter(|safe_until| *safe_until != seen);
        self.grant.session.watch(moved).await
    }

    /// What is known now.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::Standing;
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// assert_eq!(guard.standing(), Standing::Held);
    /// # Ok(()) }
    /// ```
    pub fn standing(&self) -> Standing {
        self.grant.standing()
    }

    /// Waits until the lock is in jeopardy or lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// use palisade::{Loss, Standing};
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// palisade.close().await?;
    /// assert_eq!(guard.jeopardy().await, Standing::Lost(Loss::SessionClosed));
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Nothing happens; call it again.
    pub async fn jeopardy(&self) -> Standing {
        let standing = || match self.standing() {
            Standing::Held => None,
            standing => Some(standing),
        };
        self.grant.session.watch(standing).await
    }

    /// Waits until the lock is lost, and says why.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::Loss;
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// palisade.close().await?;
    /// assert_eq!(guard.lost().await, Loss::SessionClosed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Nothing happens; call it again.
    pub async fn lost(&self) -> Loss {
        let loss = || match self.standing() {
            Standing::Lost(loss) => Some(loss),
            _ => None,
        };
        self.grant.session.watch(loss).await
    }

    /// Releases it. Releasing again is no error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// guard.release().await?;
    /// guard.release().await?;
    /// assert!(palisade.lock("orders/42").try_acquire().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// It is released all the same.
    ///
    /// # On connection loss
    ///
    /// The error says so, and the release is retried in the background until it succeeds or the session ends.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if it had been lost before: the work since then may have overlapped with another
    /// holder's. An engine that does not answer.
    pub async fn release(&self) -> Result<(), Error> {
        if self.grant.is_released() {
            return Ok(());
        }
        let span =
            tracing::debug_span!("release", engine = self.link.guarantees.engine, token = self.grant.token.get());
        self.link.ask(|reply| Op::Release(self.grant.clone(), Some(reply))).instrument(span).await
    }

    /// The locks that it holds.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock_all(["a", "b"]).acquire().await?;
    /// assert_eq!(guard.locks().len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn locks(&self) -> &[LockName] {
        &self.grant.locks
    }

    /// The session that holds it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// let lock = palisade.inspect("orders/42").await?.expect("it is held");
    /// assert_eq!(lock.holders[0].session, Some(guard.session()));
    /// # Ok(()) }
    /// ```
    pub fn session(&self) -> SessionId {
        self.grant.session.id
    }

    /// What the engine takes for this process's life, if it sees a process's death before the TTL is over. Another
    /// process that has a copy keeps the lock from passing on until it has closed it or the TTL is over: for one that
    /// must first clean up after this one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// assert!(guard.lifeline().is_none(), "this engine dies with its process");
    /// # Ok(()) }
    /// ```
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.grant.session.lifeline.as_ref().map(AsFd::as_fd)
    }

    fn check(&self, operation: &'static str) -> Result<(), Error> {
        match self.standing() {
            Standing::Lost(loss) => Err(self.error(ErrorKind::Lost(loss), operation)),
            Standing::Held | Standing::Jeopardy { .. } => Ok(()),
        }
    }

    pub(crate) fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        let names: Vec<_> = self.grant.locks.iter().map(LockName::as_str).collect();
        Error::new(kind, self.link.guarantees.engine, operation).on(names.join(", "))
    }

    async fn publish(&self, value: Value) -> Result<(), Error> {
        self.check("publish a value for")?;
        self.link.ask(|reply| Op::Publish(self.grant.clone(), value, reply)).await
    }

    /// Does the work while this is held; the work is dropped when it is lost.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let done = match select(std::pin::pin!(work), std::pin::pin!(self.lost())).await {
            Either::Left((done, _)) => done,
            Either::Right((loss, _)) => return Err(self.error(ErrorKind::Lost(loss), "finish the work under")),
        };
        self.release().await?;
        Ok(done)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.grant.is_released() {
            self.link.send(Op::Release(self.grant.clone(), None));
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("Guard");
        fields.field("locks", &self.grant.locks).field("token", &self.grant.token);
        fields.field("standing", &self.standing()).finish()
    }
}

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Guard);

        impl From<Guard> for $name {
            fn from(guard: Guard) -> $name {
                $name(guard)
            }
        }

        impl Deref for $name {
            type Target = Guard;
            fn deref(&self) -> &Guard {
                &self.0
            }
        }
    )*};
}

guards! {
    /// A lock, or several at once, held exclusively. See [`Guard`] for what it can do.
    LockGuard;
    /// A lock held together with other readers. See [`Guard`] for what it can do.
    ReadGuard;
    /// A lock held for writing. See [`Guard`] for what it can do.
    WriteGuard;
    /// Permits of a semaphore. See [`Guard`] for what it can do.
    Permit;
    /// The leader's seat in an election. See [`Guard`] for what else it can do.
    Leadership;
}

impl Leadership {
    /// Replaces the value that observers read.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let leadership = palisade.election("scheduler").campaign("starting").await?;
    /// leadership.publish("ready").await?;
    /// let leader = palisade.election("scheduler").leader().await?.expect("there is one");
    /// assert_eq!(leader.value, b"ready");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The leadership is lost, the value is too long, or the engine does not answer.
    pub async fn publish(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.0.publish(Value::new(value.as_ref())).await
    }
}

/// A lock that only saves work: it has no token, because two may hold it at once.
pub struct EfficiencyGuard(Guard);

impl std::fmt::Debug for EfficiencyGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("EfficiencyGuard");
        fields.field("locks", &self.0.grant.locks).field("standing", &self.standing()).finish()
    }
}

impl From<Guard> for EfficiencyGuard {
    fn from(guard: Guard) -> EfficiencyGuard {
        EfficiencyGuard(guard)
    }
}

impl EfficiencyGuard {
    /// Until when it is certainly held, unless it is released, forced away, or renewed before: as far as the engine
    /// can be trusted.
    pub fn safe_until(&self) -> BootInstant {
        self.0.safe_until()
    }

    /// Waits until the session was renewed. See [`Guard::renewed`].
    pub async fn renewed(&self, seen: BootInstant) -> BootInstant {
        self.0.renewed(seen).await
    }

    /// Waits until the lock is in jeopardy or lost.
    pub async fn jeopardy(&self) -> Standing {
        self.0.jeopardy().await
    }

    /// The session that holds it.
    pub fn session(&self) -> SessionId {
        self.0.session()
    }

    /// What the engine takes for this process's life. See [`Guard::lifeline`].
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.0.lifeline()
    }

    /// What is known now.
    pub fn standing(&self) -> Standing {
        self.0.standing()
    }

    /// Waits until the lock is lost, and says why.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// Releases it. Releasing again is no error.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    pub async fn release(&self) -> Result<(), Error> {
        self.0.release().await
    }
}
