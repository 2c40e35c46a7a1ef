//! A work queue in the application's own database: the jobs of a key are done one at a time, and in order.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade::recipe::{queue::Queue, store::Sqlite};
//!
//! let store = Sqlite::open(":memory:").await?;
//! let orders = Queue::new(&store, "orders");
//! orders.push("customer/7", "ship").await?;
//! orders.push("customer/7", "invoice").await?;
//!
//! let job = orders.take().await?.expect("a job");
//! assert_eq!((job.key(), job.payload()), ("customer/7", &b"ship"[..]));
//! assert!(orders.take().await?.is_none(), "the next job of this customer waits for this one");
//! job.done().await?;
//! assert_eq!(orders.take().await?.expect("the next one").payload(), b"invoice");
//! # Ok(()) }
//! ```
//!
//! - **Order.** A job is delivered when every earlier job of its key is done. Jobs of different keys are delivered at the same time, to
//!   as many workers as there are.
//! - **Crashes.** A job that is not done within its [visibility](Queue::visibility) is delivered again. So a job is delivered *at least*
//!   once, and the worker before may still be running.
//! - **Fencing.** Each delivery has a [token](Job::token), which is higher than that of every earlier delivery of its key. The queue
//!   refuses [`done`](Job::done), [`fail`](Job::fail) and [`extend`](Job::extend) of a delivery that a later one has replaced. Present the
//!   token to the resource of the key, which then refuses the late writes of the worker before.
//! - **Exactly once.** Work that changes only the queue's own database is done in the transaction that marks the job as done: see
//!   [`done_in`](Job::done_in). A job can be pushed in a transaction of the application too: see [`push_in`](Queue::push_in).
//! - **Dead letters.** After a number of [attempts](Queue::attempts) a job becomes a dead letter. It then blocks its key, because to skip
//!   it would break the order, until it is [retried](Queue::retry) or [discarded](Queue::discard).
//!
//! The tokens are counted per key, and not per queue: a counter that all deliveries share would make each of them wait for the flush of
//! the one before. The row of a key is removed some time after its last job, and leaves its token behind as the floor of new rows.

#[cfg(feature = "postgres")]
mod postgres;
mod rules;
#[cfg(feature = "embedded")]
mod sqlite;
#[cfg(all(test, feature = "embedded"))]
mod tests;

use std::fmt;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_core::{BadNumber, Token};
use tokio::time::{Instant, sleep};

use super::random::up_to;
use super::store::Sealed;
use crate::{BootInstant, Error, ErrorKind, Misuse};

#[cfg(feature = "postgres")]
pub use postgres::SCHEMA as POSTGRES_SCHEMA;
pub use rules::{Delivery, JobId, KeyState, Settled};
#[cfg(feature = "embedded")]
pub use sqlite::SCHEMA as SQLITE_SCHEMA;

use rules::Failed;

/// The longest payload of a job.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The longest key of a job, and the longest name of a queue.
pub const MAX_KEY_BYTES: usize = 512;
/// The longest reason of a failure that is kept. A longer one is cut.
pub const MAX_REASON_BYTES: usize = 1024;
/// The longest visibility of a job, and the longest delay of a retry: a day.
pub const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The pauses between two looks at an empty queue. They begin short, and double up to the longest.
const FIRST_POLL: Duration = Duration::from_millis(20);
const LONGEST_POLL: Duration = Duration::from_secs(1);
/// How often a job is marked as done. The work is done by then, and would be done again if this failed.
const SETTLE_ATTEMPTS: u32 = 6;
const SETTLE_DELAY: Duration = Duration::from_millis(100);

/// How a queue treats jobs that are not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// A job that is not done within this time is delivered again.
    pub visibility: Duration,
    /// A job becomes a dead letter after this many deliveries.
    pub attempts: u32,
    /// The delay after the first failure. It doubles with each further one.
    pub first_delay: Duration,
    /// The longest delay.
    pub longest_delay: Duration,
    /// Whether the later jobs of its key wait for a dead letter.
    pub dead_letters_block: bool,
    /// A push fails while the queue has this many jobs.
    pub max_depth: Option<u32>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            visibility: Duration::from_secs(30),
            attempts: 5,
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(60),
            dead_letters_block: true,
            max_depth: None,
        }
    }
}

/// A job, as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobInfo {
    /// Its number.
    pub id: JobId,
    /// Its key.
    pub key: String,
    /// How often it was delivered.
    pub attempt: u32,
    /// Its state.
    pub state: JobState,
    /// Why its last attempt failed.
    pub reason: Option<String>,
    /// The size of its payload.
    pub payload_bytes: u64,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobState {
    /// It waits for its turn, for its next attempt, or for a worker.
    Waiting,
    /// It was delivered, and neither done nor failed. Its worker may be dead.
    InWork {
        /// The token of the delivery.
        token: Token,
    },
    /// All its attempts have failed.
    Dead {
        /// Whether the later jobs of its key wait for it.
        is_blocking: bool,
    },
}

/// The jobs to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// Those that are not dead.
    Live,
    /// The dead letters.
    Dead,
}

/// What to do about a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settle {
    /// The job is done: remove it.
    Done,
    /// Deliver the job again after this time.
    Retry {
        /// The delay.
        after: Duration,
        /// Why the attempt failed.
        reason: String,
    },
    /// Make the job a dead letter.
    Bury {
        /// Whether the later jobs of its key wait for it.
        is_blocking: bool,
        /// Why its last attempt failed.
        reason: String,
    },
    /// Deliver the job again, and do not count this attempt.
    GiveBack,
    /// Give the worker this much time from now on.
    Extend(Duration),
}

/// A database that keeps queues. [`store`](super::store) has those that implement it; no other type can.
#[allow(private_bounds, reason = "this seals the trait")]
pub trait QueueStore: Sealed + Clone + Send + Sync {
    /// The name of the store, for messages.
    const NAME: &'static str;

    /// Adds a job; `None` if the queue has `max_depth` jobs. Durable when it returns.
    fn push(
        &self,
        queue: &str,
        key: &str,
        payload: &[u8],
        max_depth: Option<u32>,
    ) -> impl Future<Output = Result<Option<JobId>, Error>> + Send;

    /// Delivers the first job of a key that is due. Durable when it returns.
    fn take(
        &self,
        queue: &str,
        policy: &Policy,
    ) -> impl Future<Output = Result<Option<(Delivery, Vec<u8>)>, Error>> + Send;

    /// Settles a delivery, unless a later one has replaced it. Durable when it returns.
    fn settle(
        &self,
        queue: &str,
        delivery: &Delivery,
        settle: &Settle,
    ) -> impl Future<Output = Result<Settled, Error>> + Send;

    /// Lists up to `limit` jobs, in order.
    fn list(
        &self,
        queue: &str,
        listed: Listed,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<JobInfo>, Error>> + Send;

    /// Returns the payload of a job or a dead letter; `None` if the queue has no such job.
    fn payload(&self, queue: &str, id: JobId) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send;

    /// Makes a dead letter a job again, with all its attempts. Returns whether there was such a dead letter.
    fn retry(&self, queue: &str, id: JobId) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes a dead letter. Returns whether there was such a dead letter.
    fn discard(&self, queue: &str, id: JobId) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// A queue. Cheap to clone. See the [module](self).
#[derive(Debug, Clone)]
pub struct Queue<S> {
    store: S,
    name: String,
    policy: Policy,
}

/// Why a delivery was not settled.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The job was delivered again meanwhile, because its visibility had passed. Nothing was changed: stop, and leave the job to the
    /// worker that has it now.
    Stale {
        /// The queue.
        queue: String,
        /// The key of the job.
        key: String,
        /// The token of this delivery.
        token: Token,
        /// The token of the later delivery; `None` if all jobs of the key are done.
        by: Option<Token>,
    },
    /// The store failed.
    Failed(Error),
}

impl From<Error> for JobError {
    fn from(error: Error) -> JobError {
        JobError::Failed(error)
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::Failed(error) => error.fmt(f),
            JobError::Stale { queue, key, token, by } => {
                let (queue, key) = (queue.escape_debug(), key.escape_debug());
                write!(f, "the job of '{key}' in the queue '{queue}' with token {token} was delivered again")?;
                if let Some(by) = by {
                    write!(f, ", with token {by}")?;
                }
                f.write_str(", because its visibility had passed; this delivery changes nothing any more")
            }
        }
    }
}

impl std::error::Error for JobError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JobError::Failed(error) => std::error::Error::source(error),
            JobError::Stale { .. } => None,
        }
    }
}

impl<S: QueueStore> Queue<S> {
    /// A queue of this name. All its workers and pushers should use the same options.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::recipe::{queue::Queue, store::Sqlite};
    /// use std::time::Duration;
    /// let store = Sqlite::open(":memory:").await?;
    /// let orders = Queue::new(&store, "orders").visibility(Duration::from_secs(120)).attempts(3);
    /// # Ok(()) }
    /// ```
    pub fn new(store: &S, name: impl Into<String>) -> Queue<S> {
        Queue { store: store.clone(), name: name.into(), policy: Policy::default() }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how it treats jobs that are not done.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Sets how long a worker has for a job before it is delivered again, by the store's clock. The default is 30 seconds. A worker can
    /// [extend](Job::extend) it.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.policy.visibility = visibility;
        self
    }

    /// Sets after how many deliveries a job that is not done becomes a dead letter. The default is 5.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.policy.attempts = attempts;
        self
    }

    /// Sets the delay after the first failure, which doubles with each further one, and the longest delay. The defaults are a second and
    /// a minute.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        (self.policy.first_delay, self.policy.longest_delay) = (first, longest);
        self
    }

    /// Delivers the later jobs of a key although an earlier one has become a dead letter. This gives up the order of such a key: the dead
    /// letter, when it is retried, is delivered after jobs that were pushed later.
    pub fn dangerous_continue_after_dead_letters(mut self) -> Self {
        self.policy.dead_letters_block = false;
        self
    }

    /// Sets how many jobs the queue may have, with its dead letters. Pushes that are made at the same time can exceed it by their
    /// number. A push counts the jobs, so it becomes slower with a higher bound.
    pub fn max_depth(mut self, jobs: u32) -> Self {
        self.policy.max_depth = Some(jobs);
        self
    }

    /// Adds a job behind the other jobs of its key. It is durable when this returns.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{queue::Queue, store::Sqlite};
    /// # let store = Sqlite::open(":memory:").await?;
    /// let orders = Queue::new(&store, "orders").max_depth(1);
    /// orders.push("customer/7", "ship").await?;
    /// let full = orders.push("customer/7", "invoice").await.expect_err("the queue is full");
    /// assert!(full.is_retryable() && !full.may_have_taken_effect());
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the job may have been added.
    ///
    /// # Errors
    ///
    /// The key or the payload is too long; the queue is full; the store failed. After
    /// [`may_have_taken_effect`](Error::may_have_taken_effect) a second push may add the job twice.
    pub async fn push(&self, key: &str, payload: impl AsRef<[u8]>) -> Result<JobId, Error> {
        let payload = payload.as_ref();
        self.check_job(key, payload)?;
        let pushed = self.store.push(&self.name, key, payload, self.policy.max_depth).await?;
        pushed.ok_or_else(|| self.full(key))
    }

    /// Delivers a job; `None` if no key has one that is due.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, a job may have been delivered. It is delivered again once its visibility has passed.
    ///
    /// # Errors
    ///
    /// An option is out of range; the store failed.
    pub async fn take(&self) -> Result<Option<Job<S>>, Error> {
        self.check(TAKE)?;
        // Counted from before the request: the store may carry it out at once, and reply late.
        let safe_until = BootInstant::now() + self.policy.visibility;
        let taken = self.store.take(&self.name, &self.policy).await?;
        let safe_until_ns = AtomicU64::new(safe_until.as_ns());
        Ok(taken.map(|(delivery, payload)| Job { queue: self.clone(), delivery, payload, safe_until_ns }))
    }

    /// Waits for a job. It polls: an empty queue is looked at after 20 ms, then less often, and at least once a second.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{queue::Queue, store::Sqlite};
    /// # let store = Sqlite::open(":memory:").await?;
    /// let orders = Queue::new(&store, "orders");
    /// let worker = tokio::spawn({ let orders = orders.clone(); async move { orders.next().await } });
    /// orders.push("customer/7", "ship").await?;
    /// assert_eq!(worker.await??.payload(), b"ship");
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// As [`take`](Queue::take).
    ///
    /// # Errors
    ///
    /// Those of [`take`](Queue::take).
    pub async fn next(&self) -> Result<Job<S>, Error> {
        let mut pauses = poll_pauses();
        loop {
            if let Some(job) = self.take().await? {
                return Ok(job);
            }
            sleep(pauses.next().unwrap_or(LONGEST_POLL)).await;
        }
    }

    /// Waits for a job, at most this long; `None` if there was none.
    ///
    /// # Cancellation
    ///
    /// As [`take`](Queue::take).
    ///
    /// # Errors
    ///
    /// Those of [`take`](Queue::take).
    pub async fn next_within(&self, wait: Duration) -> Result<Option<Job<S>>, Error> {
        let (mut pauses, began) = (poll_pauses(), Instant::now());
        loop {
            // The wait ends between two looks: dropping a look could deliver a job to nothing.
            if let Some(job) = self.take().await? {
                return Ok(Some(job));
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            sleep(pauses.next().unwrap_or(LONGEST_POLL).min(left)).await;
        }
    }

    /// Lists up to `limit` jobs that are not dead, in the order of their numbers.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn jobs(&self, limit: u32) -> Result<Vec<JobInfo>, Error> {
        self.check(LIST)?;
        self.store.list(&self.name, Listed::Live, limit).await
    }

    /// Lists up to `limit` dead letters, in the order of their numbers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{queue::Queue, store::Sqlite};
    /// # let store = Sqlite::open(":memory:").await?;
    /// let orders = Queue::new(&store, "orders").attempts(1);
    /// orders.push("customer/7", "ship").await?;
    /// orders.next().await?.fail("no such address").await?;
    /// let dead = orders.dead_letters(10).await?;
    /// assert_eq!(dead[0].reason.as_deref(), Some("no such address"));
    /// orders.retry(dead[0].id).await?;                        // or discard it
    /// assert_eq!(orders.next().await?.payload(), b"ship");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn dead_letters(&self, limit: u32) -> Result<Vec<JobInfo>, Error> {
        self.check(LIST)?;
        self.store.list(&self.name, Listed::Dead, limit).await
    }

    /// Returns the payload of a job or a dead letter; `None` if the queue has no such job.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{queue::Queue, store::Sqlite};
    /// # let store = Sqlite::open(":memory:").await?;
    /// # let orders = Queue::new(&store, "orders");
    /// let id = orders.push("customer/7", "ship").await?;
    /// assert_eq!(orders.payload(id).await?.as_deref(), Some(&b"ship"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn payload(&self, id: JobId) -> Result<Option<Vec<u8>>, Error> {
        self.check(LIST)?;
        self.store.payload(&self.name, id).await
    }

    /// Makes a dead letter a job again, in its old place and with all its attempts. Returns whether there was such a dead letter.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, it may have been done.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn retry(&self, id: JobId) -> Result<bool, Error> {
        self.check("retry a job of")?;
        self.store.retry(&self.name, id).await
    }

    /// Removes a dead letter. If it blocked its key, the next job of the key is due. Returns whether there was such a dead letter.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, it may have been done.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn discard(&self, id: JobId) -> Result<bool, Error> {
        self.check("discard a job of")?;
        self.store.discard(&self.name, id).await
    }

    fn check_job(&self, key: &str, payload: &[u8]) -> Result<(), Error> {
        self.check(PUSH)?;
        if let Some(why) = bad_name(key) {
            return Err(self.misuse(PUSH, Misuse::Invalid(format!("the key {why}"))));
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            let (value, max) = (payload.len() as u64, MAX_PAYLOAD_BYTES as u64);
            let too_large = BadNumber::TooLarge { what: "the size of the payload", value, max };
            return Err(self.misuse(PUSH, Misuse::Number(too_large)));
        }
        Ok(())
    }

    /// Checks the name and the options.
    fn check(&self, operation: &'static str) -> Result<(), Error> {
        if let Some(why) = bad_name(&self.name) {
            return Err(self.misuse(operation, Misuse::Invalid(format!("the name of the queue {why}"))));
        }
        let Policy { visibility, attempts, first_delay, longest_delay, .. } = &self.policy;
        let times = [
            ("the visibility, in seconds,", visibility),
            ("the first delay, in seconds,", first_delay),
            ("the longest delay, in seconds,", longest_delay),
        ];
        for (what, time) in times {
            if *time > MAX_TIME {
                let (value, max) = (time.as_secs(), MAX_TIME.as_secs());
                return Err(self.misuse(operation, Misuse::Number(BadNumber::TooLarge { what, value, max })));
            }
        }
        let zero = |what| Err(self.misuse(operation, Misuse::Number(BadNumber::Zero { what })));
        match (visibility.as_millis(), attempts) {
            (0, _) => zero("the visibility, in milliseconds,"),
            (_, 0) => zero("the number of attempts"),
            (_, attempts) if *attempts > MAX_ATTEMPTS => {
                let (value, max) = ((*attempts).into(), MAX_ATTEMPTS.into());
                let what = "the number of attempts";
                Err(self.misuse(operation, Misuse::Number(BadNumber::TooLarge { what, value, max })))
            }
            _ => Ok(()),
        }
    }

    fn misuse(&self, operation: &'static str, misuse: Misuse) -> Error {
        Error::new(ErrorKind::Misuse(misuse), S::NAME, operation).on(&self.name)
    }

    fn full(&self, key: &str) -> Error {
        let depth = self.policy.max_depth.unwrap_or_default();
        let key = key.escape_debug();
        let what = format!("the queue has reached its bound, {depth} jobs; push the job of '{key}' later");
        let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: true, source: None };
        Error::new(kind, S::NAME, PUSH).on(&self.name)
    }
}

/// Returns the pauses of [`Queue::next`] between two looks at an empty queue: random ones of up to 20 ms, then of up to twice as much,
/// and so on up to a second. For a worker that looks with [`Queue::take`], so that it can stop between two looks.
///
/// ```
/// use palisade::recipe::queue::poll_pauses;
/// use std::time::Duration;
/// assert!(poll_pauses().take(100).all(|pause| pause <= Duration::from_secs(1)));
/// ```
pub fn poll_pauses() -> impl Iterator<Item = Duration> {
    let bounds = iter::successors(Some(FIRST_POLL), |bound| Some((*bound * 2).min(LONGEST_POLL)));
    bounds.map(up_to)
}

const MAX_ATTEMPTS: u32 = 1_000_000;
const PUSH: &str = "push a job to";
const TAKE: &str = "take a job of";
const SETTLE: &str = "settle a job of";
const LIST: &str = "list the jobs of";
/// The reason of a dead letter whose workers never settled it.
const NOT_SETTLED: &str = "its workers neither finished it nor failed it within its visibility";

/// Why a text is no key and no name of a queue.
fn bad_name(text: &str) -> Option<String> {
    match text {
        "" => Some("is empty".to_owned()),
        _ if text.len() > MAX_KEY_BYTES => Some(format!("has {} bytes, and {MAX_KEY_BYTES} are allowed", text.len())),
        _ if text.contains(char::is_control) => Some("has a control character".to_owned()),
        _ => None,
    }
}

/// Returns the part of a reason that is kept. PostgreSQL stores no NUL.
fn shortened(reason: &str) -> String {
    let end =
        reason.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_REASON_BYTES).last();
    reason[..end.unwrap_or_default()].replace('\0', " ")
}

/// A job that was delivered. Dropped without [`done`](Job::done) or [`fail`](Job::fail), it is delivered again once its visibility has
/// passed.
#[derive(Debug)]
#[must_use = "it is delivered again unless it is done"]
pub struct Job<S> {
    queue: Queue<S>,
    delivery: Delivery,
    payload: Vec<u8>,
    safe_until_ns: AtomicU64,
}

impl<S: QueueStore> Job<S> {
    /// Returns its number, which stays the same when it is delivered again. Pass it on as an idempotency key.
    pub fn id(&self) -> JobId {
        self.delivery.id
    }

    /// Returns its key.
    pub fn key(&self) -> &str {
        &self.delivery.key
    }

    /// Returns its payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns how often it was delivered, with this time. Above 1, an earlier worker may have done a part of the work.
    pub fn attempt(&self) -> u32 {
        self.delivery.attempt
    }

    /// Returns the token of this delivery, to present to the resource of the key. It is higher than the token of every earlier delivery of
    /// this key; tokens of different keys cannot be compared.
    pub fn token(&self) -> Token {
        self.delivery.token
    }

    /// Returns until when no other worker gets the job, if this process's clock and the store's run equally fast. [`Job::extend`]
    /// makes it later.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{queue::Queue, store::Sqlite};
    /// # let store = Sqlite::open(":memory:").await?;
    /// # let orders = Queue::new(&store, "orders");
    /// # orders.push("customer/7", "ship").await?;
    /// let job = orders.next().await?;
    /// let first = job.safe_until();
    /// job.extend().await?;
    /// assert!(job.safe_until() > first);
    /// # Ok(()) }
    /// ```
    pub fn safe_until(&self) -> BootInstant {
        BootInstant::from_ns(self.safe_until_ns.load(Ordering::Relaxed))
    }

    /// Removes the job from the queue. The next job of its key is then due.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the job may be done, or is delivered again.
    ///
    /// # Errors
    ///
    /// [`JobError::Stale`] if the job was delivered again. If the store fails, this is retried for some seconds; after
    /// [`may_have_taken_effect`](Error::may_have_taken_effect) the job may be done.
    pub async fn done(self) -> Result<(), JobError> {
        self.settle(&Settle::Done).await
    }

    /// Delivers the job again after a [delay](Queue::backoff), or makes it a dead letter if its attempts are used up. The later jobs of its
    /// key wait.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the job is delivered again, at the latest when its visibility has passed.
    ///
    /// # Errors
    ///
    /// [`JobError::Stale`] if the job was delivered again. If the store fails, this is retried for some seconds.
    pub async fn fail(self, reason: impl Into<String>) -> Result<(), JobError> {
        let reason = shortened(&reason.into());
        let policy = &self.queue.policy;
        let settle = match Failed::after(self.delivery.attempt, policy) {
            Failed::Retry(after) => Settle::Retry { after, reason },
            Failed::Dead => Settle::Bury { is_blocking: policy.dead_letters_block, reason },
        };
        self.settle(&settle).await
    }

    /// Lets another worker have the job at once. This attempt does not count: for a worker that is stopped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{queue::Queue, store::Sqlite};
    /// # let store = Sqlite::open(":memory:").await?;
    /// # let orders = Queue::new(&store, "orders");
    /// orders.push("customer/7", "ship").await?;
    /// orders.next().await?.give_back().await?;
    /// assert_eq!(orders.next().await?.attempt(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the job is delivered again, at the latest when its visibility has passed.
    ///
    /// # Errors
    ///
    /// [`JobError::Stale`] if the job was delivered again. If the store fails, this is retried for some seconds.
    pub async fn give_back(self) -> Result<(), JobError> {
        self.settle(&Settle::GiveBack).await
    }

    /// Gives this worker the whole visibility again, from now on.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, it may have been done.
    ///
    /// # Errors
    ///
    /// [`JobError::Stale`] if the job was delivered again.
    pub async fn extend(&self) -> Result<(), JobError> {
        let visibility = self.queue.policy.visibility;
        let safe_until = BootInstant::now() + visibility;
        let extend = Settle::Extend(visibility);
        self.outcome(self.queue.store.settle(&self.queue.name, &self.delivery, &extend).await?, false)?;
        self.safe_until_ns.fetch_max(safe_until.as_ns(), Ordering::Relaxed);
        Ok(())
    }

    /// Settles the delivery. The work is done, so this is retried while the store fails.
    async fn settle(&self, settle: &Settle) -> Result<(), JobError> {
        let mut delay = SETTLE_DELAY;
        let mut may_be_settled = false;
        let mut tries = 1;
        loop {
            match self.queue.store.settle(&self.queue.name, &self.delivery, settle).await {
                Err(error) if error.is_retryable() && tries < SETTLE_ATTEMPTS => {
                    tracing::warn!(queue = self.queue.name, %error, "settling a job failed; trying again");
                    may_be_settled |= error.may_have_taken_effect();
                    sleep(delay).await;
                    delay *= 2;
                    tries += 1;
                }
                Err(error) if may_be_settled => return Err(error.after_possible_effect().into()),
                settled => return self.outcome(settled?, may_be_settled),
            }
        }
    }

    fn outcome(&self, settled: Settled, may_be_settled: bool) -> Result<(), JobError> {
        let by = match settled {
            Settled::Applied => return Ok(()),
            Settled::Repeated if may_be_settled => return Ok(()),
            // The job may have been settled before the key's next delivery, or that one may be of the same job.
            Settled::Stale { .. } if may_be_settled => return Err(self.unknown().into()),
            Settled::Repeated => None,
            Settled::Stale { by } => by,
        };
        let Delivery { key, token, .. } = self.delivery.clone();
        Err(JobError::Stale { queue: self.queue.name.clone(), key, token, by })
    }

    /// The error of a settlement whose first reply was lost, and which a later delivery prevents from being repeated.
    fn unknown(&self) -> Error {
        let Delivery { id, key, token, .. } = &self.delivery;
        let what = format!(
            "the store failed while it settled job {id} of '{}', and the key was delivered again before this was repeated, so the end \
             of the delivery with token {token} is not known",
            key.escape_debug()
        );
        let kind = ErrorKind::Outage { what, may_have_taken_effect: true, is_retryable: false, source: None };
        Error::new(kind, S::NAME, SETTLE).on(&self.queue.name)
    }
}
