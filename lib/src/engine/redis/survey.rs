//! What a Redis is set to, as far as promises depend on it.

use redis::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Config;
use super::dial::{Dialer, Dialled};
use super::error::Trouble;
use super::line::CALL;
use super::{reply, scripts};
use crate::engine::Failure;

/// What a Redis is set to, as far as promises depend on it. `None` where it does not say, or not to this user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// Its version, as it calls it.
    pub version: Option<String>,
    /// What is evicted when the memory is full: `maxmemory-policy`.
    pub policy: Option<String>,
    /// How much memory it may use, 0 for all there is: `maxmemory`.
    pub maxmemory: Option<u64>,
    /// Whether changes are kept on a disk: `appendonly`.
    pub appendonly: Option<String>,
    /// When they are certainly there: `appendfsync`.
    pub appendfsync: Option<String>,
    /// When snapshots are made: `save`.
    pub save: Option<String>,
    /// How many replicas follow it.
    pub replicas: Option<u64>,
    /// Whether it is a node of a cluster.
    pub is_cluster: bool,
}

/// Looks at the server that has the locks, over a connection of its own: the primary that the Sentinels name, or some node of
/// a cluster.
///
/// # Errors
///
/// It cannot be reached, or does not let this client in.
pub async fn survey(config: &Config) -> Result<Survey, Failure> {
    let (pushes, _nobody) = mpsc::unbounded_channel();
    let silent = |_| Trouble::Silent { address: config.nodes[0].address(), waited: CALL };
    let dialer = Dialer::new(config.clone());
    let looked = timeout(CALL, async { look(&mut dialer.dial(pushes).await?).await });
    looked.await.map_err(silent).and_then(|looked| looked).map_err(|trouble| trouble.failure(false))
}

/// Says what is wrong with what is stored in the namespace: nothing, unless something else has written to its keys, or there is
/// a bug. It is read in one call, in which Redis does nothing else.
///
/// # Errors
///
/// It cannot be reached, does not let this client in, or another node of the cluster has the namespace.
pub async fn check(config: &Config) -> Result<Vec<String>, Failure> {
    let (pushes, _nobody) = mpsc::unbounded_channel();
    let silent = |_| Trouble::Silent { address: config.nodes[0].address(), waited: CALL };
    let dialer = Dialer::new(config.clone());
    let checked = timeout(CALL, async {
        let mut server = dialer.dial(pushes).await?;
        let (mut call, key) = (scripts::check(), config.key());
        call.arg(2).arg(&key).arg(format!("{key}:due"));
        server.query(&call).await.map_err(|error| broken(&error, &server.address))
    });
    let checked = checked.await.map_err(silent).and_then(|checked| checked);
    let found = checked.map_err(|trouble| trouble.failure(false))?;
    Ok(reply::items(&found)?.iter().map(reply::text).collect::<Result<_, _>>()?)
}

fn broken(error: &redis::RedisError, address: &str) -> Trouble {
    Trouble::Broken { address: address.to_owned(), why: error.to_string() }
}

async fn look(server: &mut Dialled) -> Result<Survey, Trouble> {
    // A user without the right to INFO is told nothing; everything else can still be asked for.
    let info = match server.query(&redis::cmd("INFO")).await {
        Err(error) if error.code() == Some("NOPERM") => Value::Nil,
        info => info.map_err(|error| broken(&error, &server.address))?,
    };
    let said = |name: &str| reply::info(&info, name);
    let number = |name: &str| said(name).and_then(|text| text.parse().ok());
    Ok(Survey {
        version: said("redis_version").map(str::to_owned),
        // Services that others run do not let everybody see their configuration, but say this much.
        policy: said("maxmemory_policy").map(str::to_owned),
        maxmemory: number("maxmemory"),
        appendonly: setting(server, "appendonly").await,
        appendfsync: setting(server, "appendfsync").await,
        save: setting(server, "save").await,
        replicas: number("connected_slaves"),
        is_cluster: number("cluster_enabled") == Some(1),
    })
}

async fn setting(server: &mut Dialled, name: &str) -> Option<String> {
    let mut ask = redis::cmd("CONFIG");
    match server.query(ask.arg("GET").arg(name)).await.ok()? {
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| reply::text(value).ok()),
        _ => None,
    }
}
