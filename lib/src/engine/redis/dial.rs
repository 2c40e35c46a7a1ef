//! The one place where connections are made: to the server, or to who leads to it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;

use super::config::{Config, Node, Topology};
use super::error::Trouble;
use super::reply;

/// A connection, and what must run as long as it is used.
pub(super) struct Dialled {
    pub(super) connection: MultiplexedConnection,
    pub(super) driver: Pin<Box<dyn Future<Output = ()>>>,
    pub(super) address: String,
}

pub(super) struct Dialer {
    pub(super) config: Config,
    /// The node of a cluster that has the namespace, as far as another one said.
    home: RefCell<Option<Node>>,
    /// Which node to ask first when nobody has said.
    turn: RefCell<usize>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Dialer {
    pub(super) fn new(config: Config) -> Dialer {
        Dialer { config, home: RefCell::default(), turn: RefCell::default() }
    }

    /// A cluster's node has said where the namespace is.
    pub(super) fn follow(&self, to: &str) {
        let node = to.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some(Node { host, port: port.parse().ok()? })
        });
        *self.home.borrow_mut() = node;
    }

    pub(super) async fn dial(&self, pushes: UnboundedSender<PushInfo>) -> Result<Dialled, Trouble> {
        match &self.config.topology {
            Topology::Alone => self.call(&self.config.nodes[0], Some(pushes)).await,
            Topology::Cluster => self.dial_node(pushes).await,
            Topology::Sentinel(name) => self.dial_primary(name, pushes).await,
        }
    }

    /// The node that has the namespace, or one that will say which has it.
    async fn dial_node(&self, pushes: UnboundedSender<PushInfo>) -> Result<Dialled, Trouble> {
        if let Some(home) = self.home.take() {
            let dialled = self.call(&home, Some(pushes.clone())).await;
            if dialled.is_ok() {
                *self.home.borrow_mut() = Some(home);
                return dialled;
            }
        }
        let turn = self.turn.replace_with(|turn| *turn + 1);
        let mut dialled = self.call(&self.config.nodes[turn % self.config.nodes.len()], Some(pushes)).await?;
        // A user without the right to ask finds out with the first call.
        match dialled.query(redis::cmd("CLUSTER").arg("INFO")).await {
            Err(error) if error.to_string().contains("cluster support disabled") => {
                Err(Trouble::IsNoCluster { address: dialled.address })
            }
            _ => Ok(dialled),
        }
    }

    async fn dial_primary(&self, name: &str, pushes: UnboundedSender<PushInfo>) -> Result<Dialled, Trouble> {
        let mut why = String::new();
        for sentinel in &self.config.nodes {
            let primary = match self.ask_sentinel(sentinel, name).await {
                Ok(primary) => primary,
                Err(trouble) => {
                    why = trouble;
                    continue;
                }
            };
            // A Sentinel may be behind the times; the server itself knows.
            let dialled = self.call(&primary, Some(pushes.clone())).await;
            match dialled {
                Ok(mut dialled) => match dialled.role().await {
                    Ok(role) if role == "master" => return Ok(dialled),
                    Ok(role) => why = format!("{} is a {role}", primary.address()),
                    Err(error) => why = format!("{}: {error}", primary.address()),
                },
                Err(trouble @ (Trouble::NotLetIn { .. } | Trouble::TooOld { .. })) => return Err(trouble),
                Err(trouble) => why = trouble.to_string(),
            }
        }
        let addresses: Vec<_> = self.config.nodes.iter().map(Node::address).collect();
        Err(Trouble::NoPrimary { addresses: addresses.join(", "), name: name.to_owned(), why })
    }

    async fn ask_sentinel(&self, sentinel: &Node, name: &str) -> Result<Node, String> {
        let stream = self.stream(sentinel).await.map_err(|trouble| trouble.to_string())?;
        // Sentinels have users and databases of their own.
        let info = RedisConnectionInfo::default();
        let said = |error: RedisError| format!("{} says: {error}", sentinel.address());
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&info, stream, patient()).await.map_err(said)?;
        let mut dialled = Dialled { connection, driver: Box::pin(driver), address: sentinel.address() };
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(name);
        let answer = dialled.query(&ask).await.map_err(said)?;
        match answer {
            Value::Array(parts) => match &parts[..] {
                [host, port] => {
                    let read = || Some((reply::text(host).ok()?, u16::try_from(reply::number(port).ok()?).ok()?));
                    let (host, port) = read().ok_or_else(|| format!("{} makes no sense", sentinel.address()))?;
                    Ok(Node { host, port })
                }
                _ => Err(format!("{} makes no sense", sentinel.address())),
            },
            _ => Err(format!("{} does not know it", sentinel.address())),
        }
    }

    async fn call(&self, node: &Node, pushes: Option<UnboundedSender<PushInfo>>) -> Result<Dialled, Trouble> {
        let address = node.address();
        let stream = self.stream(node).await?;
        let mut info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        info = info.set_db(self.config.database.into());
        if let Some(user) = &self.config.user {
            info = info.set_username(user);
        }
        if let Some(secret) = &self.config.secret {
            info = info.set_password(&secret.0);
        }
        let config = match pushes {
            Some(pushes) => patient().set_push_sender(pushes),
            None => patient(),
        };
        let greeted = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (connection, driver) = greeted.map_err(|error| not_greeted(address.clone(), &error))?;
        Ok(Dialled { connection, driver: Box::pin(driver), address })
    }

    async fn stream(&self, node: &Node) -> Result<Box<dyn Stream>, Trouble> {
        let address = node.address();
        let not_reached =
            |error: std::io::Error| Trouble::NotReached { address: node.address(), source: Arc::new(error) };
        let tls = match &self.config.tls {
            Some(tls) => {
                let no_tls = |why| Trouble::NoTls { address: address.clone(), why };
                let name = ServerName::try_from(node.host.clone());
                let name = name.map_err(|error| no_tls(error.to_string()))?;
                Some((tls.load().map_err(no_tls)?, name))
            }
            None => None,
        };
        let stream = TcpStream::connect((node.host.as_str(), node.port)).await.map_err(not_reached)?;
        stream.set_nodelay(true).map_err(not_reached)?;
        match tls {
            None => Ok(Box::new(stream)),
            Some((connector, name)) => match connector.connect(name, stream).await {
                Ok(stream) => Ok(Box::new(stream)),
                Err(error) if error.get_ref().is_some_and(|source| source.is::<rustls::Error>()) => {
                    Err(Trouble::NoTls { address, why: error.to_string() })
                }
                Err(error) => Err(not_reached(error)),
            },
        }
    }
}

/// Whoever asks says how long to wait.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

fn not_greeted(address: String, error: &RedisError) -> Trouble {
    let why = error.to_string();
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
            Trouble::NotLetIn { address, why }
        }
        (ErrorKind::RESP3NotSupported, _) => Trouble::TooOld { address, why },
        _ => Trouble::Broken { address, why },
    }
}

impl Dialled {
    pub(super) async fn query(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let broken = || RedisError::from((ErrorKind::Io, "the connection broke"));
        tokio::select! {
            () = &mut self.driver => Err(broken()),
            value = self.connection.send_packed_command(command) => value?.extract_error(),
        }
    }

    async fn role(&mut self) -> Result<String, RedisError> {
        let role = self.query(&redis::cmd("ROLE")).await?;
        let first = reply::items(&role).ok().and_then(|parts| parts.first());
        Ok(first.and_then(|role| reply::text(role).ok()).unwrap_or_default())
    }
}
