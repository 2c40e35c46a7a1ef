//! Redis 7 or newer, and what speaks its protocol and has its functions.
//!
//! The check is in the server, as a library of [functions](LIBRARY) that any client calls with `FCALL`; `palisade fence
//! redis` prints and installs it. It is kept with the data: a server that has lost one has lost the other.
//!
//! ```no_run
//! # async fn example(token: palisade_fence::Token) -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_fence::{Seal, redis::Redis};
//! let redis = Redis::install("redis://127.0.0.1:6379").await?;    // or Redis::connect, once it is installed
//! let orders = redis.keys("orders/42")?;
//! let mut orders = orders.seal(token).await?;                     // or: palisade.lock("orders/42").seal(&orders).acquire()
//! let total = orders.get("orders/42").await?;
//! orders.set("orders/42", "100").await?;
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! As much as Redis itself: **one node with `appendfsync always`** keeps every acknowledged write, so no acknowledged
//! update is lost. With `everysec` a crash of the host, with replicas a failover, can take back the last writes, and
//! with them the last seal. A server that evicts keys without an expiry is refused.

mod answer;
mod command;
mod connection;
mod keys;

pub use ::redis::Value;
pub use command::Command;
pub use keys::Keys;

use std::sync::Arc;

use crate::{Error, ErrorKind};
use connection::Connection;

/// The functions, as `FUNCTION LOAD` takes them.
pub const LIBRARY: &str = include_str!("palisade.lua");

/// The version of [`LIBRARY`].
const VERSION: i64 = 3;

/// A Redis server with the functions installed. One connection, opened again when it breaks; clones share it.
#[derive(Clone)]
pub struct Redis {
    connection: Arc<Connection>,
}

impl Redis {
    /// Connects to a server: `redis://[user:password@]host[:port][/database]`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: it is no such URL; the functions are not installed there, or are another version; the
    /// server evicts keys that have no expiry, so that a mark could vanish. The server cannot be reached.
    pub async fn connect(url: &str) -> Result<Redis, Error> {
        let redis = Redis { connection: Arc::new(Connection::to(url)?) };
        redis.refuse_eviction().await?;
        redis.check_version().await?;
        Ok(redis)
    }

    /// Connects to a server, and installs the functions there or replaces them. Needs the right to `FUNCTION LOAD`. In
    /// a cluster do it on every primary.
    ///
    /// # Errors
    ///
    /// As [`connect`](Redis::connect); the server does not accept the functions.
    pub async fn install(url: &str) -> Result<Redis, Error> {
        let redis = Redis { connection: Arc::new(Connection::to(url)?) };
        redis.refuse_eviction().await?;
        let mut load = ::redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(LIBRARY);
        redis
            .connection
            .call(&load)
            .await
            .map_err(|failure| redis.error(failure.kind(), "install the functions on"))?;
        redis.check_version().await?;
        Ok(redis)
    }

    /// Returns the keys that one mark protects: the key of this name, and others that the caller chooses. In a cluster
    /// they must be in one hash slot: the name itself, and every key with `{name}` in it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: a name that is empty, longer than 255 bytes, or has braces or control characters.
    pub fn keys(&self, name: &str) -> Result<Keys, Error> {
        Keys::new(self.connection.clone(), name)
    }

    async fn check_version(&self) -> Result<(), Error> {
        let mut command = ::redis::cmd("FCALL");
        command.arg("palisade_version").arg(0);
        let found = self.connection.call(&command).await.map_err(|failure| self.error(failure.kind(), "use"))?;
        if found == Value::Int(VERSION) {
            return Ok(());
        }
        let what = "its functions are another version; replace them with `palisade fence redis --install`";
        Err(self.error(ErrorKind::misuse(what), "use"))
    }

    async fn refuse_eviction(&self) -> Result<(), Error> {
        let mut command = ::redis::cmd("INFO");
        command.arg("memory");
        let answer = self.connection.call(&command).await.map_err(|failure| self.error(failure.kind(), "use"))?;
        let text: String = ::redis::from_redis_value(answer).unwrap_or_default();
        match text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")) {
            Some(policy) if policy.starts_with("allkeys") => {
                let what = format!(
                    "it evicts keys that have no expiry (maxmemory-policy {policy}), and with them a mark; set \
                     noeviction, or one of the volatile policies"
                );
                Err(self.error(ErrorKind::misuse(what), "use"))
            }
            _ => Ok(()),
        }
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, format!("redis on {}", self.connection.address()), operation)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing/redis.md")]
struct Page;
