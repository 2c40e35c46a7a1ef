//! The same for programs without async: every call blocks its thread until it is answered.
//!
//! ```
//! let palisade = palisade::blocking::connect("memory:")?;
//! let guard = palisade.lock("orders/42").acquire()?;
//! println!("writing with token {}", guard.token()?);
//! guard.release()?;
//! # Ok::<(), palisade::Error>(())
//! ```
//!
//! Do not call it from within an async runtime: it would block the runtime's thread.

use std::ops::Deref;
use std::time::Duration;

use pollster::block_on;

use crate::engine::{Forced, Guarantees, LockInfo, Raised, Watched};
use crate::recipe::Change;
use crate::{Error, Leader, Loss, Options, SessionId, Token};

/// Connects to the engine that a URL names, with the default [`Options`]. See [`crate::connect`].
///
/// # Errors
///
/// As [`crate::connect`].
pub fn connect(url: &str) -> Result<Palisade, Error> {
    connect_with(Options::new(), url)
}

/// Connects with these options.
///
/// ```
/// use std::time::Duration;
/// let options = palisade::Options::new().ttl(Duration::from_secs(30));
/// let palisade = palisade::blocking::connect_with(options, "memory:")?;
/// # Ok::<(), palisade::Error>(())
/// ```
///
/// # Errors
///
/// As [`crate::connect`].
pub fn connect_with(options: Options, url: &str) -> Result<Palisade, Error> {
    block_on(options.connect(url)).map(Palisade)
}

/// Connects to the engine that `PALISADE_URL` names. See [`crate::connect_env`].
///
/// # Errors
///
/// As [`crate::connect`].
pub fn connect_env() -> Result<Palisade, Error> {
    block_on(crate::connect_env()).map(Palisade)
}

/// A client. See [`crate::Palisade`].
#[derive(Debug, Clone)]
pub struct Palisade(crate::Palisade);

impl Palisade {
    /// Returns the promises of the engine.
    pub fn guarantees(&self) -> &Guarantees {
        self.0.guarantees()
    }

    /// An exclusive lock.
    pub fn lock(&self, name: impl Into<String>) -> Request<crate::LockGuard> {
        Request(self.0.lock(name))
    }

    /// A lock that many share for reading.
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let one = palisade.read_lock("table").acquire()?;
    /// let two = palisade.read_lock("table").acquire()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn read_lock(&self, name: impl Into<String>) -> Request<crate::ReadGuard> {
        Request(self.0.rw_lock(name).read())
    }

    /// The same lock, for writing.
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let guard = palisade.write_lock("table").acquire()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn write_lock(&self, name: impl Into<String>) -> Request<crate::WriteGuard> {
        Request(self.0.rw_lock(name).write())
    }

    /// `count` permits of a semaphore that has `of` permits in all.
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let two = palisade.permits("gpu", 2, 4).acquire()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn permits(&self, name: impl Into<String>, count: u32, of: u32) -> Request<crate::Permit> {
        Request(self.0.semaphore(name, of).many(count))
    }

    /// Several locks at once, all or nothing.
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let both = palisade.lock_all(["a", "b"]).acquire()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn lock_all<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> Request<crate::LockGuard> {
        Request(self.0.lock_all(names))
    }

    /// Partitions that members share. See [`crate::Palisade::partitions`].
    ///
    /// ```
    /// use palisade::recipe::Change;
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let mut member = palisade.partitions("orders", 1).join(1)?;
    /// assert!(matches!(member.next_change()?, Change::Gained(_)));
    /// member.leave()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn partitions(&self, name: impl Into<String>, count: u32) -> Partitions {
        Partitions(self.0.partitions(name, count))
    }

    /// Returns the current state of a lock. See [`crate::Palisade::inspect`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// assert!(palisade.inspect("orders/42")?.is_none());
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn inspect(&self, name: &str) -> Result<Option<LockInfo>, Error> {
        block_on(self.0.inspect(name))
    }

    /// Returns all locks in use whose names have this prefix. See [`crate::Palisade::list`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Error> {
        block_on(self.0.list(prefix))
    }

    /// Releases a lock by force. See [`crate::Palisade::force_release`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn force_release(&self, name: &str, reason: &str) -> Result<Forced, Error> {
        block_on(self.0.force_release(name, reason))
    }

    /// Releases a lock by force, but only if it is still held with this token. See [`crate::Palisade::force_release_only`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn force_release_only(&self, name: &str, token: Token, reason: &str) -> Result<Forced, Error> {
        block_on(self.0.force_release_only(name, token, reason))
    }

    /// Raises the engine's tokens above this one. See [`crate::Palisade::raise_tokens`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn raise_tokens(&self, above: Token) -> Result<Raised, Error> {
        block_on(self.0.raise_tokens(above))
    }

    /// Changes the permits of a semaphore that is in use. See [`crate::Palisade::resize`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let all = palisade.permits("gpu", 2, 2).acquire()?;
    /// palisade.resize("gpu", 3)?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn resize(&self, name: &str, permits: u32) -> Result<(), Error> {
        block_on(self.0.resize(name, permits))
    }

    /// Waits to be elected, and publishes a value. See [`crate::Election::campaign`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let leadership = palisade.campaign("scheduler", "starting")?;
    /// leadership.publish("ready")?;
    /// assert_eq!(palisade.leader("scheduler")?.expect("a leader").value, b"ready");
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn campaign(&self, name: &str, value: impl AsRef<[u8]>) -> Result<Held<crate::Leadership>, Error> {
        block_on(self.0.election(name).campaign(value)).map(Held)
    }

    /// Returns the request that `campaign` sends. See [`crate::Election::candidacy`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let leads = palisade.candidacy("scheduler", "a").try_acquire()?;
    /// assert!(leads.is_some());
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn candidacy(&self, name: &str, value: impl AsRef<[u8]>) -> Request<crate::Leadership> {
        Request(self.0.election(name).candidacy(value))
    }

    /// Returns the current leader. See [`crate::Election::leader`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn leader(&self, name: &str) -> Result<Option<Leader>, Error> {
        block_on(self.0.election(name).leader())
    }

    /// Watches all locks whose names have this prefix. The iterator ends when the client is closed. See [`crate::Palisade::watch`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let mut feed = palisade.watch("orders/")?;
    /// let guard = palisade.lock("orders/42").acquire()?;
    /// assert!(feed.next().is_some());
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn watch(&self, prefix: &str) -> Result<impl Iterator<Item = Watched> + use<>, Error> {
        let mut watch = block_on(self.0.watch(prefix))?;
        Ok(std::iter::from_fn(move || block_on(watch.next())))
    }

    /// Ends this client, and leaves its session open until the TTL expires. See [`crate::Palisade::detach`].
    ///
    /// ```
    /// let first = palisade::blocking::connect("memory:blocking")?;
    /// let guard = first.lock("production").acquire()?;
    /// let (token, session) = (guard.token()?, first.detach()?);
    ///
    /// let second = palisade::blocking::connect("memory:blocking")?;
    /// second.detached_session(session).keep_alive()?;
    /// second.detached_session(session).release("production", token)?;
    /// second.detached_session(session).close()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn detach(self) -> Result<SessionId, Error> {
        block_on(self.0.detach())
    }

    /// Returns a handle for a session whose client has detached. See [`crate::Palisade::detached_session`].
    pub fn detached_session(&self, session: SessionId) -> DetachedSession {
        DetachedSession(self.0.detached_session(session))
    }

    /// Closes the session. See [`crate::Palisade::close`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// palisade.close()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn close(self) -> Result<(), Error> {
        block_on(self.0.close())
    }
}

/// A session whose client has detached from it. See [`crate::DetachedSession`].
#[derive(Debug)]
pub struct DetachedSession(crate::DetachedSession);

impl DetachedSession {
    /// Renews the session. See [`crate::DetachedSession::keep_alive`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn keep_alive(&self) -> Result<(), Error> {
        block_on(self.0.keep_alive())
    }

    /// Releases the session's grant with this token. See [`crate::DetachedSession::release`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn release(&self, name: &str, token: Token) -> Result<(), Error> {
        block_on(self.0.release(name, token))
    }

    /// Closes the session. See [`crate::DetachedSession::close`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn close(&self) -> Result<(), Error> {
        block_on(self.0.close())
    }
}

/// Partitions that members share. See [`crate::recipe::Partitions`].
#[must_use = "partitions are shared among members that have joined"]
pub struct Partitions(crate::recipe::Partitions);

impl Partitions {
    /// Sets how long the application has to let go of a partition. See [`crate::recipe::Partitions::grace`].
    pub fn grace(self, grace: Duration) -> Partitions {
        Partitions(self.0.grace(grace))
    }

    /// Accepts an engine whose tokens rise only while its store keeps its data. See
    /// [`crate::recipe::Partitions::dangerous_accept_failover`].
    pub fn dangerous_accept_failover(self) -> Partitions {
        Partitions(self.0.dangerous_accept_failover())
    }

    /// Becomes a member. See [`crate::recipe::Partitions::join`].
    ///
    /// # Errors
    ///
    /// As [`crate::recipe::Partitions::join`].
    pub fn join(self, capacity: u32) -> Result<Member, Error> {
        block_on(self.0.join(capacity)).map(Member)
    }
}

/// A member of the group that shares partitions. See [`crate::recipe::Member`], whose other methods it has too.
#[derive(Debug)]
pub struct Member(crate::recipe::Member);

impl Deref for Member {
    type Target = crate::recipe::Member;
    fn deref(&self) -> &crate::recipe::Member {
        &self.0
    }
}

impl Member {
    /// Waits for the next change. See [`crate::recipe::Member::next`].
    ///
    /// # Errors
    ///
    /// As [`crate::recipe::Member::next`].
    pub fn next_change(&mut self) -> Result<Change, Error> {
        block_on(self.0.next())
    }

    /// Lets go of a partition. See [`crate::recipe::Member::release`].
    ///
    /// # Errors
    ///
    /// As [`crate::recipe::Member::release`].
    pub fn release(&self, partition: u32) -> Result<(), Error> {
        block_on(self.0.release(partition))
    }

    /// Leaves the group. See [`crate::recipe::Member::leave`].
    ///
    /// # Errors
    ///
    /// As [`crate::recipe::Member::leave`].
    pub fn leave(self) -> Result<(), Error> {
        block_on(self.0.leave())
    }
}

/// A request that is not sent yet. See [`crate::Request`].
#[must_use = "a request does nothing until `acquire` or `try_acquire` is called"]
pub struct Request<G>(crate::Request<G>);

impl<G: From<crate::Guard>> Request<G> {
    /// Sets the lock-delay. See [`crate::Request::delay`].
    pub fn delay(self, delay: Duration) -> Request<G> {
        Request(self.0.delay(delay))
    }

    /// Declares that two holders at once would only waste work. See [`crate::Request::efficiency`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let guard = palisade.lock("cache").efficiency().acquire()?;
    /// guard.release()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn efficiency(self) -> Request<crate::EfficiencyGuard> {
        Request(self.0.efficiency())
    }

    /// Accepts an engine whose tokens rise only while its store keeps its data. See
    /// [`crate::Request::dangerous_accept_failover`].
    pub fn dangerous_accept_failover(self) -> Request<G> {
        Request(self.0.dangerous_accept_failover())
    }

    /// Waits until the lock is granted. See [`crate::Request::acquire`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn acquire(self) -> Result<Held<G>, Error> {
        block_on(self.0.acquire()).map(Held)
    }

    /// Acquires the lock if it is available now. See [`crate::Request::try_acquire`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// assert!(palisade.lock("orders/42").try_acquire()?.is_some());
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn try_acquire(self) -> Result<Option<Held<G>>, Error> {
        block_on(self.0.try_acquire()).map(|guard| guard.map(Held))
    }

    /// Waits at most this long. See [`crate::Request::acquire_within`].
    ///
    /// ```
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let guard = palisade.lock("orders/42").acquire_within(std::time::Duration::from_secs(5))?;
    /// assert!(guard.is_some());
    /// # Ok::<(), palisade::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn acquire_within(self, wait: Duration) -> Result<Option<Held<G>>, Error> {
        block_on(self.0.acquire_within(wait)).map(|guard| guard.map(Held))
    }
}

impl<G: crate::Exclusive> Request<G> {
    /// Seals these resources with the grant's token before the caller gets the guard. See [`crate::Request::seal`].
    ///
    /// Resources that need a Tokio runtime, as databases do, need a multi-thread runtime: enter it first. Read and write the
    /// sealed handles with `runtime.block_on(…)`.
    ///
    /// ```
    /// # struct Orders;
    /// # impl palisade::Seal for Orders {
    /// #     type Sealed = palisade::Token;
    /// #     async fn seal(&self, token: palisade::Token) -> Result<palisade::Token, palisade::SealError> { Ok(token) }
    /// # }
    /// # let orders = Orders;
    /// let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    /// let _within = runtime.enter();
    /// let palisade = palisade::blocking::connect("memory:")?;
    /// let (guard, orders) = palisade.lock("orders/42").seal(&orders).acquire()?;
    /// guard.release()?;
    /// # Ok::<(), palisade::Error>(())
    /// ```
    pub fn seal<S: crate::Seal>(self, resources: S) -> SealingRequest<G, S> {
        SealingRequest(self.0.seal(resources))
    }
}

/// A request that is not sent yet, for a lock together with the resources that it seals. See [`crate::SealingRequest`].
#[must_use = "a request does nothing until `acquire` or `try_acquire` is called"]
pub struct SealingRequest<G, S>(crate::SealingRequest<G, S>);

/// A guard, and the sealed handles.
type Both<G, S> = (Held<G>, <S as crate::Seal>::Sealed);

impl<G: crate::Exclusive, S: crate::Seal> SealingRequest<G, S> {
    /// Waits for the lock, and seals. See [`crate::SealingRequest::acquire`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn acquire(self) -> Result<Both<G, S>, Error> {
        block_on(self.0.acquire()).map(|(guard, sealed)| (Held(guard), sealed))
    }

    /// Acquires the lock if it is available now, and seals. See [`crate::SealingRequest::try_acquire`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn try_acquire(self) -> Result<Option<Both<G, S>>, Error> {
        block_on(self.0.try_acquire()).map(|both| both.map(|(guard, sealed)| (Held(guard), sealed)))
    }

    /// Waits at most this long, and seals. See [`crate::SealingRequest::acquire_within`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn acquire_within(self, wait: Duration) -> Result<Option<Both<G, S>>, Error> {
        block_on(self.0.acquire_within(wait)).map(|both| both.map(|(guard, sealed)| (Held(guard), sealed)))
    }
}

/// A held lock. It has all methods of [`crate::Guard`] that do not wait, by dereferencing.
#[derive(Debug)]
pub struct Held<G>(G);

impl<G: Deref<Target = crate::Guard>> Held<G> {
    /// Waits until the lock is lost, and returns the reason. See [`crate::Guard::lost`].
    pub fn wait_until_lost(&self) -> Loss {
        block_on(self.0.lost())
    }

    /// Returns the signed token. See [`crate::Guard::signed_token`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn signed_token(&self) -> Result<crate::SignedToken, Error> {
        block_on(self.0.signed_token())
    }

    /// Returns the signed token of one of the locks. See [`crate::Guard::signed_token_for`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn signed_token_for(&self, lock: &str) -> Result<crate::SignedToken, Error> {
        block_on(self.0.signed_token_for(lock))
    }

    /// Releases the lock. See [`crate::Guard::release`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn release(&self) -> Result<(), Error> {
        block_on(self.0.release())
    }
}

impl Held<crate::Leadership> {
    /// Replaces the value that observers read. See [`crate::Leadership::publish`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn publish(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        block_on(self.0.publish(value))
    }
}

impl Held<crate::EfficiencyGuard> {
    /// Releases the lock. See [`crate::EfficiencyGuard::release`].
    ///
    /// # Errors
    ///
    /// As the async version.
    pub fn release(&self) -> Result<(), Error> {
        block_on(self.0.release())
    }
}

impl<G: Deref<Target = crate::Guard>> Deref for Held<G> {
    type Target = crate::Guard;
    fn deref(&self) -> &crate::Guard {
        &self.0
    }
}
