//! One connection to Redis, the calls on it, and how it is opened. Calls are pipelined. A call without a reply in time breaks
//! the connection.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::config::{Config, TLS, Topology};
use super::error::{CallError, classify};
use super::fast_path::{FastRequest, PendingRequest, SendQueue, write_batch};
use super::namespace::NamespaceState;
use super::wire::{self, Reply, Request, Unexpected};
use super::{Replicas, scripts};
use crate::engine::remote::{Address, ConnectError, GivenUp, Peer, RemoteConnection, connect_tcp, encrypt};

/// A call that takes longer fails and breaks its connection. Redis answers within milliseconds, unless it or the network hangs.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The reply of the server, or its error reply, after which nothing has changed.
type ServerReply = Result<Value, RedisError>;

/// A connection.
pub struct Connection {
    redis: MultiplexedConnection,
    pub(super) peer: Peer,
    dialer: Rc<Dialer>,
    namespace: Rc<NamespaceState>,
    pub(super) given_up: GivenUp,
    fast_requests: SendQueue,
    /// Cleared when the server refuses functions to this user.
    has_functions: Cell<bool>,
}

impl Connection {
    pub(super) fn new(
        redis: MultiplexedConnection,
        peer: Peer,
        dialer: Rc<Dialer>,
        namespace: Rc<NamespaceState>,
    ) -> Connection {
        let (given_up, fast_requests) = (GivenUp::default(), SendQueue::default());
        Connection { redis, peer, dialer, namespace, given_up, fast_requests, has_functions: Cell::new(true) }
    }

    /// Sends a request to the Lua code. Lost data, a refusal and an ended session are replies here.
    pub(super) async fn request(self: &Rc<Self>, request: &Request, timeout: Duration) -> Result<Reply, CallError> {
        let value = match request {
            Request::Fast(request) => self.send_batched(request.clone()).await?,
            Request::Other(name, args) => {
                let write = |call| {
                    let mut call = self.namespace.write_header(call, name);
                    call.arg(args);
                    call
                };
                self.call_lua(write, timeout).await?
            }
        };
        wire::read_reply(&value, &self.namespace).map_err(|error| self.unexpected(error))
    }

    pub(super) fn unexpected(&self, Unexpected(what): Unexpected) -> CallError {
        let error = ConnectError::permanent(format!("{what}, which this build does not understand"));
        CallError { error: error.at(&self.peer), may_have_taken_effect: true }
    }

    /// Sends a request together with the others that are made before the next task runs.
    async fn send_batched(self: &Rc<Self>, request: FastRequest) -> Result<Value, CallError> {
        let (is_first, replied) = self.fast_requests.push(request);
        if is_first {
            spawn_local(self.clone().send_batch());
        }
        let gone = |_| Err(self.unanswered(ConnectError::transient("the connection was closed")));
        replied.await.unwrap_or_else(gone)
    }

    async fn send_batch(self: Rc<Self>) {
        let batch = self.fast_requests.next_batch();
        if !self.fast_requests.is_empty() {
            spawn_local(self.clone().send_batch());
        }
        let replies = match &batch[..] {
            [one] => {
                let write = |call| {
                    let mut call = self.namespace.write_header(call, one.request.name());
                    one.request.write(&mut call);
                    call
                };
                vec![self.call_lua(write, CALL_TIMEOUT).await]
            }
            several => self.call_batch(several).await,
        };
        for (pending, reply) in batch.into_iter().zip(replies) {
            // If its caller is gone, the keeper cancels the request.
            drop(pending.reply.send(reply));
        }
    }

    async fn call_batch(&self, batch: &[PendingRequest]) -> Vec<Result<Value, CallError>> {
        let write = |call| {
            let mut call = self.namespace.write_header(call, "several");
            write_batch(batch, &mut call);
            call
        };
        let own_reply = |value| match value {
            Value::ServerError(error) => Err(self.call_error(error.into())),
            value => Ok(value),
        };
        match self.call_lua(write, CALL_TIMEOUT).await {
            Ok(Value::Array(replies)) if replies.len() == batch.len() => replies.into_iter().map(own_reply).collect(),
            all => vec![all; batch.len()],
        }
    }

    /// Calls the Lua code as a function, which Redis compiles once, or as a script, which Redis compiles for each call. Older
    /// servers have no functions, some users may not call them, and a full server or a replica refuses them even if they write
    /// nothing. A refused function has changed nothing, so the script can follow.
    async fn call_lua(&self, write: impl Fn(Cmd) -> Cmd, timeout: Duration) -> Result<Value, CallError> {
        if self.has_functions.get()
            && let Ok(value) = self.call_function(&write, timeout).await?
        {
            return Ok(value);
        }
        match self.reply(&write(scripts::by_hash()), timeout).await? {
            // The server forgets scripts in a restart, a failover or SCRIPT FLUSH. Nothing has changed.
            Err(error) if error.code() == Some("NOSCRIPT") => self.call(&write(scripts::by_source()), timeout).await,
            reply => reply.map_err(|error| self.call_error(error)),
        }
    }

    async fn call_function(&self, write: &impl Fn(Cmd) -> Cmd, timeout: Duration) -> Result<ServerReply, CallError> {
        let mut reply = self.reply(&write(scripts::by_function()), timeout).await?;
        if reply.as_ref().is_err_and(|error| error.detail() == Some("Function not found")) {
            // Redis refuses this if another client has loaded the function meanwhile.
            drop(self.reply(&scripts::load_function(), timeout).await?);
            reply = self.reply(&write(scripts::by_function()), timeout).await?;
        }
        if let Err(error) = &reply
            && matches!(error.code(), Some("ERR" | "NOPERM"))
        {
            tracing::debug!(%error, "cannot use functions; using scripts");
            self.has_functions.set(false);
        }
        Ok(reply)
    }

    /// Returns the server's run id, which changes with each start; empty if this user cannot read it.
    pub(super) async fn run_id(&self) -> Result<String, CallError> {
        match self.reply(redis::cmd("INFO").arg("server"), CALL_TIMEOUT).await? {
            Ok(info) => Ok(wire::info(&info, "run_id").unwrap_or_default().to_owned()),
            Err(error) => {
                tracing::debug!(%error, "cannot read the server's run id");
                Ok(String::new())
            }
        }
    }

    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), CallError> {
        match timeout(CALL_TIMEOUT, self.redis.clone().subscribe(channel)).await {
            Ok(subscribed) => subscribed.map_err(|error| self.call_error(error)),
            Err(_) => Err(self.unanswered(ConnectError::no_answer(CALL_TIMEOUT))),
        }
    }

    /// Waits until enough replicas have the last write of this connection, or for the time-out. Returns how many have it.
    pub(super) async fn replicated(&self, replicas: Replicas) -> Result<u32, CallError> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas.count).arg(u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX));
        let count = self.call(&wait, CALL_TIMEOUT + replicas.timeout).await?;
        wire::number(&count).map_err(|error| self.unexpected(error))
    }

    /// Sends a command. An error reply is an error here.
    pub(super) async fn call(&self, command: &Cmd, timeout: Duration) -> Result<Value, CallError> {
        self.reply(command, timeout).await?.map_err(|error| self.call_error(error))
    }

    /// Sends a command, and waits for the reply of the server.
    async fn reply(&self, command: &Cmd, within: Duration) -> Result<ServerReply, CallError> {
        match timeout(within, self.redis.clone().send_packed_command(command)).await {
            Ok(Ok(Value::ServerError(error))) => Ok(Err(error.into())),
            Ok(Err(error)) if error.code().is_none() => Err(self.call_error(error)),
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.unanswered(ConnectError::no_answer(within))),
        }
    }

    /// Breaks the connection after a call whose outcome is unknown.
    fn unanswered(&self, error: ConnectError) -> CallError {
        let error = error.at(&self.peer);
        self.given_up.note(error.clone());
        CallError { error, may_have_taken_effect: true }
    }

    /// Classifies an error. The Lua code writes at its very end, so an error reply means that nothing has changed.
    fn call_error(&self, error: RedisError) -> CallError {
        let code = error.code().map(str::to_owned);
        let classified = match error.redirect_node() {
            Some((to, _)) if code.as_deref() == Some("MOVED") => self.dialer.redirected(to),
            _ => classify(error),
        };
        let error = classified.at(&self.peer);
        if matches!(code.as_deref(), None | Some("READONLY" | "MASTERDOWN" | "MOVED")) {
            self.given_up.note(error.clone());
        }
        CallError { error, may_have_taken_effect: code.is_none() }
    }
}

impl RemoteConnection for Connection {
    fn is_broken(&self) -> bool {
        self.given_up.is_noted()
    }
}

/// A new connection.
pub(super) struct Dialed {
    pub(super) redis: MultiplexedConnection,
    /// Sends and receives until the connection closes.
    pub(super) driver: BoxFuture<'static, ()>,
    pub(super) peer: Peer,
}

impl Dialed {
    pub(super) async fn query(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let closed = || RedisError::from((ErrorKind::Io, "the connection was closed"));
        tokio::select! {
            () = &mut self.driver => Err(closed()),
            value = self.redis.send_packed_command(command) => value?.extract_error(),
        }
    }

    async fn role(&mut self) -> Result<String, RedisError> {
        let role = self.query(&redis::cmd("ROLE")).await?;
        let first = wire::items(&role).ok().and_then(|parts| parts.first());
        Ok(first.and_then(|role| wire::text(role).ok()).unwrap_or_default())
    }
}

/// Opens connections.
pub(crate) struct Dialer {
    pub(super) config: Config,
    /// The node of a cluster that has the namespace, according to a redirection.
    home: Mutex<Option<Address>>,
    /// How many times a node of the URL was dialed, to try them in turn.
    dials: AtomicUsize,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Dialer {
    pub(crate) fn new(config: Config) -> Dialer {
        Dialer { config, home: Mutex::default(), dials: AtomicUsize::new(0) }
    }

    fn home(&self) -> MutexGuard<'_, Option<Address>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next dial go to `to`, which has the namespace according to another node.
    fn redirected(&self, to: &str) -> ConnectError {
        if self.config.topology != Topology::Cluster {
            let what = "it is a node of a cluster, and the namespace is on another node; add ?cluster to the URL";
            return ConnectError::permanent(what);
        }
        let node = to.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some(Address { host, port: port.parse().ok()? })
        });
        *self.home() = node;
        ConnectError::redirected(format!("it redirects this namespace to {to}"))
    }

    pub(super) async fn dial(&self, pushes: UnboundedSender<PushInfo>) -> Result<Dialed, ConnectError> {
        match &self.config.topology {
            Topology::Alone => self.dial_node(&self.config.nodes[0], pushes).await,
            Topology::Cluster => self.dial_cluster(pushes).await,
            Topology::Sentinel(name) => self.dial_primary(name, pushes).await,
        }
    }

    /// Connects, for any thread, and drives the connection in a task of the current runtime.
    pub(crate) async fn dial_shared(&self) -> Result<(MultiplexedConnection, Peer), ConnectError> {
        let (pushes, _) = mpsc::unbounded_channel();
        let Dialed { redis, driver, peer } = self.dial(pushes).await?;
        tokio::spawn(driver);
        Ok((redis, peer))
    }

    /// Connects to the node that has the namespace, or to one that will redirect the first call.
    async fn dial_cluster(&self, pushes: UnboundedSender<PushInfo>) -> Result<Dialed, ConnectError> {
        let home = self.home().take();
        if let Some(home) = home
            && let Ok(dialed) = self.dial_node(&home, pushes.clone()).await
        {
            *self.home() = Some(home);
            return Ok(dialed);
        }
        let dial = self.dials.fetch_add(1, Relaxed);
        let mut dialed = self.dial_node(&self.config.nodes[dial % self.config.nodes.len()], pushes).await?;
        // If this user may not call CLUSTER, the first request fails with the reason.
        match dialed.query(redis::cmd("CLUSTER").arg("INFO")).await {
            Err(error) if error.to_string().contains("cluster support disabled") => {
                let error = ConnectError::permanent("it is not a node of a cluster; remove ?cluster from the URL");
                Err(error.at(&dialed.peer))
            }
            _ => Ok(dialed),
        }
    }

    async fn dial_primary(&self, name: &str, pushes: UnboundedSender<PushInfo>) -> Result<Dialed, ConnectError> {
        let mut why = String::new();
        for sentinel in &self.config.nodes {
            let primary = match self.ask_sentinel(sentinel, name).await {
                Ok(primary) => primary,
                Err(error) => {
                    why = error;
                    continue;
                }
            };
            match self.dial_node(&primary, pushes.clone()).await {
                // The Sentinel may not know of a failover yet.
                Ok(mut dialed) => match dialed.role().await {
                    Ok(role) if role == "master" => return Ok(dialed),
                    Ok(role) => why = format!("{primary} is a {role}"),
                    Err(error) => why = format!("{primary}: {error}"),
                },
                Err(error) if error.is_permanent() => return Err(error),
                Err(error) => why = error.to_string(),
            }
        }
        let name = name.escape_debug();
        Err(ConnectError::transient(format!("no Sentinel knows a reachable primary named '{name}': {why}")))
    }

    async fn ask_sentinel(&self, sentinel: &Address, name: &str) -> Result<Address, String> {
        let address = sentinel.to_string();
        let failed = |error: RedisError| format!("{address}: {error}");
        let stream = self.stream(sentinel).await.map_err(|error| format!("{address}: {error}"))?;
        // The URL's user and database are those of the primary.
        let info = RedisConnectionInfo::default();
        let connected = MultiplexedConnection::new_with_config(&info, stream, without_timeouts()).await;
        let (redis, driver) = connected.map_err(failed)?;
        let mut dialed = Dialed { redis, driver: Box::pin(driver), peer: peer(sentinel) };
        let mut command = redis::cmd("SENTINEL");
        let reply = dialed.query(command.arg("get-master-addr-by-name").arg(name)).await.map_err(failed)?;
        match &reply {
            Value::Array(parts) => match &parts[..] {
                [host, port] => Some((wire::text(host).ok(), wire::number(port).ok())),
                _ => None,
            }
            .and_then(|(host, port)| Some(Address { host: host?, port: port? }))
            .ok_or_else(|| format!("{address}: a reply that this build does not understand")),
            _ => Err(format!("{address} does not know it")),
        }
    }

    async fn dial_node(&self, node: &Address, pushes: UnboundedSender<PushInfo>) -> Result<Dialed, ConnectError> {
        let peer = peer(node);
        let stream = self.stream(node).await.map_err(|error| error.at(&peer))?;
        let mut info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        info = info.set_db(self.config.database.into());
        if let Some(user) = &self.config.user {
            info = info.set_username(user);
        }
        if let Some(secret) = &self.config.secret {
            info = info.set_password(secret.reveal().map_err(|error| error.connect_error(&TLS))?);
        }
        let config = without_timeouts().set_push_sender(pushes);
        let connected = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (redis, driver) = connected.map_err(|error| classify(error).at(&peer))?;
        Ok(Dialed { redis, driver: Box::pin(driver), peer })
    }

    async fn stream(&self, node: &Address) -> Result<Box<dyn Stream>, ConnectError> {
        let files = self.config.tls.as_ref().map(|tls| tls.load().map_err(|error| error.connect_error(&TLS)));
        let files = files.transpose()?;
        let stream = connect_tcp(&node.host, node.port).await?;
        Ok(match files {
            None => Box::new(stream),
            Some(files) => Box::new(encrypt(stream, files, &node.host, &TLS).await?),
        })
    }
}

fn peer(node: &Address) -> Peer {
    Peer::new("Redis", node.to_string())
}

/// Each call has its own time-out.
fn without_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}
