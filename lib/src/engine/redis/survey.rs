//! The settings of a Redis server that the engine's promises depend on.

use redis::Value;
use tokio::sync::mpsc;

use super::connection::{CALL_TIMEOUT, Dialed, Dialer};
use super::error::classify;
use super::{Config, scripts, wire};
use crate::engine::Failure;
use crate::engine::remote::{ConnectError, within};

/// The settings of a Redis server that the engine's promises depend on. `None` for a setting that this user cannot read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// Its version.
    pub version: Option<String>,
    /// Which keys are evicted when the memory is full: `maxmemory-policy`.
    pub policy: Option<String>,
    /// The bytes of memory that it may use, 0 without a limit: `maxmemory`.
    pub maxmemory: Option<u64>,
    /// Whether changes are written to a log: `appendonly`.
    pub appendonly: Option<String>,
    /// When the log is flushed to the disk: `appendfsync`.
    pub appendfsync: Option<String>,
    /// When snapshots are written: `save`.
    pub save: Option<String>,
    /// The number of its replicas.
    pub replicas: Option<u64>,
    /// Whether it is a node of a cluster.
    pub is_cluster: bool,
}

/// Reads the settings of the server that has the locks, over a separate connection: the primary that the Sentinels
/// name, or a node of a cluster.
///
/// # Errors
///
/// The server cannot be reached, or refuses this client.
pub async fn survey(config: &Config) -> Result<Survey, Failure> {
    on_server(config, async |server| read_settings(server).await).await
}

/// Checks that the stored data of the namespace are consistent, and describes each error. Only a bug, or another program
/// that writes to the keys, makes them inconsistent. Redis serves no other client during the check.
///
/// # Errors
///
/// The server cannot be reached, refuses this client, or another node of the cluster has the namespace.
pub async fn check(config: &Config) -> Result<Vec<String>, Failure> {
    let key = config.key();
    let mut call = scripts::check();
    call.arg(2).arg(&key).arg(format!("{key}:due"));
    on_server(config, async |server| {
        let found = server.query(&call).await.map_err(classify)?;
        let unexpected = |wire::Unexpected(what)| ConnectError::permanent(what);
        wire::list(&found, wire::text).map_err(unexpected)
    })
    .await
}

async fn on_server<T>(
    config: &Config,
    query: impl AsyncFnOnce(&mut Dialed) -> Result<T, ConnectError>,
) -> Result<T, Failure> {
    let (pushes, _receiver) = mpsc::unbounded_channel();
    let dialer = Dialer::new(config.clone());
    let result = within(CALL_TIMEOUT, async {
        let mut server = dialer.dial(pushes).await?;
        query(&mut server).await.map_err(|error| error.at(&server.peer))
    });
    result.await.map_err(|error| error.at(&super::backend::peer(config)).failure(false))
}

async fn read_settings(server: &mut Dialed) -> Result<Survey, ConnectError> {
    // A user without the right to INFO can still read other settings.
    let info = match server.query(&redis::cmd("INFO")).await {
        Err(error) if error.code() == Some("NOPERM") => Value::Nil,
        info => info.map_err(classify)?,
    };
    let text = |name: &str| wire::info(&info, name);
    let number = |name: &str| text(name).and_then(|text| text.parse().ok());
    Ok(Survey {
        version: text("redis_version").map(str::to_owned),
        // Hosted services refuse CONFIG, but INFO has these two settings.
        policy: text("maxmemory_policy").map(str::to_owned),
        maxmemory: number("maxmemory"),
        appendonly: setting(server, "appendonly").await,
        appendfsync: setting(server, "appendfsync").await,
        save: setting(server, "save").await,
        replicas: number("connected_slaves"),
        is_cluster: number("cluster_enabled") == Some(1),
    })
}

async fn setting(server: &mut Dialed, name: &str) -> Option<String> {
    match server.query(redis::cmd("CONFIG").arg("GET").arg(name)).await.ok()? {
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| wire::text(value).ok()),
        _ => None,
    }
}
