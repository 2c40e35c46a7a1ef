//! A cache in Redis.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{FromRedisValue, Script};

use super::{BoxError, CacheStore, Cached};
use crate::recipe::store::Redis;

/// A part of the keys.
const RECIPE: &str = "cache";
/// Both in one step: the value could expire between two commands.
static GET: LazyLock<Script> =
    LazyLock::new(|| Script::new("return { redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]) }"));
static SET: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"));

impl CacheStore for Redis {
    async fn get(&self, key: &str) -> Result<Option<Cached>, BoxError> {
        let reply = self.call(("get", key), &GET.key(self.key(RECIPE, key))).await?;
        let (value, left_ms) = <(Option<Vec<u8>>, i64)>::from_redis_value(reply)?;
        let left = u64::try_from(left_ms).map(Duration::from_millis);
        Ok(value.zip(left.ok()).map(|(value, left)| Cached { value, left }))
    }

    async fn set(&self, key: &str, value: Vec<u8>, keep: Duration) -> Result<(), BoxError> {
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX).max(1);
        self.call(("set", key), SET.key(self.key(RECIPE, key)).arg(value).arg(keep_ms)).await?;
        Ok(())
    }
}
