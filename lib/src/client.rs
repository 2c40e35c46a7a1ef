//! The handle that an application keeps.

use std::sync::Arc;

use palisade_core::{Label, LockName, Refusal, SessionId, Token};

use crate::connect::Target;
use crate::engine::{Engine, Failure, Forced, Guarantees, Level, LockInfo, Raised};
use crate::keeper::{ForceRelease, Link, Op};
use crate::recipe::Partitions;
use crate::{
    DetachedSession, Election, Error, ErrorKind, Lock, LockSet, Misuse, Options, Request, RwLock, Semaphore, Watch,
    error,
};

/// Connects to the engine that a URL names, with the default [`Options`].
///
/// | URL | engine |
/// |---|---|
/// | `embedded:` or `embedded:///path/locks.db` | one file, shared by the processes of this host |
/// | `palisade://host:port` | the service, not encrypted |
/// | `palisades://host:port` | the service, over TLS; its certificate is verified |
/// | `palisades://user@host:port` | the same, logged in; the secret is in `PALISADE_SECRET`, or in a file (`?secret_file=FILE`), or in the URL (`user:secret@`) |
/// | `postgres://user@host/database` | an existing PostgreSQL (feature `postgres`) |
/// | `mysql://user@host/database` | an existing MySQL or MariaDB (feature `mysql`) |
/// | `zookeeper://a,b,c/path` | an existing ZooKeeper (feature `zookeeper`) |
/// | `redis://host`, `rediss://host` | an existing Redis: one server, behind Sentinels, or a cluster (feature `redis`) |
/// | `redlock://a,b,c,d,e` | a majority of Redis servers, for [efficiency](Request::efficiency) only (feature `redlock`) |
/// | `memory:` or `memory:NAME` | the memory of this process |
///
/// Options for TLS: `?ca=FILE` (the certificate authorities to trust instead of the system's), `&cert=FILE&key=FILE` (the
/// client's certificate), `&name=NAME` (the name in the service's certificate, if it is not the host). No error, no log and no
/// `Debug` form shows a secret.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
/// let palisade = palisade::connect("memory:").await?;
/// let guard = palisade.lock("orders/42").acquire().await?;
/// println!("writing with token {}", guard.token()?);
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// An invalid URL, an engine that cannot be reached, or an engine that refuses this client.
pub async fn connect(url: &str) -> Result<Palisade, Error> {
    Options::new().connect(url).await
}

/// Connects to the engine that the environment variable `PALISADE_URL` names, or to `embedded:` without it.
///
/// ```no_run
/// # async fn example() -> Result<(), palisade::Error> {
/// let palisade = palisade::connect_env().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`connect`].
pub async fn connect_env() -> Result<Palisade, Error> {
    let url = std::env::var("PALISADE_URL").unwrap_or_else(|_| "embedded:".to_owned());
    connect(&url).await
}

/// A client: one session on one engine, kept alive by a separate thread. Cheap to clone; all clones share the session.
/// Dropping the last clone or guard closes the session, and blocks for at most 2 s until that is done.
#[derive(Clone)]
pub struct Palisade {
    pub(crate) link: Arc<Link>,
}

impl std::fmt::Debug for Palisade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Palisade").field("engine", &self.link.guarantees.engine).finish_non_exhaustive()
    }
}

impl Palisade {
    pub(crate) async fn connect(url: &str, options: Options) -> Result<Palisade, Error> {
        let target = Target::parse(url)?;
        let engine = target.engine();
        let link = Link::start(engine, options, async move || target.connect().await).await?;
        Ok(Palisade { link })
    }

    pub(crate) async fn connect_engine<E: Engine>(
        name: &'static str,
        options: Options,
        connect: impl AsyncFnOnce() -> Result<E, Failure> + Send + 'static,
    ) -> Result<Palisade, Error> {
        let connect = async move || Ok(Box::new(connect().await?) as Box<dyn Engine>);
        let link = Link::start(name, options, connect).await?;
        Ok(Palisade { link })
    }

    /// Returns the promises of the engine.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::engine::Level;
    /// let palisade = palisade::connect("memory:").await?;
    /// assert_eq!(palisade.guarantees().level, Level::Fenced);
    /// # Ok(()) }
    /// ```
    pub fn guarantees(&self) -> &Guarantees {
        &self.link.guarantees
    }

    /// An exclusive lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// assert!(palisade.lock("orders/42").try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Request::new_lock(self.link.clone(), name.into())
    }

    /// A lock that many share for reading, or one has for writing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let one = palisade.rw_lock("table").read().acquire().await?;
    /// let two = palisade.rw_lock("table").read().acquire().await?;
    /// assert!(palisade.rw_lock("table").write().try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(self.link.clone(), name.into())
    }

    /// A semaphore with this number of permits. All its clients must pass the same number.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let three = palisade.semaphore("gpu", 4).acquire_many(3).await?;
    /// let one = palisade.semaphore("gpu", 4).acquire().await?;
    /// assert!(palisade.semaphore("gpu", 4).try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(self.link.clone(), name.into(), permits)
    }

    /// Several locks at once, all or nothing, under one token. Overlapping sets cannot deadlock, in whatever order they name
    /// their locks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let both = palisade.lock_all(["accounts/1", "accounts/2"]).acquire().await?;
    /// assert!(palisade.lock("accounts/2").try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn lock_all<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> LockSet {
        Request::new_set(self.link.clone(), names.into_iter().map(Into::into).collect())
    }

    /// An election: a lock whose holder, the leader, publishes a value that observers read.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let leadership = palisade.election("scheduler").campaign("10.0.0.7:8080").await?;
    /// let leader = palisade.election("scheduler").leader().await?.expect("there is one");
    /// assert_eq!(leader.value, b"10.0.0.7:8080");
    /// # Ok(()) }
    /// ```
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election::new(self.link.clone(), name.into())
    }

    /// A number of partitions that members share, each with one owner and its own token.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::recipe::Change;
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 4).join(4).await?;
    /// let Change::Gained(ownership) = member.next().await? else { panic!("a lone member only gains") };
    /// println!("partition {} with token {}", ownership.partition(), ownership.token()?);
    /// member.leave().await?;
    /// # Ok(()) }
    /// ```
    pub fn partitions(&self, name: impl Into<String>, count: u32) -> Partitions {
        Partitions::new(self.link.clone(), name.into(), count)
    }

    /// Returns the current state of a lock: its holders, its waiters and the last grants that ended. `None` if it has neither
    /// holders nor waiters.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// let lock = palisade.inspect("orders/42").await?.expect("it is held");
    /// assert_eq!(lock.holders[0].token, guard.token()?);
    /// assert!(palisade.inspect("orders/43").await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An invalid name, an engine that does not answer.
    pub async fn inspect(&self, name: &str) -> Result<Option<LockInfo>, Error> {
        let lock = self.name(name, "inspect")?;
        self.link.call(|reply| Op::Inspect(lock, reply)).await
    }

    /// Returns all locks in use whose names have this prefix, sorted by name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let held = palisade.lock_all(["b/1", "a/2", "a/1"]).acquire().await?;
    /// let names: Vec<_> = palisade.list("a/").await?.into_iter().map(|lock| lock.name.to_string()).collect();
    /// assert_eq!(names, ["a/1", "a/2"]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An engine that does not know the names of all locks, or does not answer.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Error> {
        if !self.link.guarantees.offers.list {
            return Err(self.error(error::not_offered("list of locks"), "list locks below").on(prefix));
        }
        self.link.call(|reply| Op::List(prefix.to_owned(), reply)).await
    }

    /// Watches all locks whose names have this prefix, from now on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::engine::Watched;
    /// use palisade::Event;
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut watch = palisade.watch("orders/").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// let seen = watch.next().await;
    /// assert!(matches!(seen, Some(Watched::Event(Event::Granted { .. }))));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An engine that cannot be watched, or does not answer.
    pub async fn watch(&self, prefix: &str) -> Result<Watch, Error> {
        if !self.link.guarantees.offers.watch {
            return Err(self.error(error::not_offered("way to watch"), "watch locks below").on(prefix));
        }
        self.link.call(|reply| Op::Watch(prefix.to_owned(), reply)).await
    }

    /// Releases a lock by force, whichever client holds it. The engine records the label of this client and the reason. It
    /// also uses up one token, and returns it: seal a resource with it, and the resource refuses the old holder's writes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// let token = guard.token()?;
    /// let forced = palisade.force_release("orders/42", "the worker hangs").await?;
    /// assert!(forced.moved_to > token);
    /// guard.lost().await;
    /// assert!(guard.token().is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The reason is empty, the lock is not held, or the engine does not offer this, or does not answer.
    pub async fn force_release(&self, name: &str, reason: &str) -> Result<Forced, Error> {
        self.force(name, None, reason).await
    }

    /// Releases a lock by force, but only if it is still held with this token. A grant that began after the operator looked
    /// is not affected.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let first = palisade.lock("orders/42").acquire().await?;
    /// let seen = first.token()?;
    /// first.release().await?;
    /// let second = palisade.lock("orders/42").acquire().await?;
    /// assert!(palisade.force_release_only("orders/42", seen, "it hangs").await.is_err());
    /// second.token()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`force_release`](Palisade::force_release); the lock is not held with this token.
    pub async fn force_release_only(&self, name: &str, token: Token, reason: &str) -> Result<Forced, Error> {
        self.force(name, Some(token), reason).await
    }

    async fn force(&self, name: &str, only: Option<Token>, reason: &str) -> Result<Forced, Error> {
        const OPERATION: &str = "force the release of";
        if !self.link.guarantees.offers.force_release {
            return Err(self.error(error::not_offered("force-release"), OPERATION).on(name));
        }
        let lock = self.name(name, OPERATION)?;
        if reason.trim().is_empty() {
            return Err(self
                .error(ErrorKind::Misuse(Misuse::Refused(Refusal::NoReason { lock })), OPERATION)
                .on(name));
        }
        let by = Label::new(&self.link.label);
        let force = ForceRelease { lock, only, by, reason: Label::new(reason) };
        self.link.call(|reply| Op::ForceRelease(force, reply)).await
    }

    /// Changes the number of permits of a semaphore that is in use.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let all = palisade.semaphore("gpu", 2).acquire_many(2).await?;
    /// palisade.resize("gpu", 3).await?;
    /// let one_more = palisade.semaphore("gpu", 3).acquire().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The semaphore is not in use, or is a lock; an engine that does not answer.
    pub async fn resize(&self, name: &str, permits: u32) -> Result<(), Error> {
        const OPERATION: &str = "resize";
        if !self.link.guarantees.offers.permits {
            return Err(self.error(error::not_offered("semaphores"), OPERATION).on(name));
        }
        let lock = self.name(name, OPERATION)?;
        if !self.link.guarantees.offers.resize {
            return Err(self.error(error::not_offered("way to resize a semaphore"), OPERATION).on(name));
        }
        self.link.call(|reply| Op::Resize(lock, permits, reply)).await
    }

    /// Raises the engine's tokens: every lock that is granted after this returns has a token above `above`. Use it for a
    /// resource that was sealed with a higher token, by another engine or before this one was restored from a backup.
    ///
    /// Current grants keep their tokens. If the engine's tokens are above `above` already, nothing changes, and the result is
    /// [`Raised::Before`]. When this returns, the change is as durable as a grant.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use palisade::Token;
    /// use palisade::engine::Raised;
    ///
    /// let palisade = palisade::connect("memory:").await?;
    /// let sealed_with = Token::new(38)?;
    /// assert_eq!(palisade.raise_tokens(sealed_with).await?, Raised::Now);
    /// assert!(palisade.lock("orders").acquire().await?.token()? > sealed_with);
    /// assert_eq!(palisade.raise_tokens(sealed_with).await?, Raised::Before);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// The tokens may have been raised. Raising them again does no harm.
    ///
    /// # On connection loss
    ///
    /// The error says whether they may have been raised.
    ///
    /// # Errors
    ///
    /// A token above [`Token::HIGHEST_RAISE`]; an engine without tokens; a client without the right to do it; PostgreSQL
    /// and MySQL refuse it while a lock is held with a lower token. Nothing has changed then. An engine that does not answer.
    pub async fn raise_tokens(&self, above: Token) -> Result<Raised, Error> {
        const OPERATION: &str = "raise tokens above";
        let refused = |kind| Err(self.error(kind, OPERATION).on(above.to_string()));
        if self.link.guarantees.level == Level::Advisory {
            return refused(error::not_offered("tokens"));
        }
        if let Err(refusal) = above.check_raise() {
            return refused(ErrorKind::Misuse(Misuse::Refused(refusal)));
        }
        self.link.call(|reply| Op::RaiseTokens(above, reply)).await
    }

    /// Returns a handle for a session whose client has [detached](Palisade::detach) from it. That method has an example.
    pub fn detached_session(&self, session: SessionId) -> DetachedSession {
        DetachedSession::new(self.link.clone(), session)
    }

    /// Ends this client, but leaves its session and grants in place until the TTL expires. Other clients can renew or close
    /// the session through [`detached_session`](Palisade::detached_session). Remaining guards can no longer release anything.
    ///
    /// Use this when the work under the lock is spread over several processes, as in a script. No guard reports a loss any
    /// more, so present the token to the resource, which refuses it once another client has a newer one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let first = palisade::connect("memory:deploy").await?;
    /// let guard = first.lock("production").acquire().await?;
    /// let (token, session) = (guard.token()?, first.detach().await?);
    ///
    /// let second = palisade::connect("memory:deploy").await?;
    /// assert!(second.lock("production").try_acquire().await?.is_none());
    /// second.detached_session(session).keep_alive().await?;
    /// second.detached_session(session).release("production", token).await?;
    /// assert!(second.lock("production").try_acquire().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An engine that does not offer it, or does not answer: the client then goes on as before. An observer has no
    /// session.
    pub async fn detach(self) -> Result<SessionId, Error> {
        const OPERATION: &str = "detach from the session";
        if self.link.is_observer {
            return Err(self.error(ErrorKind::Misuse(Misuse::Observer), OPERATION));
        }
        if !self.link.guarantees.offers.detach {
            return Err(self.error(error::not_offered("sessions that outlive their client"), OPERATION));
        }
        self.link.call(Op::Detach).await
    }

    /// Closes the session. This releases its locks and cancels its waiting acquires. Remaining handles and guards fail from
    /// now on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let guard = palisade.lock("orders/42").acquire().await?;
    /// palisade.close().await?;
    /// assert!(guard.token().is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An engine that does not answer: the session then ends when its TTL expires.
    pub async fn close(self) -> Result<(), Error> {
        self.link.call(Op::Close).await
    }

    fn name(&self, name: &str, operation: &'static str) -> Result<LockName, Error> {
        parse_name(&self.link, name, operation)
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, self.link.guarantees.engine, operation)
    }
}

/// Checks a lock's name that the application passed.
pub(crate) fn parse_name(link: &Link, name: &str, operation: &'static str) -> Result<LockName, Error> {
    LockName::new(name)
        .map_err(|bad| Error::new(ErrorKind::Misuse(Misuse::Name(bad)), link.guarantees.engine, operation).on(name))
}
