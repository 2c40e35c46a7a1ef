//! The connection to the server, opened again after it broke.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, RedisError, Value};
use tokio::sync::Mutex;

use super::answer::Failure;
use crate::{Error, ErrorKind};

/// How long to wait for an answer. The driver's default is half a second, which a flush of the disk sometimes exceeds.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    client: Client,
    open: Mutex<Option<Open>>,
}

/// An open connection, and its node of a cluster.
struct Open {
    connection: MultiplexedConnection,
    node: ConnectionAddr,
}

impl Connection {
    pub(super) fn to(url: &str) -> Result<Connection, Error> {
        // The driver's error may quote the URL, which has passwords in it.
        let misuse = |_: RedisError| {
            let what = "this is no URL of a Redis; it looks like redis://user:password@host:6379/0";
            Error::new(ErrorKind::misuse(what), "redis", "connect to")
        };
        // The driver ignores an unknown option.
        let options = url.rsplit_once('?').map_or("", |(_, options)| options);
        let options = options.split('#').next().unwrap_or_default();
        let is_unix = url.starts_with("redis+unix:") || url.starts_with("unix:");
        let known: &[&str] = if is_unix { &["db", "user", "pass", "protocol"] } else { &["protocol"] };
        let mut names = options.split('&').filter_map(|option| option.split('=').next());
        if names.any(|name| !name.is_empty() && !known.contains(&name)) {
            let known = known.join(", ");
            let what = format!("an option of the URL is unknown; a fence's URL of a Redis has only these: {known}");
            return Err(Error::new(ErrorKind::misuse(what), "redis", "connect to"));
        }
        let client = Client::open(url.into_connection_info().map_err(misuse)?).map_err(misuse)?;
        Ok(Connection { client, open: Mutex::new(None) })
    }

    /// Returns the address, for messages.
    pub(super) fn address(&self) -> String {
        let info = self.client.get_connection_info();
        match info.redis_settings().db() {
            0 => info.addr().to_string(),
            database => format!("{}/{database}", info.addr()),
        }
    }

    /// Sends a command once. Follows one redirect of a cluster: a node that redirects has done nothing.
    pub(super) async fn call(&self, command: &Cmd) -> Result<Value, Failure> {
        let open = self.open(None).await?;
        let error = match self.query(open, command).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        match moved_to(&error, self.client.get_connection_info().addr()) {
            Some(node) => {
                let open = self.open(Some(node)).await?;
                self.query(open, command).await.map_err(Failure::Answered)
            }
            None => Err(Failure::Answered(error)),
        }
    }

    async fn query(&self, mut open: MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
        let result = command.query_async(&mut open).await;
        if result.as_ref().is_err_and(|error: &RedisError| error.code().is_none()) {
            *self.open.lock().await = None;
        }
        result
    }

    /// Returns the open connection, or a new one: to this node, if one is named.
    async fn open(&self, node: Option<ConnectionAddr>) -> Result<MultiplexedConnection, Failure> {
        let mut open = self.open.lock().await;
        if let Some(current) = open.as_ref()
            && node.as_ref().is_none_or(|node| *node == current.node)
        {
            return Ok(current.connection.clone());
        }
        let info = self.client.get_connection_info().clone();
        let node = node.unwrap_or_else(|| info.addr().clone());
        let config = AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(Some(TIMEOUT)).set_response_timeout(Some(TIMEOUT));
        let client = Client::open(info.set_addr(node.clone())).map_err(Failure::NotConnected)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(Failure::NotConnected)?;
        Ok(open.insert(Open { connection, node }).connection.clone())
    }
}

/// Returns the node that a redirect names, with the same kind of connection.
fn moved_to(error: &RedisError, from: &ConnectionAddr) -> Option<ConnectionAddr> {
    if error.code() != Some("MOVED") {
        return None;
    }
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let (host, port) = (host.to_owned(), port.parse().ok()?);
    Some(match from {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    })
}
