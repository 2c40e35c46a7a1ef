//! Values in Redis. A failover or a restart can lose the last writes.

use std::sync::LazyLock;

use redis::{FromRedisValue, Script};

use super::{Condition, LOAD, STORE, VersionedStore};
use crate::recipe::store::Redis;
use crate::{Error, ErrorKind};

/// A part of the keys.
const RECIPE: &str = "versioned";
static GET: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('HMGET', KEYS[1], 'value', 'write')"));
static PUT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("versioned.lua")));

impl VersionedStore for Redis {
    const NAME: &'static str = "redis";
    const REFUSAL_IS_CERTAIN: bool = true;

    async fn get(&self, name: &str) -> Result<Option<(Vec<u8>, Condition)>, Error> {
        let reply = self.call((LOAD, name), &GET.key(self.key(RECIPE, name))).await?;
        let fields = <(Option<Vec<u8>>, Option<String>)>::from_redis_value(reply);
        match fields.map_err(|_| unexpected(LOAD, name))? {
            (Some(value), Some(write)) => Ok(Some((value, Condition::of(&write)))),
            (None, None) => Ok(None),
            _ => Err(unexpected(LOAD, name)),
        }
    }

    async fn put(
        &self,
        name: &str,
        bytes: &[u8],
        write: &str,
        expected: Option<&Condition>,
    ) -> Result<Option<Condition>, Error> {
        let mut script = PUT.key(self.key(RECIPE, name));
        script.arg(write).arg(bytes).arg(expected.map_or("", Condition::write));
        let reply = self.call((STORE, name), &script).await?;
        let stored = i64::from_redis_value(reply).map_err(|_| unexpected(STORE, name))?;
        Ok((stored == 1).then(|| Condition::of(write)))
    }
}

fn unexpected(operation: &'static str, name: &str) -> Error {
    let what = "its key holds something else than a value; another program uses keys like palisade:{…}:versioned:…"
        .to_owned();
    let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: false, source: None };
    Error::new(kind, "redis", operation).on(name)
}
