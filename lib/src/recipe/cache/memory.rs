//! A cache in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{BoxError, CacheStore, Cached};

/// No value is kept for longer: a century, which a clock can add.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// A value, and until when it is kept.
type Entries = HashMap<String, (Vec<u8>, Instant)>;

/// A cache in this process, for tests and examples: it does not limit its size. Clones share their values.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<Entries>>);

impl CacheStore for Memory {
    async fn get(&self, key: &str) -> Result<Option<Cached>, BoxError> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((value, until)) = entries.get(key) else { return Ok(None) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            entries.remove(key);
            return Ok(None);
        }
        Ok(Some(Cached { value: value.clone(), left }))
    }

    async fn set(&self, key: &str, value: Vec<u8>, keep: Duration) -> Result<(), BoxError> {
        let until = Instant::now() + keep.min(LONGEST);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), (value, until));
        Ok(())
    }
}
