//! Cache rebuild: of all processes that miss a value, one rebuilds it. For efficiency only.
//!
//! When a popular value expires, every process would rebuild it at the same moment. With this recipe one does, and the others get the
//! old value. Only when there is no value at all do they wait for it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use palisade::recipe::cache::{Cache, Memory};
//!
//! let palisade = palisade::connect("memory:").await?;
//! let cache = Cache::new(palisade, Memory::default())             // or recipe::store::Redis
//!     .fresh(Duration::from_secs(60))                             // then it is rebuilt
//!     .stale(Duration::from_secs(600));                           // so long the old value is served meanwhile
//! let home: String = cache.get("home", || async { Ok::<_, std::io::Error>("<html>".to_owned()) }).await?;
//! # Ok(()) }
//! ```
//!
//! A value that is about to expire is rebuilt early, in the background, with a probability that rises towards its end and with the time
//! that the last rebuild took (the XFetch algorithm of Vattani, Chierichetti and Lowenstein, VLDB 2015). So in a busy cache values are
//! replaced before they expire, and no caller waits.
//!
//! The lock is an [efficiency](crate::Request::efficiency) lock: two processes may rebuild the same value at once. While the lock engine
//! does not answer, an old value is served as it is, and a missing one is built by every process for itself, after the TTL and some
//! seconds at the latest.
//! If the cache does not answer, the value is built and returned.

mod memory;
#[cfg(feature = "redis")]
mod redis;

use std::collections::HashSet;
use std::error::Error as StdError;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub use memory::Memory;

use crate::Palisade;

/// How long a value is fresh, unless [`Cache::fresh`] says otherwise.
const FRESH: Duration = Duration::from_secs(60);
/// How long an old value is served, unless [`Cache::stale`] says otherwise.
const STALE: Duration = Duration::from_secs(600);

/// How often a caller that waits for the lock of a missing value polls the cache.
const POLL: Duration = Duration::from_secs(5);

/// Any error.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A cache with `get` and `set`. Implement it for a cache of your own.
pub trait CacheStore: Send + Sync + 'static {
    /// Returns the value of a key, and how long the cache keeps it from now on.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Cached>, BoxError>> + Send;

    /// Sets the value of a key, and how long the cache keeps it.
    fn set(&self, key: &str, value: Vec<u8>, keep: Duration) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// A value in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// The value.
    pub value: Vec<u8>,
    /// How long the cache keeps it from now on, by the cache's clock.
    pub left: Duration,
}

/// A cache whose values one process at a time rebuilds. See the [module](self). Cheap to clone.
pub struct Cache<C> {
    palisade: Palisade,
    store: Arc<C>,
    fresh: Duration,
    stale: Duration,
    /// The keys whose old values a task of this process tries to rebuild. One task for each is enough.
    rebuilding: Arc<Mutex<HashSet<String>>>,
}

impl<C> Clone for Cache<C> {
    fn clone(&self) -> Cache<C> {
        let Cache { palisade, store, fresh, stale, rebuilding } = self;
        let (palisade, store, rebuilding) = (palisade.clone(), store.clone(), rebuilding.clone());
        Cache { palisade, store, fresh: *fresh, stale: *stale, rebuilding }
    }
}

impl<C> fmt::Debug for Cache<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cache { palisade, fresh, stale, .. } = self;
        let mut debug = f.debug_struct("Cache");
        debug.field("palisade", palisade).field("fresh", fresh).field("stale", stale).finish_non_exhaustive()
    }
}

/// The age of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    Fresh,
    /// It is to be rebuilt while it is served.
    Old,
}

impl<C: CacheStore> Cache<C> {
    /// A cache in this store, with the locks of this client.
    pub fn new(palisade: Palisade, store: C) -> Cache<C> {
        Cache { palisade, store: Arc::new(store), fresh: FRESH, stale: STALE, rebuilding: Arc::default() }
    }

    /// Sets how long a value is fresh; a minute otherwise.
    pub fn fresh(self, fresh: Duration) -> Cache<C> {
        Cache { fresh, ..self }
    }

    /// Sets how long after that the old value is served while it is rebuilt, or because rebuilding fails; ten minutes otherwise.
    pub fn stale(self, stale: Duration) -> Cache<C> {
        Cache { stale, ..self }
    }

    /// Returns the value of a key. If the store has none, one caller builds it and the others wait. An old value is returned at once,
    /// and one caller rebuilds it in the background, in a task of the Tokio runtime.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops a build that it waits for; the next caller builds it. A rebuild in the background goes on.
    ///
    /// # Errors
    ///
    /// The error of `build`, if there is no old value.
    pub async fn get<T, E, F>(&self, key: &str, build: impl FnOnce() -> F + Send + 'static) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        E: fmt::Display + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        if let Some((value, age)) = self.find(key).await {
            if age == Age::Old
                && let Some(rebuilding) = Rebuilding::begin(&self.rebuilding, key)
            {
                let cache = self.clone();
                tokio::spawn(async move { cache.rebuild(&rebuilding.key, build).await });
            }
            return Ok(value);
        }
        let lock = || self.palisade.lock(lock_name(key)).efficiency();
        // Without a session this fails sooner than a wait.
        let mut acquired = lock().try_acquire().await;
        let guard = loop {
            if let Ok(None) = acquired {
                acquired = lock().acquire_within(POLL).await;
            }
            // The holder before has built it, or the one that holds the lock is about to release it.
            if let Some((value, _)) = self.find(key).await {
                return Ok(value);
            }
            match acquired {
                Ok(Some(guard)) => break Some(guard),
                Ok(None) => acquired = Ok(None),
                Err(error) => {
                    tracing::warn!(key, %error, "a cached value is built without its lock");
                    break None;
                }
            }
        };
        let value = self.build(key, build).await?;
        drop(guard);
        Ok(value)
    }

    /// Rebuilds a value while the old one is served, unless another process does.
    async fn rebuild<T, E, F>(&self, key: &str, build: impl FnOnce() -> F)
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
        F: Future<Output = Result<T, E>>,
    {
        let guard = match self.palisade.lock(lock_name(key)).efficiency().try_acquire().await {
            Ok(Some(guard)) => guard,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(key, %error, "a cached value is not rebuilt, because its lock failed");
                return;
            }
        };
        // Another process may have rebuilt it since it was read.
        if !matches!(self.find::<T>(key).await, Some((_, Age::Fresh)))
            && let Err(error) = self.build(key, build).await
        {
            tracing::warn!(key, %error, "rebuilding a cached value failed; the old one is served");
        }
        drop(guard);
    }

    async fn build<T, E, F>(&self, key: &str, build: impl FnOnce() -> F) -> Result<T, E>
    where
        T: Serialize,
        F: Future<Output = Result<T, E>>,
    {
        let began_at = Instant::now();
        let value = build().await?;
        let entry = serde_json::to_vec(&Entry { took: began_at.elapsed(), value: &value });
        let stored = match entry {
            Ok(entry) => self.store.set(key, entry, self.fresh.saturating_add(self.stale)).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = stored {
            tracing::warn!(key, error, "a value could not be cached");
        }
        Ok(value)
    }

    /// Returns the cached value, and whether it is to be rebuilt.
    async fn find<T: DeserializeOwned>(&self, key: &str) -> Option<(T, Age)> {
        let found = self.store.get(key).await;
        let cached = found.inspect_err(|error| tracing::warn!(key, error, "the cache does not answer")).ok()??;
        // A value of another type, of an older version of the program for example, is rebuilt.
        let entry: Entry<T> = serde_json::from_slice(&cached.value).ok()?;
        let age = age(cached.left.saturating_sub(self.stale), entry.took, random_fraction());
        Some((entry.value, age))
    }
}

/// A key whose value a task of this process tries to rebuild.
struct Rebuilding {
    keys: Arc<Mutex<HashSet<String>>>,
    key: String,
}

impl Rebuilding {
    /// Returns `None` if another task tries to rebuild it already.
    fn begin(keys: &Arc<Mutex<HashSet<String>>>, key: &str) -> Option<Rebuilding> {
        let is_first = keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        is_first.then(|| Rebuilding { keys: keys.clone(), key: key.to_owned() })
    }
}

impl Drop for Rebuilding {
    fn drop(&mut self) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// A value as it is stored.
#[derive(serde::Serialize, serde::Deserialize)]
struct Entry<T> {
    /// How long building it took.
    took: Duration,
    value: T,
}

fn lock_name(key: &str) -> String {
    format!("cache/{key}")
}

/// Decides whether a value is to be rebuilt: certainly when it is no longer fresh, and before that with a probability of `e^(-left/took)`.
fn age(fresh_left: Duration, took: Duration, fraction: f64) -> Age {
    // `took` is read from the cache, so it can be any value.
    let early = Duration::try_from_secs_f64(took.as_secs_f64() * -fraction.ln()).unwrap_or(Duration::MAX);
    if fresh_left <= early { Age::Old } else { Age::Fresh }
}

/// Returns a random number above 0 and up to 1.
#[allow(clippy::cast_precision_loss, reason = "a random fraction needs no more than 53 bits")]
fn random_fraction() -> f64 {
    let bits = RandomState::new().hash_one(()) >> 11;
    (bits + 1) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_rebuilt_the_earlier_the_longer_that_takes() {
        let (took, second) = (Duration::from_secs(1), Duration::from_secs(1));
        assert_eq!(age(Duration::ZERO, took, 1.0), Age::Old, "it has expired");
        assert_eq!(age(second, took, 0.5), Age::Fresh, "half of all callers rebuild at 0.69 s before the end");
        assert_eq!(age(second, took, 0.3), Age::Old);
        assert_eq!(age(second, 3 * took, 0.5), Age::Old);
        assert_eq!(age(second, Duration::MAX, 0.3), Age::Old, "a cache may contain anything");
        assert_eq!(
            age(Duration::from_secs(60), took, f64::MIN_POSITIVE.max(1e-16)),
            Age::Fresh,
            "a minute is too early"
        );
    }

    #[test]
    fn a_random_fraction_is_above_0_and_up_to_1() {
        for _ in 0..10_000 {
            let fraction = random_fraction();
            assert!(fraction > 0.0 && fraction <= 1.0, "{fraction}");
        }
    }
}
