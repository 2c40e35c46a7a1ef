//! Compare and set: a value that is replaced only if no other writer has replaced it since it was read. No lock is needed.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade::recipe::{store::Sqlite, versioned::Versioned};
//!
//! let store = Sqlite::open(":memory:").await?;
//! let seats = Versioned::<u32, _>::new(&store, "flight/7/seats");
//! seats.update(|seats| seats.unwrap_or(100) - 1).await?;
//! let updated = seats.update(|seats| seats.unwrap_or(100) - 1).await?;
//! assert_eq!(updated.value, 98);
//! # Ok(()) }
//! ```
//!
//! - **No update is lost.** A write succeeds only if the value is the one that its writer has read. Otherwise
//!   [`update`](Versioned::update) reads again, applies the change to the new value, and tries again after a random pause.
//! - **No update is applied twice.** Each write has a random id that is stored with the value. If the reply to a write is lost, `update`
//!   looks for the id before it tries again, also when other writers have written since.
//! - **Not more than that.** The change must depend only on the value, because it may be computed several times. Writers are not
//!   served in order, and many at once keep each other from succeeding; then a lock is faster.

mod envelope;
#[cfg(feature = "object-store")]
mod object_store;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "embedded")]
mod sqlite;
#[cfg(all(test, feature = "embedded"))]
mod tests;

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::BadNumber;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::sleep;

use super::random::{doubled, up_to};
use super::store::Sealed;
use crate::{Error, ErrorKind, Misuse};

use envelope::{Envelope, Happened, History, Unconfirmed, Writer};

#[cfg(feature = "postgres")]
pub use postgres::SCHEMA as POSTGRES_SCHEMA;
#[cfg(feature = "embedded")]
pub use sqlite::SCHEMA as SQLITE_SCHEMA;

/// The longest value, as JSON.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// The longest name.
pub const MAX_NAME_BYTES: usize = 512;
/// How often [`Versioned::update`] tries, unless [`Versioned::attempts`] says otherwise.
pub const ATTEMPTS: u32 = 64;

/// The pauses between two attempts are random, up to a time that doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

const LOAD: &str = "load";
const STORE: &str = "store";
const UPDATE: &str = "update";

/// The version of a value: it identifies one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    history: History,
    condition: Condition,
}

/// What a store compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The id of the write that stored the value, or the object store's ETag.
    tag: Option<String>,
    /// The object store's own version.
    object_version: Option<String>,
}

impl Condition {
    /// The condition of a store that compares the ids of writes.
    #[cfg(any(feature = "embedded", feature = "postgres", feature = "redis"))]
    fn of(write: &str) -> Condition {
        Condition { tag: Some(write.to_owned()), object_version: None }
    }

    /// Returns the id of the write to compare.
    #[cfg(any(feature = "embedded", feature = "postgres", feature = "redis"))]
    fn write(&self) -> &str {
        self.tag.as_deref().unwrap_or_default()
    }
}

/// A database that keeps versioned values. [`store`](super::store) has those that implement it; no other type can.
#[allow(private_bounds, reason = "this seals the trait")]
pub trait VersionedStore: Sealed + Clone + Send + Sync {
    /// The name of the store, for messages.
    const NAME: &'static str;
    /// Whether a write that is refused has certainly not happened. Clients of object stores repeat a write whose reply was lost, and are
    /// then refused because of their own write.
    const REFUSAL_IS_CERTAIN: bool;

    /// Returns the bytes of a value, and the condition under which they are unchanged.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<(Vec<u8>, Condition)>, Error>> + Send;

    /// Stores bytes under the id of a write, if the condition holds; without one, if there is no value. Returns the new condition;
    /// `None` if the value was changed. Durable when it returns, as far as the store is.
    fn put(
        &self,
        name: &str,
        bytes: &[u8],
        write: &str,
        expected: Option<&Condition>,
    ) -> impl Future<Output = Result<Option<Condition>, Error>> + Send;
}

/// A value in a store. Cheap to clone. See the [module](self).
#[derive(Debug)]
pub struct Versioned<T, S> {
    store: S,
    name: String,
    attempts: u32,
    /// Those that wait for no outcome. Each update at the same time needs one, and few writers are remembered for longer.
    idle_writers: Arc<Mutex<Vec<Writer>>>,
    value: PhantomData<fn() -> T>,
}

impl<T, S: Clone> Clone for Versioned<T, S> {
    fn clone(&self) -> Self {
        let Versioned { store, name, attempts, idle_writers, value } = self;
        let (store, name, idle_writers) = (store.clone(), name.clone(), idle_writers.clone());
        Versioned { store, name, attempts: *attempts, idle_writers, value: *value }
    }
}

/// The result of [`Versioned::store_if`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the value may not have been stored"]
pub enum Stored {
    /// The value is stored, with this version.
    Stored(Version),
    /// Another writer was faster. Nothing was stored: load the value again.
    Changed,
}

/// The result of [`Versioned::update`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated<T> {
    /// The value that was stored. Other writers may have replaced it since.
    pub value: T,
    /// How often it was tried. Above 1, other writers were faster, or the store failed.
    pub attempts: u32,
}

/// A value that was read.
struct Found<T> {
    version: Version,
    value: T,
}

impl<T: Serialize + DeserializeOwned, S: VersionedStore> Versioned<T, S> {
    /// A value of this name. In an object store, the name is the path of the object.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use palisade::recipe::{store::Sqlite, versioned::Versioned};
    /// let store = Sqlite::open(":memory:").await?;
    /// let plan = Versioned::<Vec<String>, _>::new(&store, "plan");
    /// assert!(plan.load().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn new(store: &S, name: impl Into<String>) -> Versioned<T, S> {
        let (store, name) = (store.clone(), name.into());
        Versioned { store, name, attempts: ATTEMPTS, idle_writers: Arc::default(), value: PhantomData }
    }

    /// Sets how often [`update`](Versioned::update) tries. The default is 64.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Returns the value and its version; `None` if nothing was stored yet.
    ///
    /// # Cancellation
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// The value is of another type; the store failed.
    pub async fn load(&self) -> Result<Option<(T, Version)>, Error> {
        self.check(LOAD)?;
        let found = self.find::<T>(LOAD).await?;
        Ok(found.map(|Found { version, value }| (value, version)))
    }

    /// Stores a value if the one that is stored still has this version; without a version, if nothing is stored.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{store::Sqlite, versioned::{Stored, Versioned}};
    /// # let store = Sqlite::open(":memory:").await?;
    /// let plan = Versioned::<String, _>::new(&store, "plan");
    /// let Stored::Stored(first) = plan.store_if(None, &"a".to_owned()).await? else { panic!("nothing was stored") };
    /// assert!(matches!(plan.store_if(Some(&first), &"b".to_owned()).await?, Stored::Stored(_)));
    /// assert_eq!(plan.store_if(Some(&first), &"late".to_owned()).await?, Stored::Changed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the value may have been stored.
    ///
    /// # Errors
    ///
    /// The value is too long; the store failed. After [`may_have_taken_effect`](Error::may_have_taken_effect), load it and look.
    pub async fn store_if(&self, version: Option<&Version>, value: &T) -> Result<Stored, Error> {
        self.check(STORE)?;
        let writer = self.writer();
        let (id, after) = (writer.write(), version.map(|version| version.history.clone()));
        let history = History::next(after.as_ref(), &id);
        let bytes = self.bytes(&Envelope { history: history.clone(), value }, STORE)?;
        let condition = version.map(|version| &version.condition);
        let stored = match self.store.put(&self.name, &bytes, &id, condition).await? {
            Some(condition) => Stored::Stored(Version { history, condition }),
            None if S::REFUSAL_IS_CERTAIN => Stored::Changed,
            None => {
                let found = self.find::<IgnoredAny>(STORE).await.map_err(Error::after_possible_effect)?;
                let unconfirmed = Unconfirmed { id, after };
                match (unconfirmed.has_happened(found.as_ref().map(|found| &found.version.history)), found) {
                    (Happened::Yes, Some(found)) if found.version.history == history => Stored::Stored(found.version),
                    // It was stored, and another writer has replaced it since.
                    (Happened::Yes, _) => {
                        Stored::Stored(Version { history, condition: Condition { tag: None, object_version: None } })
                    }
                    (Happened::Unknown, _) => return Err(self.unknown(STORE)),
                    _ => Stored::Changed,
                }
            }
        };
        self.put_back(writer);
        Ok(stored)
    }

    /// Replaces the value by one that is computed from it, and tries again if another writer was faster. The change may be computed
    /// several times, and one of the results is stored once.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the change may have been stored.
    ///
    /// # Errors
    ///
    /// Other writers were faster in [all attempts](Versioned::attempts); the store failed. See
    /// [`may_have_taken_effect`](Error::may_have_taken_effect).
    pub async fn update(&self, mut change: impl FnMut(Option<T>) -> T) -> Result<Updated<T>, Error> {
        self.check(UPDATE)?;
        let writer = self.writer();
        let mut unconfirmed = UnconfirmedWrites(Vec::new());
        let mut last_error = None;
        for attempts in 1..=self.attempts {
            if attempts > 1 {
                // At once: the more others write, the sooner unconfirmed writes are forgotten.
                if let Some(value) = self.confirm(&mut unconfirmed).await? {
                    return Ok(self.updated(writer, value, attempts - 1));
                }
                sleep(up_to(doubled(FIRST_PAUSE, attempts - 1, LONGEST_PAUSE))).await;
            }
            let found = match self.find::<T>(UPDATE).await {
                Ok(found) => found,
                Err(error) if error.is_retryable() => {
                    last_error = Some(error);
                    continue;
                }
                Err(error) => return Err(unconfirmed.before(error)),
            };
            let (version, current) = found.map(|Found { version, value }| (version, value)).unzip();
            let after = version.as_ref().map(|version| &version.history);
            if let Some(value) = unconfirmed.resolve(after, || self.unknown(UPDATE))? {
                return Ok(self.updated(writer, value, attempts - 1));
            }
            let (id, value) = (writer.write(), change(current));
            let bytes = self.bytes(&Envelope { history: History::next(after, &id), value: &value }, UPDATE);
            let bytes = bytes.map_err(|error| unconfirmed.before(error))?;
            let condition = version.as_ref().map(|version| &version.condition);
            let is_unconfirmed = match self.store.put(&self.name, &bytes, &id, condition).await {
                Ok(Some(_)) => return Ok(self.updated(writer, value, attempts)),
                Ok(None) => !S::REFUSAL_IS_CERTAIN,
                Err(error) if error.is_retryable() => {
                    let is_unconfirmed = error.may_have_taken_effect();
                    last_error = Some(error);
                    is_unconfirmed
                }
                Err(error) => return Err(unconfirmed.before(error)),
            };
            if is_unconfirmed {
                unconfirmed.0.push((Unconfirmed { id, after: version.map(|version| version.history) }, value));
            }
        }
        if let Some(value) = self.confirm(&mut unconfirmed).await? {
            return Ok(self.updated(writer, value, self.attempts));
        }
        Err(unconfirmed.before(last_error.unwrap_or_else(|| self.contended())))
    }

    /// Returns the value of the unconfirmed write that has happened.
    async fn confirm(&self, unconfirmed: &mut UnconfirmedWrites<T>) -> Result<Option<T>, Error> {
        if unconfirmed.0.is_empty() {
            return Ok(None);
        }
        match self.find::<IgnoredAny>(UPDATE).await {
            Ok(found) => {
                let stored = found.as_ref().map(|found| &found.version.history);
                unconfirmed.resolve(stored, || self.unknown(UPDATE))
            }
            // The next attempt reads again.
            Err(error) if error.is_retryable() => Ok(None),
            Err(error) => Err(unconfirmed.before(error)),
        }
    }

    /// Returns a writer that waits for no outcome. It is put back only once the outcome of its writes is known.
    fn writer(&self) -> Writer {
        self.idle_writers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_else(Writer::new)
    }

    fn put_back(&self, writer: Writer) {
        self.idle_writers.lock().unwrap_or_else(PoisonError::into_inner).push(writer);
    }

    fn updated(&self, writer: Writer, value: T, attempts: u32) -> Updated<T> {
        self.put_back(writer);
        Updated { value, attempts }
    }

    async fn find<U: DeserializeOwned>(&self, operation: &'static str) -> Result<Option<Found<U>>, Error> {
        let Some((bytes, condition)) = self.store.get(&self.name).await? else { return Ok(None) };
        let envelope: Envelope<U> = serde_json::from_slice(&bytes).map_err(|error| {
            let what = format!("the stored value is not of this type ({error}); use another name for it");
            self.error(operation, what, false, false)
        })?;
        let Envelope { history, value } = envelope;
        Ok(Some(Found { version: Version { history, condition }, value }))
    }

    fn bytes<U: Serialize>(&self, envelope: &Envelope<U>, operation: &'static str) -> Result<Vec<u8>, Error> {
        let bytes = serde_json::to_vec(envelope).map_err(|error| {
            self.error(operation, format!("the value has no form in JSON ({error})"), false, false)
        })?;
        match bytes.len() > MAX_VALUE_BYTES {
            true => {
                let (value, max) = (bytes.len() as u64, MAX_VALUE_BYTES as u64);
                let too_large = BadNumber::TooLarge { what: "the size of the value, as JSON,", value, max };
                Err(self.misuse(operation, Misuse::Number(too_large)))
            }
            false => Ok(bytes),
        }
    }

    fn check(&self, operation: &'static str) -> Result<(), Error> {
        let why = match self.name.as_str() {
            "" => "the name is empty".to_owned(),
            name if name.len() > MAX_NAME_BYTES => {
                format!("the name has {} bytes, and {MAX_NAME_BYTES} are allowed", name.len())
            }
            name if name.contains(char::is_control) => "the name has a control character".to_owned(),
            _ if self.attempts == 0 => {
                return Err(
                    self.misuse(operation, Misuse::Number(BadNumber::Zero { what: "the number of attempts" }))
                );
            }
            _ => return Ok(()),
        };
        Err(self.misuse(operation, Misuse::Invalid(why)))
    }

    fn misuse(&self, operation: &'static str, misuse: Misuse) -> Error {
        Error::new(ErrorKind::Misuse(misuse), S::NAME, operation).on(&self.name)
    }

    fn error(&self, operation: &'static str, what: String, may_have_taken_effect: bool, is_retryable: bool) -> Error {
        let kind = ErrorKind::Outage { what, may_have_taken_effect, is_retryable, source: None };
        Error::new(kind, S::NAME, operation).on(&self.name)
    }

    fn contended(&self) -> Error {
        let what = format!(
            "other writers were faster in each of {} attempts; try again later, or take a lock for the update",
            self.attempts
        );
        self.error(UPDATE, what, false, true)
    }

    fn unknown(&self, operation: &'static str) -> Error {
        let what = "the reply to a write was lost, and too many others have written since, or have deleted the value, to tell \
             whether it has happened; load it and look"
            .to_owned();
        self.error(operation, what, true, false)
    }
}

/// The writes of an update that may have happened or may still happen, with their values.
struct UnconfirmedWrites<T>(Vec<(Unconfirmed, T)>);

impl<T> UnconfirmedWrites<T> {
    /// Returns the value of the write that has happened, and forgets those that never will. `unknown` is the error if that cannot be told.
    fn resolve(&mut self, stored: Option<&History>, unknown: impl FnOnce() -> Error) -> Result<Option<T>, Error> {
        let happened: Vec<Happened> = self.0.iter().map(|(write, _)| write.has_happened(stored)).collect();
        if let Some(index) = happened.iter().position(|happened| *happened == Happened::Yes) {
            return Ok(Some(self.0.swap_remove(index).1));
        }
        if happened.contains(&Happened::Unknown) {
            return Err(unknown());
        }
        self.0.retain(|(write, _)| write.has_happened(stored) != Happened::Never);
        Ok(None)
    }

    /// Returns an error that came after these writes.
    fn before(&self, error: Error) -> Error {
        if self.0.is_empty() { error } else { error.after_possible_effect() }
    }
}
