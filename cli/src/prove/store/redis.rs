//! A key of Redis. The ratchet keeps its token in a second key, and compares and sets in one script.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError, Script, cmd};
use palisade::Token;
use palisade_fence::redis::{Command, Keys, Redis, Value};
use tokio::sync::OnceCell;

use super::{CounterAdapter, SealedCounter, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;
use crate::stores::{redacted, with_secret};

/// The response timeout: longer than any pause, so that a writer that is paused while it waits still gets its answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

const RATCHET: &str = "\
if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1";

pub(super) struct Counter {
    url: String,
    name: String,
    plain: MultiplexedConnection,
    fenced: OnceCell<Keys>,
}

impl Counter {
    pub(super) async fn open(url: &str, name: &str) -> Result<Counter, Failure> {
        // The driver's message may quote the URL and its secret.
        let misuse = "this is not a Redis URL; expected redis://user:password@host:6379/0, or rediss:// for TLS";
        let url = with_secret(url);
        let client = Client::open(url.as_str()).map_err(|_| Failure::Misuse(misuse.to_owned()))?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
        let plain = client.get_multiplexed_async_connection_with_config(&config).await;
        let plain = plain.map_err(|error| Failure::Unavailable(format!("Redis: {error}")))?;
        Ok(Counter { url, name: name.to_owned(), plain, fenced: OnceCell::new() })
    }

    /// Returns the key of the highest token that has written, for the ratchet.
    fn highest_token_key(&self) -> String {
        format!("{}:seen", self.name)
    }

    async fn fenced(&self) -> Result<Keys, StoreError> {
        let connect = async || Redis::connect(&self.url).await?.keys(&self.name);
        Ok(self.fenced.get_or_try_init(connect).await?.clone())
    }
}

fn failed(error: RedisError) -> StoreError {
    StoreError::Failed(format!("Redis says: {error}"))
}

fn unknown_outcome(error: RedisError) -> StoreError {
    StoreError::UnknownOutcome(format!("Redis says: {error}"))
}

impl Store for Counter {
    fn describe(&self) -> String {
        redacted(&self.url)
    }

    fn create_data(&self, fencing: Fencing) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match fencing {
                // The key must not exist yet: the fence takes a key without a mark for one that lost its mark.
                Fencing::Strict => Redis::install(&self.url).await.map(|_| ()).map_err(StoreError::from),
                Fencing::None | Fencing::Ratchet => self.write(0).await,
            }
        })
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            let mut remove = cmd("DEL");
            remove.arg(&self.name).arg(self.highest_token_key()).arg(format!("palisade:{{{}}}", self.name));
            remove.exec_async(&mut self.plain.clone()).await.map_err(failed)
        })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { cmd("GET").arg(&self.name).query_async(&mut self.plain.clone()).await.map_err(failed) })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            cmd("SET").arg(&self.name).arg(number).exec_async(&mut self.plain.clone()).await.map_err(unknown_outcome)
        })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let script = Script::new(RATCHET);
            let mut call = script.key(&self.name);
            call.key(self.highest_token_key()).arg(token.get()).arg(number);
            match call.invoke_async(&mut self.plain.clone()).await.map_err(unknown_outcome)? {
                0 => Err(ratchet_refusal(token)),
                _ => Ok(()),
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedCounter>> {
        Box::pin(async move { seal(self.fenced().await?, OneKey, token).await })
    }
}

/// The key of the resource's name.
struct OneKey;

impl CounterAdapter for OneKey {
    type Resource = Keys;

    fn query(&self) -> Command {
        Command::new("GET")
    }

    fn number(&self, answer: Value) -> Option<u64> {
        match answer {
            Value::Nil => Some(0),
            Value::BulkString(text) => str::from_utf8(&text).ok()?.parse().ok(),
            _ => None,
        }
    }

    fn change(&self, number: u64) -> Command {
        Command::new("SET").arg(number.to_string())
    }
}
