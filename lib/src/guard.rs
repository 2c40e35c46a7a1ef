//! Guards of held locks.

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

/// A held lock, several locks at once, or permits. The guard reports when they are lost.
///
/// Dropping it releases the lock in the background: the keeper retries until that succeeds or the session ends.
pub struct Guard {
    grant: Arc<Grant>,
    link: Arc<Link>,
}

impl Guard {
    pub(crate) fn new(grant: Arc<Grant>, link: Arc<Link>) -> Guard {
        Guard { grant, link }
    }

    /// Returns the fencing token. Present it with every access to the resource.
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
    /// The lock is lost, its lease is over, or [`release`](Guard::release) was called. This reads the clock, so it fails in time even if
    /// the keeper was paused.
    pub fn token(&self) -> Result<Token, Error> {
        self.check("use").map(|()| self.grant.token)
    }

    /// Returns the token of the one lock that is held, signed, for a resource that verifies signatures.
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
    /// [`Misuse::WhichLock`]: use [`signed_token_for`](Guard::signed_token_for).
    pub async fn signed_token(&self) -> Result<SignedToken, Error> {
        match self.grant.locks.as_slice() {
            [lock] => self.sign(lock.clone()).await,
            _ => Err(self.error(ErrorKind::Misuse(Misuse::WhichLock), SIGN)),
        }
    }

    /// Returns the token of one of the locks that are held, signed. See [`Guard::signed_token`].
    ///
    /// # Errors
    ///
    /// As [`Guard::signed_token`]; the guard does not hold this lock.
    pub async fn signed_token_for(&self, lock: &str) -> Result<SignedToken, Error> {
        let lock = LockName::new(lock).map_err(|bad| self.error(ErrorKind::Misuse(Misuse::Name(bad)), SIGN))?;
        self.sign(lock).await
    }

    async fn sign(&self, lock: LockName) -> Result<SignedToken, Error> {
        if !self.link.guarantees.offers.signed {
            return Err(self.error(not_offered("signed tokens"), SIGN));
        }
        self.check(SIGN)?;
        self.link.call(|reply| Op::Sign(self.grant.clone(), lock, reply)).await
    }

    /// Checks that the lock stays held for at least this time, even if no further keep-alive succeeds.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use std::time::Duration;
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// guard.ensure(Duration::from_secs(2))?;
    /// let error = guard.ensure(Duration::from_secs(3600)).unwrap_err();
    /// assert!(matches!(error.kind(), palisade::ErrorKind::Misuse(_)), "longer than the TTL");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The lock is lost; less time is left, which is an outage that can be retried; or the time is longer than a keep-alive can
    /// promise, which is a misuse.
    pub fn ensure(&self, time: Duration) -> Result<(), Error> {
        self.check("use")?;
        let left = self.safe_until().left();
        if left >= time {
            return Ok(());
        }
        let lease = self.grant.session.lease;
        if time > lease {
            return Err(self.error(ErrorKind::Misuse(Misuse::LongerThanLease { needed: time, lease }), "use"));
        }
        let what =
            format!("only {left:?} are left until it may be lost, and {time:?} are needed; wait for a renewal");
        let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: true, source: None };
        Err(self.error(kind, "use"))
    }

    /// Returns the end of the lease: the lock is certainly held until then, unless it is released, also by force. A renewal
    /// moves it.
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

    /// Waits until [`safe_until`](Guard::safe_until) differs from `seen`, because the session was renewed, and returns the new
    /// value. It waits without end if the session is not renewed any more: wait for [`lost`](Guard::lost) too.
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

    /// Returns whether the lock is held, in jeopardy or lost.
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

    /// Waits until the lock is lost, and returns the reason.
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

    /// Releases the lock. Releasing it again is not an error.
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
    /// The lock is released nevertheless.
    ///
    /// # On connection loss
    ///
    /// A client of a cluster repeats the release at the next leader, for a few seconds. Otherwise the error says so, and the
    /// release is retried in the background until it succeeds or the session ends.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if it had been lost before: the work since then may have overlapped with another
    /// holder's. An engine that does not answer.
    pub async fn release(&self) -> Result<(), Error> {
        if self.grant.is_released() {
            return Ok(());
        }
        // The engine may carry it out although its reply is lost, and another client may get the lock then.
        self.grant.give_up();
        let span =
            tracing::debug_span!("release", engine = self.link.guarantees.engine, token = self.grant.token.get());
        self.link.call(|reply| Op::Release(self.grant.clone(), Some(reply))).instrument(span).await
    }

    /// Releases the lock as dropping the guard does, while others still have the guard.
    pub(crate) fn release_in_background(&self) {
        if !self.grant.is_released() {
            self.grant.give_up();
            self.link.send(Op::Release(self.grant.clone(), None));
        }
    }

    /// Returns the grant's token, whether it is still held or not. For comparisons only.
    pub(crate) fn granted_token(&self) -> Token {
        self.grant.token
    }

    /// Returns the locks that this guard holds.
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

    /// Returns the session that holds the lock.
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

    /// Returns the descriptor by which the engine detects the death of this process before the TTL expires; `None` if it does
    /// not detect it. As long as another process has a copy open, the lock stays held, but no longer than the TTL. So a
    /// process that must clean up after this one can finish first.
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
        self.link.call(|reply| Op::Publish(self.grant.clone(), value, reply)).await
    }

    /// Runs `work`, then releases the lock. Drops `work` if the lock is lost.
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
        self.release_in_background();
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
    /// The leadership of an election. See [`Guard`] for what else it can do.
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

/// A lock for efficiency. It has no token, because two clients may hold it at once.
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
    /// Returns the end of the lease, by the engine's promises. See [`Guard::safe_until`].
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

    /// Returns the session that holds the lock.
    pub fn session(&self) -> SessionId {
        self.0.session()
    }

    /// Returns the descriptor by which the engine detects the death of this process. See [`Guard::lifeline`].
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.0.lifeline()
    }

    /// Returns whether the lock is held, in jeopardy or lost.
    pub fn standing(&self) -> Standing {
        self.0.standing()
    }

    /// Waits until the lock is lost, and returns the reason.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// Releases the lock. Releasing it again is not an error.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    pub async fn release(&self) -> Result<(), Error> {
        self.0.release().await
    }
}
