//! Requests for locks: one lock, a read-write lock, a semaphore, several locks at once.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{BadNumber, Delay, Mode, Value, Want};
use tracing::Instrument;

use crate::client::parse_name;
use crate::engine::{Level, Offers};
use crate::guard::{EfficiencyGuard, Guard, LockGuard, Permit, ReadGuard, WriteGuard};
use crate::keeper::{AcquireOp, Link, Op, Wait};
use crate::{Error, ErrorKind, Misuse, error};

const OPERATION: &str = "acquire";

/// A request that is not sent yet. Once granted, a guard `G` represents it.
#[must_use = "a request does nothing until `acquire` or `try_acquire` is called"]
pub struct Request<G> {
    link: Arc<Link>,
    wants: Vec<(String, Mode)>,
    delay: Option<Duration>,
    pub(crate) value: Option<Value>,
    /// The lowest level of an engine that may serve it.
    needed_level: Level,
    guard: PhantomData<fn() -> G>,
}

/// A lock that one holder has at a time.
pub type Lock = Request<LockGuard>;
/// Several locks at once, all or nothing, under one token.
pub type LockSet = Request<LockGuard>;

impl<G> Clone for Request<G> {
    fn clone(&self) -> Request<G> {
        let Request { link, wants, delay, value, needed_level, guard } = self;
        let (link, wants, value) = (link.clone(), wants.clone(), value.clone());
        Request { link, wants, delay: *delay, value, needed_level: *needed_level, guard: *guard }
    }
}

impl<G: From<Guard>> Request<G> {
    pub(crate) fn with(link: Arc<Link>, wants: Vec<(String, Mode)>) -> Request<G> {
        Request { link, wants, delay: None, value: None, needed_level: Level::Fenced, guard: PhantomData }
    }

    /// Sets the lock-delay: when the holder's session expires (not when it releases), the engine grants the lock to no other
    /// client for this time. Use it for resources that cannot check a token. Writes that the holder sent before it died
    /// then arrive before the next holder begins.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use std::time::Duration;
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("printer").delay(Duration::from_secs(15)).acquire().await?;
    /// # Ok(()) }
    /// ```
    pub fn delay(self, delay: Duration) -> Request<G> {
        Request { delay: Some(delay), ..self }
    }

    /// Declares that two holders at once would only waste work. Engines that cannot fence are then allowed, and the guard
    /// has no token.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("warm-the-cache").efficiency().acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn efficiency(self) -> Request<EfficiencyGuard> {
        let Request { link, wants, delay, value, .. } = self;
        Request { link, wants, delay, value, needed_level: Level::Advisory, guard: PhantomData }
    }

    /// Accepts an engine whose tokens rise only while its store keeps its data ([`Level::HealthyOnly`]): after a
    /// failover, two clients may hold the lock, and the newer holder may have the lower token, so a fence cannot help.
    /// Without this call, such an engine serves locks for efficiency only. On other engines it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").dangerous_accept_failover().acquire().await?;
    /// # Ok(()) }
    /// ```
    pub fn dangerous_accept_failover(self) -> Request<G> {
        Request { needed_level: self.needed_level.min(Level::HealthyOnly), ..self }
    }

    /// Waits in the lock's queue until it is granted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves nothing queued and nothing held.
    ///
    /// # On connection loss
    ///
    /// It goes on waiting, and keeps its position in the queue, until its session ends.
    ///
    /// # Errors
    ///
    /// Misuse; an engine that cannot do it; the session was lost while waiting.
    pub async fn acquire(self) -> Result<G, Error> {
        match self.send(Wait::Forever).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("an acquire without a deadline is granted or fails"),
        }
    }

    /// Acquires the lock if it is available now; `None` if it is not.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").try_acquire().await?;
    /// assert!(guard.is_some());
    /// assert!(palisade.lock("orders/42").try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves nothing held.
    ///
    /// # On connection loss
    ///
    /// It fails. If the engine granted the lock, the keeper releases it in the background. If the session has expired, because the engine
    /// did not answer for longer than the TTL, the call fails when the keeper's next attempt to open a session fails.
    ///
    /// # Errors
    ///
    /// Misuse; an engine that cannot do it, or does not answer.
    pub async fn try_acquire(self) -> Result<Option<G>, Error> {
        self.send(Wait::No).await
    }

    /// Waits at most this long; `None` if the lock was not granted in time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use std::time::Duration;
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire_within(Duration::from_secs(5)).await?;
    /// assert!(guard.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation, connection loss, errors
    ///
    /// As [`acquire`](Request::acquire). If the session has expired, and the keeper cannot open another one before the time is over, the
    /// call returns an error, not `None`.
    pub async fn acquire_within(self, wait: Duration) -> Result<Option<G>, Error> {
        self.send(Wait::Within(wait)).await
    }

    async fn send(&self, wait: Wait) -> Result<Option<G>, Error> {
        let acquire = self.prepare(wait)?;
        let span = tracing::debug_span!("acquire", engine = self.link.guarantees.engine, lock = acquire.names());
        let delivered = self.link.call(|reply| Op::Acquire(acquire, reply)).instrument(span).await?;
        Ok(delivered.map(|delivered| Guard::new(delivered.take(), self.link.clone()).into()))
    }

    /// Checks the request against the engine's guarantees and the limits of names and numbers.
    fn prepare(&self, wait: Wait) -> Result<AcquireOp, Error> {
        let names = || self.wants.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let fail = |kind| Error::new(kind, self.link.guarantees.engine, OPERATION).on(names());
        if self.link.is_observer {
            return Err(fail(ErrorKind::Misuse(Misuse::Observer)));
        }
        self.check_offers(&self.link.guarantees.offers).map_err(fail)?;
        let level = self.link.guarantees.level;
        if level < self.needed_level {
            return Err(fail(error::not_fenced(level, self.value.is_some())));
        }
        let wants = self
            .wants
            .iter()
            .map(|(name, mode)| Ok(Want { lock: parse_name(&self.link, name, OPERATION)?, mode: *mode }));
        let wants = wants.collect::<Result<_, Error>>()?;
        let bad = |bad: BadNumber| fail(ErrorKind::Misuse(Misuse::Number(bad)));
        let ms = |delay: Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let delay = self.delay.map(|delay| Delay::from_ms(ms(delay))).transpose().map_err(bad)?;
        Ok(AcquireOp { wants, wait, delay, value: self.value.clone() })
    }

    fn check_offers(&self, offers: &Offers) -> Result<(), ErrorKind> {
        let any = |is_kind: fn(&Mode) -> bool| self.wants.iter().any(|(_, mode)| is_kind(mode));
        let missing = [
            (any(|mode| *mode == Mode::Shared) && !offers.shared, "shared locks"),
            (any(|mode| matches!(mode, Mode::Permits { .. })) && !offers.permits, "semaphores"),
            (self.wants.len() > 1 && !offers.several, "way to take several locks at once"),
            (self.value.is_some() && !offers.values, "elections"),
            (self.delay.is_some() && !offers.delay, "lock-delay"),
        ];
        match missing.iter().find(|(missing, _)| *missing) {
            Some((_, what)) => Err(error::not_offered(what)),
            None => Ok(()),
        }
    }
}

impl Request<LockGuard> {
    pub(crate) fn new_lock(link: Arc<Link>, name: String) -> Lock {
        Request::with(link, vec![(name, Mode::Exclusive)])
    }

    pub(crate) fn new_set(link: Arc<Link>, names: Vec<String>) -> LockSet {
        Request::with(link, names.into_iter().map(|name| (name, Mode::Exclusive)).collect())
    }

    /// Acquires the lock, runs `work`, and releases the lock. Drops `work` if the lock is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let written = palisade.lock("orders/42").run(async |guard| {
    ///     format!("written with token {}", guard.token().expect("it is held"))
    /// });
    /// assert_eq!(written.await?, "written with token 1");
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// `work` is dropped and the lock is released.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Request::acquire); [`ErrorKind::Lost`] if the lock was lost before `work` ended.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        guard.run(work(&guard)).await
    }
}

/// A lock that many share for reading, or one has for writing.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct RwLock {
    link: Arc<Link>,
    name: String,
}

impl RwLock {
    pub(crate) fn new(link: Arc<Link>, name: String) -> RwLock {
        RwLock { link, name }
    }

    /// Returns a request for reading, together with other readers. A reader queues behind a writer that waits already.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.rw_lock("table").read().acquire().await?;
    /// # Ok(()) }
    /// ```
    pub fn read(&self) -> Request<ReadGuard> {
        Request::with(self.link.clone(), vec![(self.name.clone(), Mode::Shared)])
    }

    /// Returns a request for writing, which excludes all other holders.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.rw_lock("table").write().acquire().await?;
    /// # Ok(()) }
    /// ```
    pub fn write(&self) -> Request<WriteGuard> {
        Request::with(self.link.clone(), vec![(self.name.clone(), Mode::Exclusive)])
    }
}

/// A semaphore: a number of permits that clients acquire and release.
#[derive(Clone)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore {
    link: Arc<Link>,
    name: String,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(link: Arc<Link>, name: String, permits: u32) -> Semaphore {
        Semaphore { link, name, permits }
    }

    /// Returns a request for `count` permits at once. Later requests for fewer permits do not overtake it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let two = palisade.semaphore("gpu", 4).many(2).try_acquire().await?;
    /// assert!(two.is_some());
    /// # Ok(()) }
    /// ```
    pub fn many(&self, count: u32) -> Request<Permit> {
        Request::with(self.link.clone(), vec![(self.name.clone(), Mode::Permits { count, of: self.permits })])
    }

    /// Waits for one permit. See [`Request::acquire`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let permit = palisade.semaphore("gpu", 4).acquire().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Request::acquire`].
    pub async fn acquire(self) -> Result<Permit, Error> {
        self.many(1).acquire().await
    }

    /// Waits for `count` permits at once. See [`Request::acquire`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let permits = palisade.semaphore("gpu", 4).acquire_many(2).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Request::acquire`].
    pub async fn acquire_many(self, count: u32) -> Result<Permit, Error> {
        self.many(count).acquire().await
    }

    /// Acquires one permit if it is available now. See [`Request::try_acquire`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let all = palisade.semaphore("gpu", 4).acquire_many(4).await?;
    /// assert!(palisade.semaphore("gpu", 4).try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Request::try_acquire`].
    pub async fn try_acquire(self) -> Result<Option<Permit>, Error> {
        self.many(1).try_acquire().await
    }
}
