//! Once: an operation that must happen once, however often it is attempted.
//!
//! The first caller of a key does the work, and its outcome is kept in a database for a stated time. A later caller gets that
//! outcome. A caller that comes meanwhile waits. If a worker dies, the next caller takes over with a higher token, and the
//! database refuses the late result of the first.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade::recipe::store::Sqlite;
//!
//! let palisade = palisade::connect("memory:").await?;
//! let store = Sqlite::open(":memory:").await?;
//! let charge = async |_step| Ok::<_, std::io::Error>("receipt 1".to_owned());
//! let receipt: String = palisade.once("charge/42", &store).run(charge).await?;
//!
//! let again = async |_step| -> Result<String, std::io::Error> { unreachable!("it is done") };
//! assert_eq!(palisade.once("charge/42", &store).run(again).await?, receipt);
//! # Ok(()) }
//! ```
//!
//! The work is done *at least* once: a worker can die after the charge and before its outcome is kept. So the work passes the key on
//! to the other side if that accepts one, or asks it first when [`Step::previous`] names an attempt that did not finish. Work that
//! changes only the database of the record needs no lock at all, and happens exactly once: see [`claim_in_postgres`] and
//! [`claim_in_sqlite`].

#[cfg(feature = "http-layer")]
pub mod http;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "embedded")]
mod sqlite;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_core::{BadName, BadNumber, LockName, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::store::Sealed;
use crate::engine::{Guarantees, Level};
use crate::guard::LockGuard;
use crate::{Error, ErrorKind, Lock, Misuse, Palisade, error};

#[cfg(feature = "mysql")]
pub use mysql::SCHEMA as MYSQL_SCHEMA;
#[cfg(feature = "postgres")]
pub use postgres::{FirstInPostgres, PostgresClaim, SCHEMA as POSTGRES_SCHEMA, claim_in_postgres};
pub use record::{Begun, Finished, Record};
#[cfg(feature = "embedded")]
pub use sqlite::{FirstInSqlite, SCHEMA as SQLITE_SCHEMA, SqliteClaim, claim_in_sqlite};

/// The longest outcome that is kept.
pub const MAX_OUTCOME_BYTES: usize = 4 << 20;
/// The longest request that is compared. Pass a digest of a longer one.
pub const MAX_REQUEST_BYTES: usize = 1024;
/// How long an outcome is kept unless [`Once::keep`] says otherwise.
pub const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time for which an outcome can be kept: a year of 366 days.
pub const MAX_KEEP: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// How long a record without an outcome is kept at least: 30 days.
const KEEP_UNFINISHED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const OPERATION: &str = "run once";
/// How often keeping an outcome is tried. The work is done by then, and would be done again if this failed.
const FINISH_ATTEMPTS: u32 = 14;
const FINISH_DELAY: Duration = Duration::from_millis(100);
const MAX_FINISH_DELAY: Duration = Duration::from_secs(2);
/// After this time, keeping an outcome is tried once more. A store that is gone may take a minute to fail.
const FINISH_TIME: Duration = Duration::from_secs(30);

/// A database that keeps the records. [`store`](super::store) has those that implement it; no other type can.
#[allow(private_bounds, reason = "this seals the trait")]
pub trait OnceStore: Sealed + Send + Sync {
    /// Returns the record of a key; `None` if no caller has begun, or the record's time has passed.
    fn find(&self, key: &str) -> impl Future<Output = Result<Option<Record>, Error>> + Send;

    /// Begins an attempt, unless the work is done or a newer attempt has begun. Durable when it returns.
    fn begin(&self, key: &str, attempt: &Attempt) -> impl Future<Output = Result<Begun, Error>> + Send;

    /// Keeps the outcome of the attempt with this token, unless a newer one has begun. Durable when it returns.
    fn finish(
        &self,
        key: &str,
        attempt: &Attempt,
        outcome: &[u8],
    ) -> impl Future<Output = Result<Finished, Error>> + Send;
}

/// An attempt at the work of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The token of its lock.
    pub token: Token,
    /// The request that the key stands for.
    pub request: Option<Vec<u8>>,
    /// How long its record is kept.
    pub keep: Duration,
}

impl Attempt {
    /// Returns how long its record is kept before it has an outcome. For long, because it tells the next caller that the work may have been
    /// done.
    fn keep_unfinished(&self) -> Duration {
        self.keep.max(KEEP_UNFINISHED)
    }
}

/// An operation that happens once. See [`Palisade::once`].
#[must_use = "it does nothing until `run`, `try_run` or `run_within` is called"]
#[derive(Debug, Clone)]
pub struct Once<'a, S> {
    palisade: Palisade,
    key: String,
    store: &'a S,
    request: Option<Vec<u8>>,
    keep: Duration,
    accepts_failover: bool,
}

/// Why an operation has no outcome.
#[derive(Debug)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The work failed. Nothing is kept, so the next caller does it again.
    Work(E),
    /// The lock or the store failed. See [`Error::may_have_taken_effect`] for whether the work may have been done.
    Failed(Error),
    /// The key was used for another request. Nothing was done.
    OtherRequest {
        /// The key.
        key: String,
    },
    /// The work was done, but another caller had taken over meanwhile, or the record had been removed. The outcome was refused.
    TakenOver {
        /// The key.
        key: String,
        /// The token of this attempt.
        token: Token,
        /// The token of the newer attempt; `None` if the record is gone.
        by: Option<Token>,
    },
}

impl<E> From<Error> for OnceError<E> {
    fn from(error: Error) -> OnceError<E> {
        OnceError::Failed(error)
    }
}

impl<E: fmt::Display> fmt::Display for OnceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnceError::Work(error) => write!(f, "the work failed: {error}; the next caller does it again"),
            OnceError::Failed(error) => error.fmt(f),
            OnceError::OtherRequest { key } => write!(
                f,
                "cannot run once '{}': the key was used for another request; use another key (nothing has changed)",
                key.escape_debug()
            ),
            OnceError::TakenOver { key, token, by } => {
                write!(f, "cannot keep the outcome of '{}' with token {token}: ", key.escape_debug())?;
                match by {
                    Some(by) => write!(f, "another caller has taken over with token {by}")?,
                    None => write!(f, "its record is gone")?,
                }
                match by {
                    Some(_) => write!(
                        f,
                        "; the work was done and may be done again: call it again for the outcome that counts"
                    ),
                    None => write!(
                        f,
                        "; the work was done: find out whether it must be done again before calling it again"
                    ),
                }
            }
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for OnceError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OnceError::Work(error) => Some(error),
            OnceError::Failed(error) => std::error::Error::source(error),
            OnceError::OtherRequest { .. } | OnceError::TakenOver { .. } => None,
        }
    }
}

/// What the work gets: its key, its token, and an earlier attempt that did not finish.
#[derive(Debug)]
pub struct Step {
    key: String,
    guard: Arc<LockGuard>,
    previous: Option<Token>,
}

impl Step {
    /// Returns the key. Pass it on if the other side accepts idempotency keys.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the token, to present to resources that check one.
    ///
    /// # Errors
    ///
    /// The lock was lost: another caller may have taken over.
    pub fn token(&self) -> Result<Token, Error> {
        self.guard.token()
    }

    /// Returns the token of an earlier attempt that began and did not succeed: it failed, or its worker died. It may have done the
    /// work: ask the other side before doing it again, if that is possible.
    pub fn previous(&self) -> Option<Token> {
        self.previous
    }

    /// Waits until the lock is lost.
    pub async fn lost(&self) -> crate::Loss {
        self.guard.lost().await
    }
}

impl Palisade {
    /// An operation that happens once per key. See [`recipe::once`](crate::recipe::once).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::store::Sqlite;
    /// # let palisade = palisade::connect("memory:").await?;
    /// # let store = Sqlite::open(":memory:").await?;
    /// let sent: u32 = palisade.once("mail/42", &store).run(async |_| Ok::<_, std::io::Error>(1)).await?;
    /// # Ok(()) }
    /// ```
    pub fn once<'a, S: OnceStore>(&self, key: impl Into<String>, store: &'a S) -> Once<'a, S> {
        let palisade = self.clone();
        Once { palisade, key: key.into(), store, request: None, keep: KEEP, accepts_failover: false }
    }
}

/// How long to wait for a caller that does the work now.
#[derive(Clone, Copy)]
enum Wait {
    No,
    Within(Duration),
    Forever,
}

impl<S: OnceStore> Once<'_, S> {
    /// Sets how long the outcome is kept, by the store's clock. Afterwards the same key is a new operation.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::store::Sqlite;
    /// # let palisade = palisade::connect("memory:").await?;
    /// # let store = Sqlite::open(":memory:").await?;
    /// use std::time::Duration;
    /// let once = palisade.once("mail/42", &store).keep(Duration::from_secs(7 * 24 * 60 * 60));
    /// # let sent: u32 = once.run(async |_| Ok::<_, std::io::Error>(1)).await?;
    /// # Ok(()) }
    /// ```
    pub fn keep(self, keep: Duration) -> Self {
        Once { keep, ..self }
    }

    /// Sets the request that the key stands for, or its digest. A caller with the same key and another request is refused.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{once::OnceError, store::Sqlite};
    /// # let palisade = palisade::connect("memory:").await?;
    /// # let store = Sqlite::open(":memory:").await?;
    /// let work = async |_| Ok::<_, std::io::Error>(1);
    /// let first: u32 = palisade.once("charge/42", &store).request("5 EUR").run(work).await?;
    /// let error = palisade.once("charge/42", &store).request("7 EUR").run(work).await.expect_err("it differs");
    /// assert!(matches!(error, OnceError::OtherRequest { .. }));
    /// # Ok(()) }
    /// ```
    pub fn request(self, request: impl AsRef<[u8]>) -> Self {
        Once { request: Some(request.as_ref().to_owned()), ..self }
    }

    /// Accepts an engine whose tokens rise only while its store keeps its data. After a failover, two callers may do the work,
    /// and the outcome of the older one may be kept. See
    /// [`Request::dangerous_accept_failover`](crate::Request::dangerous_accept_failover).
    pub fn dangerous_accept_failover(self) -> Self {
        Once { accepts_failover: true, ..self }
    }

    /// Returns the kept outcome, or does the work and keeps its outcome. Waits while another caller does the work.
    ///
    /// An outcome is kept as JSON. If the work fails, nothing is kept.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops the work. The next caller does it again, and learns of this attempt from [`Step::previous`].
    ///
    /// # Errors
    ///
    /// Those of [`OnceError`].
    pub async fn run<T, E>(self, work: impl AsyncFnOnce(Step) -> Result<T, E>) -> Result<T, OnceError<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        match self.perform(Wait::Forever, json(), work).await? {
            Some(outcome) => Ok(outcome),
            None => unreachable!("an acquire without a deadline is granted or fails"),
        }
    }

    /// Like [`run`](Once::run), but returns `None` if another caller does the work now.
    ///
    /// # Errors
    ///
    /// Those of [`OnceError`].
    pub async fn try_run<T, E>(self, work: impl AsyncFnOnce(Step) -> Result<T, E>) -> Result<Option<T>, OnceError<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        self.perform(Wait::No, json(), work).await
    }

    /// Like [`run`](Once::run), but waits at most this long for another caller; `None` if it has not finished by then.
    ///
    /// # Errors
    ///
    /// Those of [`OnceError`].
    pub async fn run_within<T, E>(
        self,
        wait: Duration,
        work: impl AsyncFnOnce(Step) -> Result<T, E>,
    ) -> Result<Option<T>, OnceError<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        self.perform(Wait::Within(wait), json(), work).await
    }

    /// Like [`run_within`](Once::run_within), with an outcome that is kept as it is, not as JSON. Waits without a limit if there is
    /// none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::store::Sqlite;
    /// # let palisade = palisade::connect("memory:").await?;
    /// # let store = Sqlite::open(":memory:").await?;
    /// let work = async |_| Ok::<_, std::io::Error>(vec![0, 159, 146, 150]);
    /// let image = palisade.once("render/42", &store).run_bytes(None, work).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`OnceError`].
    pub async fn run_bytes<E>(
        self,
        wait: Option<Duration>,
        work: impl AsyncFnOnce(Step) -> Result<Vec<u8>, E>,
    ) -> Result<Option<Vec<u8>>, OnceError<E>> {
        let as_is = Codec { encode: |bytes: &Vec<u8>| Ok(bytes.clone()), decode: |bytes| Ok(bytes.to_owned()) };
        self.perform(wait.map_or(Wait::Forever, Wait::Within), as_is, work).await
    }

    async fn perform<T, E>(
        self,
        wait: Wait,
        codec: Codec<T>,
        work: impl AsyncFnOnce(Step) -> Result<T, E>,
    ) -> Result<Option<T>, OnceError<E>> {
        self.check()?;
        // A repeat needs no lock.
        if let Some(record) = self.store.find(&self.key).await? {
            if record.is_of_other(self.request.as_deref()) {
                return Err(OnceError::OtherRequest { key: self.key });
            }
            if let Some(outcome) = &record.outcome {
                return Ok(Some(self.decode(&codec, outcome)?));
            }
        }
        let lock = lock_of(&self.palisade, &self.key, self.accepts_failover)?;
        let guard = match wait {
            Wait::No => lock.try_acquire().await?,
            Wait::Within(wait) => lock.acquire_within(wait).await?,
            Wait::Forever => Some(lock.acquire().await?),
        };
        let Some(guard) = guard else { return Ok(None) };
        let attempt = Attempt { token: guard.token()?, request: self.request.clone(), keep: self.keep };
        let token = attempt.token;
        let previous = match self.store.begin(&self.key, &attempt).await? {
            Begun::Run { previous } => previous,
            Begun::Done(outcome) => return Ok(Some(self.decode(&codec, &outcome)?)),
            Begun::OtherRequest => return Err(OnceError::OtherRequest { key: self.key }),
            Begun::Superseded { by } => return Err(self.superseded(token, by).into()),
        };
        // Without the lock another caller would take over. So it is held until the outcome is kept.
        let guard = Arc::new(guard);
        let step = Step { key: self.key.clone(), guard: guard.clone(), previous };
        let outcome = work(step).await.map_err(OnceError::Work)?;
        let encoded = (codec.encode)(&outcome).map_err(|why| self.not_kept(why))?;
        if encoded.len() > MAX_OUTCOME_BYTES {
            let why = format!("it has {} bytes, and {MAX_OUTCOME_BYTES} are allowed", encoded.len());
            return Err(self.not_kept(why).into());
        }
        let finished = keep_outcome(self.store, &self.key, &attempt, &encoded)
            .await
            .map_err(|error| self.not_kept(error.to_string()))?;
        drop(guard);
        match finished {
            Finished::Kept => Ok(Some(outcome)),
            Finished::Refused { by } => Err(OnceError::TakenOver { key: self.key, token, by }),
        }
    }

    /// Checks the key, the request and the time.
    fn check(&self) -> Result<(), Error> {
        let engine = self.palisade.guarantees().engine;
        let fail = |misuse| Err(Error::new(ErrorKind::Misuse(misuse), engine, OPERATION).on(&self.key));
        if self.key.is_empty() {
            return fail(Misuse::Name(BadName::Empty));
        }
        if let Err(bad) = LockName::new(&lock_name(&self.key)) {
            return fail(Misuse::Name(bad));
        }
        let size = self.request.as_ref().map_or(0, Vec::len);
        let sizes = [
            ("the size of the request", size as u64, MAX_REQUEST_BYTES as u64),
            ("the time to keep, in seconds,", self.keep.as_secs(), MAX_KEEP.as_secs()),
        ];
        for (what, value, max) in sizes {
            if value > max {
                return fail(Misuse::Number(BadNumber::TooLarge { what, value, max }));
            }
        }
        if self.keep.as_millis() == 0 {
            return fail(Misuse::Number(BadNumber::Zero { what: "the time to keep, in milliseconds," }));
        }
        Ok(())
    }

    fn decode<T>(&self, codec: &Codec<T>, outcome: &[u8]) -> Result<T, Error> {
        (codec.decode)(outcome).map_err(|why| {
            let what = format!("the kept outcome is not of this type ({why}); use another key for another operation");
            self.error(what, false)
        })
    }

    fn not_kept(&self, why: String) -> Error {
        let what = format!("the work was done, but its outcome cannot be kept: {why}; the next caller does it again");
        self.error(what, true)
    }

    fn superseded(&self, token: Token, by: Token) -> Error {
        let what = format!(
            "an attempt with token {by} has begun, and this one has {token}. Either its caller uses other locks: all callers of a \
             key must use the same engine. Or this engine has replaced another one: palisade tokens raise --above {by}"
        );
        self.error(what, false)
    }

    fn error(&self, what: String, may_have_taken_effect: bool) -> Error {
        let kind = ErrorKind::Outage { what, may_have_taken_effect, is_retryable: false, source: None };
        Error::new(kind, self.palisade.guarantees().engine, OPERATION).on(&self.key)
    }
}

/// Keeps the outcome of an attempt whose work is done. [`Once::run`] does this by itself.
///
/// Retries for about 20 s while the store fails, and for up to 3 minutes if it does not answer: otherwise the next caller would do
/// the work again.
///
/// # Errors
///
/// The store still fails, or refuses the request.
pub async fn keep_outcome<S: OnceStore>(
    store: &S,
    key: &str,
    attempt: &Attempt,
    outcome: &[u8],
) -> Result<Finished, Error> {
    let (began_at, mut delay) = (Instant::now(), FINISH_DELAY);
    for _ in 1..FINISH_ATTEMPTS {
        if began_at.elapsed() > FINISH_TIME {
            break;
        }
        match store.finish(key, attempt, outcome).await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(key, %error, "keeping the outcome failed; trying again");
                tokio::time::sleep(delay).await;
                delay = (2 * delay).min(MAX_FINISH_DELAY);
            }
            finished => return finished,
        }
    }
    store.finish(key, attempt, outcome).await
}

/// Returns the lock of a key. Every attempt has the token of a grant of it.
///
/// # Errors
///
/// The engine cannot fence. An attempt is identified by its token, so no operation can be done once for efficiency only.
pub fn lock_of(palisade: &Palisade, key: &str, accepts_failover: bool) -> Result<Lock, Error> {
    let lock = palisade.lock(lock_name(key));
    let (lock, needed) = match accepts_failover {
        true => (lock.dangerous_accept_failover(), Level::HealthyOnly),
        false => (lock, Level::Fenced),
    };
    let Guarantees { engine, level, .. } = palisade.guarantees();
    match *level < needed {
        true => Err(Error::new(error::not_fenced(*level, true), engine, OPERATION).on(key)),
        false => Ok(lock),
    }
}

/// Returns the name of the lock of a key.
pub fn lock_name(key: &str) -> String {
    format!("once/{key}")
}

/// How an outcome is stored. The errors are for messages.
struct Codec<T> {
    encode: fn(&T) -> Result<Vec<u8>, String>,
    decode: fn(&[u8]) -> Result<T, String>,
}

fn json<T: Serialize + DeserializeOwned>() -> Codec<T> {
    Codec {
        encode: |outcome| serde_json::to_vec(outcome).map_err(|error| error.to_string()),
        decode: |bytes| serde_json::from_slice(bytes).map_err(|error| error.to_string()),
    }
}
