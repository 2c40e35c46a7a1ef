//! Redis.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, ScriptInvocation, Value};
use tokio::sync::Mutex;

use super::{CONNECT, named, parse_url, within};
use crate::engine::redis::connection::Dialer;
use crate::engine::redis::error::classify;
use crate::engine::redis::{Config, Topology};
use crate::engine::remote::{ConnectError, Peer};
use crate::{Error, ErrorKind, Misuse};

const ENGINE: &str = "redis";
/// Connecting or a call takes no longer, or fails.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A Redis, alone or with Sentinels. A failover or a restart can lose the last records, so do not use it where that does damage.
///
/// ```no_run
/// # async fn f() -> Result<(), palisade::Error> {
/// use palisade::recipe::store::Redis;
/// let redis = Redis::connect("redis://127.0.0.1").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Redis(Arc<Shared>);

struct Shared {
    dialer: Dialer,
    /// All keys of the recipes begin with it.
    prefix: String,
    connection: Mutex<Option<(MultiplexedConnection, Peer)>>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redis")
    }
}

impl Redis {
    /// Connects. The URL is that of the [engine](crate::engine::redis::Config::parse), without `cluster` and `replicas`. Each namespace has
    /// its own records.
    ///
    /// # Errors
    ///
    /// The URL is invalid; Redis cannot be reached.
    pub async fn connect(url: &str) -> Result<Redis, Error> {
        let parse = |scheme: &str, rest: &str| match scheme {
            "rediss" => Config::parse_encrypted(rest),
            _ => Config::parse(rest),
        };
        let config = parse_url(url, ENGINE, &["redis", "rediss"], parse)?;
        if config.topology == Topology::Cluster {
            let what = "recipes do not follow a cluster's redirections; use a Redis without ?cluster".to_owned();
            return Err(Error::new(ErrorKind::Misuse(Misuse::Url(what)), ENGINE, CONNECT));
        }
        if config.replicas.is_some() {
            let what = "recipes do not wait for replicas; use a URL without ?replicas".to_owned();
            return Err(Error::new(ErrorKind::Misuse(Misuse::Url(what)), ENGINE, CONNECT));
        }
        let prefix = format!("palisade:{{{}}}:", config.namespace);
        let redis = Redis(Arc::new(Shared { dialer: Dialer::new(config), prefix, connection: Mutex::default() }));
        redis.connection(CONNECT, "").await?;
        Ok(redis)
    }

    /// Returns the name in Redis for something of a recipe.
    pub(crate) fn key(&self, recipe: &str, key: &str) -> String {
        format!("{}{recipe}:{key}", self.0.prefix)
    }

    async fn connection(&self, operation: &'static str, key: &str) -> Result<(MultiplexedConnection, Peer), Error> {
        let mut connection = self.0.connection.lock().await;
        if let Some(open) = &*connection {
            return Ok(open.clone());
        }
        let failed = |error: ConnectError| named(Error::new(error.failure(false).into(), ENGINE, operation), key);
        let open = within(TIMEOUT, self.0.dialer.dial_shared()).await.map_err(failed)?;
        Ok(connection.insert(open).clone())
    }

    /// Calls a script. A failed call may have taken effect, unless Redis replied with an error.
    pub(crate) async fn call(
        &self,
        (operation, key): (&'static str, &str),
        script: &ScriptInvocation<'_>,
    ) -> Result<Value, Error> {
        let (mut connection, peer) = self.connection(operation, key).await?;
        let call = async { script.invoke_async(&mut connection).await.map_err(CallError::from) };
        let replied = tokio::time::timeout(TIMEOUT, call).await;
        let CallError { error, is_answer } = match replied {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(_) => CallError { error: ConnectError::no_answer(TIMEOUT), is_answer: false },
        };
        // The next call dials again: the connection may be broken, or lead to a server that is no longer the primary.
        self.0.connection.lock().await.take();
        Err(Error::new(error.at(&peer).failure(!is_answer).into(), ENGINE, operation).on(key))
    }
}

struct CallError {
    error: ConnectError,
    /// Whether Redis replied, so that nothing has changed.
    is_answer: bool,
}

impl From<RedisError> for CallError {
    fn from(error: RedisError) -> CallError {
        let is_answer = error.code().is_some();
        CallError { error: classify(error), is_answer }
    }
}
