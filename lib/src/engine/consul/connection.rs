//! The calls to one agent of Consul. A call without an answer in time breaks the connection, and the next one goes to another
//! agent.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use palisade_core::SessionId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::Config;
use super::config::TLS;
use super::error::{classify, denied, transport};
use super::observer::Observer;
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::stored::{Keys, NameForm, Pair, Unexpected};
use crate::engine::remote::{Address, ConnectError, GivenUp, Peer, RemoteConnection, jittered, printable, within};

/// A call that takes longer fails and breaks its connection. Another agent may answer sooner, as one without a leader waits
/// seven seconds for one.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest time that one agent has to answer before the next one is tried.
const SHORTEST_DIAL: Duration = Duration::from_millis(300);
/// How long a client that has no session waits for an election. It takes about ten seconds with Consul's own settings.
pub(super) const ELECTION: Duration = Duration::from_secs(15);
/// The pause before agents without a leader are asked again.
const ELECTION_PAUSE: Duration = Duration::from_millis(200);
/// The largest answer that is accepted.
const MOST_BYTES: usize = 64 << 20;
/// The most operations of a transaction. It is Consul's limit.
pub(super) const MOST_OPERATIONS: usize = 64;

/// The most transactions under way. By default, Consul accepts 200 connections of one host.
const TRANSACTIONS: usize = 32;

/// The rule of an ACL that opening and renewing sessions needs.
const RIGHT_TO_SESSIONS: &str = "session_prefix \"\" { policy = \"write\" }";

/// The server accepts only printable characters in a path, and normalizes it. So names are encoded, and a slash ends them.
pub(super) const NAMES: &NameForm =
    &NameForm { encoded: Some(&NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b':')), end: '/' };
/// The characters of a key that are encoded in a path.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// A connection: the requests to one agent. They share a few TCP connections, and each blocking query has one to itself.
pub struct Connection {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// `http://host:port/v1/`
    base: String,
    token: Option<HeaderValue>,
    /// The prefix of all keys.
    prefix: String,
    has_certificate: bool,
    pub(super) peer: Peer,
    pub(super) given_up: GivenUp,
    /// Whether the agent has answered that it has no leader.
    is_leaderless: Cell<bool>,
    /// Bounds the transactions under way, and so the TCP connections.
    transactions: Semaphore,
    /// The tasks that watch the sessions of this client.
    pub(super) session_watches: RefCell<HashMap<SessionId, SessionWatch>>,
    /// Observes the locks for watchers. Locked while a watch begins.
    pub(super) observer: tokio::sync::Mutex<Option<Rc<RefCell<Observer>>>>,
}

/// A task that ends when this is dropped.
pub(super) struct SessionWatch(pub(super) AbortHandle);

impl Drop for SessionWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// The index at which a read was made.
    pub(super) index: i64,
    pub(super) body: Bytes,
    /// Whether the request was about a session.
    is_session: bool,
}

/// A key with its value.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    key: String,
    value: Vec<u8>,
    /// The session that holds the key.
    pub(super) session: Option<String>,
    created: i64,
    changed: i64,
}

impl Pair for Stored {
    fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    fn value(&self) -> &[u8] {
        &self.value
    }

    fn created(&self) -> i64 {
        self.created
    }

    fn changed(&self) -> i64 {
        self.changed
    }

    fn is_held(&self) -> bool {
        self.session.is_some()
    }
}

/// Keys with their values.
#[derive(Debug, Default)]
pub(super) struct Pairs(BTreeMap<String, Stored>);

impl Pairs {
    pub(super) fn get(&self, key: &str) -> Option<&Stored> {
        self.0.get(key)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Stored> {
        self.0.values()
    }

    /// The keys with this prefix.
    pub(super) fn tree(&self, prefix: &str) -> Vec<Stored> {
        let from = self.0.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix)).map(|(_, stored)| stored.clone()).collect()
    }

    /// The versions of the keys with this prefix.
    pub(super) fn versions(&self, prefix: &str) -> Vec<(String, i64)> {
        let from = self.0.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        from.map(|(key, stored)| (key.clone(), stored.changed)).collect()
    }

    /// The highest index at which one of the keys was changed.
    pub(super) fn index(&self) -> i64 {
        self.0.values().map(|stored| stored.changed).max().unwrap_or(0)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawPair {
    key: String,
    value: Option<String>,
    session: Option<String>,
    create_index: i64,
    modify_index: i64,
}

impl RawPair {
    fn decoded(self) -> Result<Stored, Unexpected> {
        let value = BASE64.decode(self.value.unwrap_or_default());
        let value = value.map_err(|error| Unexpected(format!("a value that is not in base64: {error}")))?;
        let session = self.session.filter(|session| !session.is_empty());
        Ok(Stored { key: self.key, value, session, created: self.create_index, changed: self.modify_index })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawAnswer {
    results: Option<Vec<RawResult>>,
    errors: Option<Vec<RawError>>,
}

#[derive(Deserialize)]
struct RawResult {
    #[serde(rename = "KV")]
    kv: Option<RawPair>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawError {
    what: String,
}

/// An operation of a transaction.
#[derive(Serialize)]
pub(super) struct Op {
    #[serde(rename = "KV")]
    kv: Kv,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Kv {
    verb: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
}

impl Op {
    fn new(verb: &'static str, key: impl Into<String>) -> Op {
        Op { kv: Kv { verb, key: key.into(), ..Kv::default() } }
    }

    pub(super) fn check_absent(key: impl Into<String>) -> Op {
        Op::new("check-not-exists", key)
    }

    /// Checks that the key was last changed at this index; that it does not exist, for 0.
    pub(super) fn check_index(key: impl Into<String>, index: i64) -> Op {
        match index {
            0 => Op::check_absent(key),
            index => Op { kv: Kv { index: Some(index), ..Op::new("check-index", key).kv } },
        }
    }

    /// Checks that the key exists, and that this session holds it.
    pub(super) fn check_session(key: impl Into<String>, session: &str) -> Op {
        Op { kv: Kv { session: Some(session.to_owned()), ..Op::new("check-session", key).kv } }
    }

    /// Writes a key that this session holds, and that disappears with it. A key that the session holds already keeps the
    /// index of its creation.
    pub(super) fn lock(key: impl Into<String>, value: &[u8], session: &str) -> Op {
        let value = Some(BASE64.encode(value));
        Op { kv: Kv { value, session: Some(session.to_owned()), ..Op::new("lock", key).kv } }
    }

    pub(super) fn set(key: impl Into<String>, value: &[u8]) -> Op {
        Op { kv: Kv { value: Some(BASE64.encode(value)), ..Op::new("set", key).kv } }
    }

    pub(super) fn delete(key: impl Into<String>) -> Op {
        Op::new("delete", key)
    }

    pub(super) fn delete_all(prefix: impl Into<String>) -> Op {
        Op::new("delete-tree", prefix)
    }

    pub(super) fn read_all(prefix: impl Into<String>) -> Op {
        Op::new("get-tree", prefix)
    }

    fn body(operations: &[Op]) -> Vec<u8> {
        serde_json::to_vec(operations).unwrap_or_else(|error| unreachable!("strings: {error}"))
    }

    /// Returns the size of a transaction with these operations.
    pub(super) fn bytes(operations: &[Op]) -> usize {
        Op::body(operations).len()
    }
}

/// A transaction whose conditions were not met. Nothing has changed.
#[derive(Debug)]
pub(super) struct Conflict;

impl Connection {
    /// Sends a request and reads the answer, whatever its status.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Reply, CallError> {
        if let Some(error) = self.given_up.error() {
            return Err(CallError::Failed { error, may_have_taken_effect: false });
        }
        let give_up = |error: ConnectError, may_have_taken_effect| {
            let error = self.given_up.note(error.at(&self.peer));
            CallError::Failed { error, may_have_taken_effect }
        };
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("X-Consul-Token", token);
        }
        let request = request.body(Full::new(body.into())).map_err(|error| {
            let error = ConnectError::permanent(format!("no request can be made: {error}")).at(&self.peer);
            CallError::Failed { error, may_have_taken_effect: false }
        })?;
        let answer = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| (transport(&error, self.has_certificate), !error.is_connect()))?;
            let (parts, body) = answer.into_parts();
            let broke = |error| (ConnectError::transient(format!("the answer broke off: {error}")), true);
            let body = Limited::new(body, MOST_BYTES).collect().await.map_err(broke)?.to_bytes();
            let index = parts.headers.get("X-Consul-Index").and_then(|value| value.to_str().ok()?.parse().ok());
            let is_session = path.starts_with("session/");
            Ok(Reply { status: parts.status, index: index.unwrap_or(0), body, is_session })
        };
        // A request that another one has found to be in vain ends at once.
        let answered = tokio::select! {
            answered = timeout(limit, answer) => answered,
            error = self.given_up.wait() => return Err(CallError::Failed { error, may_have_taken_effect: true }),
        };
        match answered {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err((error, may_have_taken_effect))) => Err(give_up(error, may_have_taken_effect)),
            Err(_) => Err(give_up(ConnectError::no_answer(limit), true)),
        }
    }

    /// The failure of a call with this answer.
    pub(super) fn failed(&self, reply: &Reply) -> CallError {
        let right = match reply.is_session {
            true => RIGHT_TO_SESSIONS.to_owned(),
            false => self.right_to_keys(),
        };
        let classified = classify(reply.status, &reply.body, &right);
        let error = classified.error.at(&self.peer);
        if classified.is_leaderless {
            self.is_leaderless.set(true);
        }
        if !classified.is_agent_fine {
            self.given_up.note(error.clone());
        }
        CallError::Failed { error, may_have_taken_effect: classified.may_have_taken_effect }
    }

    fn right_to_keys(&self) -> String {
        format!("key_prefix \"{}/\" {{ policy = \"write\" }}", self.prefix)
    }

    pub(super) fn unexpected(&self, Unexpected(what): Unexpected) -> CallError {
        let error = ConnectError::permanent(format!(
            "{what}, which this build does not understand. If no newer build wrote it, delete that key (consul kv delete)"
        ));
        CallError::Failed { error: error.at(&self.peer), may_have_taken_effect: true }
    }

    fn parsed<'a, T: Deserialize<'a>>(&self, reply: &'a Reply) -> Result<T, CallError> {
        let parsed = serde_json::from_slice(&reply.body);
        parsed.map_err(|error| {
            let error = ConnectError::permanent(format!("it answered in another form: {error}. Is it a Consul?"));
            CallError::Failed { error: error.at(&self.peer), may_have_taken_effect: true }
        })
    }

    /// Reads an answer in JSON.
    pub(super) async fn get<T: for<'a> Deserialize<'a>>(&self, path: &str) -> Result<T, CallError> {
        let reply = self.send(Method::GET, path, Vec::new(), CALL_TIMEOUT).await?;
        if reply.status.is_success() { self.parsed(&reply) } else { Err(self.failed(&reply)) }
    }

    /// Performs a transaction. One that writes goes through the log of Consul, so what it reads is the latest state.
    pub(super) async fn txn(&self, operations: &[Op]) -> Result<Result<Pairs, Conflict>, CallError> {
        self.send_txn("txn", operations).await
    }

    /// Reads all keys with these prefixes, at one point in time. The read is linearizable.
    pub(super) async fn read(&self, prefixes: impl IntoIterator<Item = String>) -> Result<Pairs, CallError> {
        let operations: Vec<_> = prefixes.into_iter().map(Op::read_all).collect();
        let answer = self.send_txn("txn?consistent", &operations).await?;
        answer.map_err(|Conflict| self.unexpected(Unexpected("a read with conditions".to_owned())))
    }

    async fn send_txn(&self, path: &str, operations: &[Op]) -> Result<Result<Pairs, Conflict>, CallError> {
        let body = Op::body(operations);
        let _turn = self.transactions.acquire().await;
        let reply = self.send(Method::PUT, path, body, CALL_TIMEOUT).await?;
        if !reply.status.is_success() && reply.status != StatusCode::CONFLICT {
            return Err(self.failed(&reply));
        }
        let answer: RawAnswer = self.parsed(&reply)?;
        if let Some(errors) = answer.errors.filter(|errors| !errors.is_empty()) {
            if let Some(error) = errors.iter().find(|error| error.what.contains("Permission denied")) {
                let error = denied(&printable(&error.what), &self.right_to_keys()).at(&self.peer);
                return Err(CallError::Failed { error, may_have_taken_effect: false });
            }
            let is_ended = errors.iter().any(|error| error.what.contains("invalid session"));
            return if is_ended { Err(CallError::SessionEnded) } else { Ok(Err(Conflict)) };
        }
        let pairs = answer.results.into_iter().flatten().filter_map(|result| result.kv);
        Ok(Ok(self.pairs(pairs)?))
    }

    /// If an operation wrote a key and a later one read it, the read has the value.
    fn pairs(&self, raw: impl Iterator<Item = RawPair>) -> Result<Pairs, CallError> {
        let mut pairs = BTreeMap::new();
        for pair in raw {
            let stored = pair.decoded().map_err(|error| self.unexpected(error))?;
            pairs.insert(stored.key.clone(), stored);
        }
        Ok(Pairs(pairs))
    }

    /// Reads a key, or all keys with a prefix, and the index of the answer. The query is complete: `?recurse&consistent`.
    pub(super) async fn get_keys(&self, key: &str, query: &str, limit: Duration) -> Result<(Pairs, i64), CallError> {
        let path = format!("kv/{}{query}", utf8_percent_encode(key, IN_PATH));
        let reply = self.send(Method::GET, &path, Vec::new(), limit).await?;
        match reply.status {
            StatusCode::NOT_FOUND => Ok((Pairs::default(), reply.index)),
            status if status.is_success() => {
                let pairs: Vec<RawPair> = self.parsed(&reply)?;
                Ok((self.pairs(pairs.into_iter())?, reply.index))
            }
            _ => Err(self.failed(&reply)),
        }
    }

    /// Reads the index of the last change of any key. It goes back only if data was lost.
    pub(super) async fn index(&self, keys: &Keys) -> Result<i64, CallError> {
        // The index of the answer for a key that does not exist is that of all keys.
        Ok(self.get_keys(&format!("{}none", keys.all), "?consistent", CALL_TIMEOUT).await?.1)
    }

    /// Waits at most this time until something with this prefix has changed since the index, and reads it. Returns also the
    /// index for the next call. May return without a change.
    pub(super) async fn next_change(
        &self,
        prefix: &str,
        query: &str,
        index: i64,
        wait: Duration,
    ) -> Result<(Pairs, i64), CallError> {
        let query = format!("?{query}&index={index}&wait={}ms", wait.as_millis());
        // Consul adds up to a sixteenth.
        let limit = wait + wait / 16 + CALL_TIMEOUT;
        let (pairs, now) = self.get_keys(prefix, &query, limit).await?;
        // An index that went back is of other data. An index of 0 would not wait.
        Ok((pairs, if now < index { 0 } else { now.max(1) }))
    }

    pub(super) fn forget_session(&self, session: SessionId) {
        self.session_watches.borrow_mut().remove(&session);
    }
}

impl RemoteConnection for Connection {
    fn is_broken(&self) -> bool {
        self.given_up.is_noted()
    }
}

/// A new connection.
pub(super) struct Dialed {
    pub(super) connection: Rc<Connection>,
    /// The highest index at which a key was changed.
    pub(super) index: i64,
    /// The key with the offset of tokens, if it exists.
    pub(super) offset: Option<Stored>,
}

/// Why an agent cannot be used.
struct DialError {
    error: ConnectError,
    /// Whether it answers, and has no leader.
    is_leaderless: bool,
}

/// Opens connections.
pub(super) struct Dialer {
    config: Config,
    /// The agent that the next connection is opened to.
    next: Cell<usize>,
}

impl Dialer {
    pub(super) fn new(config: Config) -> Dialer {
        Dialer { config, next: Cell::new(0) }
    }

    /// Connects to the first agent that answers a linearizable read. Agents without a leader answer at once, so it asks them again
    /// until they have elected one, or `patience` is over.
    pub(super) async fn dial(
        &self,
        keys: &Keys,
        longest: Duration,
        patience: Duration,
    ) -> Result<Dialed, ConnectError> {
        let began = Instant::now();
        loop {
            match self.dial_each(keys, longest).await {
                Err(DialError { error, is_leaderless: true }) if began.elapsed() < patience => {
                    tracing::debug!(%error, "waiting for an election");
                    sleep(jittered(ELECTION_PAUSE)).await;
                }
                Err(DialError { is_leaderless: true, .. }) if !patience.is_zero() => {
                    let waited = began.elapsed().as_secs();
                    let what = format!(
                        "it has no leader; tried again for {waited} s. Is a majority of its servers running? See consul \
                         operator raft list-peers"
                    );
                    let addresses: Vec<_> = self.config.nodes.iter().map(ToString::to_string).collect();
                    return Err(ConnectError::transient(what).at(&Peer::new("Consul", addresses.join(", "))));
                }
                dialed => return dialed.map_err(|failed| failed.error),
            }
        }
    }

    /// Tries each agent once.
    async fn dial_each(&self, keys: &Keys, longest: Duration) -> Result<Dialed, DialError> {
        let nodes = &self.config.nodes;
        let limit = (longest / nodes.len() as u32).max(SHORTEST_DIAL);
        let (mut failed, mut is_leaderless) = (None, false);
        for _ in nodes {
            let node = &nodes[self.next.get() % nodes.len()];
            match self.dial_node(node, keys, limit).await {
                Ok(dialed) => return Ok(dialed),
                Err(DialError { error, is_leaderless: is_one }) => {
                    let error = error.at(&peer(node));
                    self.skip_node();
                    if error.is_permanent() {
                        return Err(DialError { error, is_leaderless: false });
                    }
                    is_leaderless |= is_one;
                    failed = Some(error);
                }
            }
        }
        Err(DialError { error: failed.unwrap_or_else(ConnectError::closed), is_leaderless })
    }

    /// Makes the next connection go to another agent.
    pub(super) fn skip_node(&self) {
        self.next.set(self.next.get() + 1);
    }

    async fn dial_node(&self, node: &Address, keys: &Keys, limit: Duration) -> Result<Dialed, DialError> {
        let connection = self.connection(node).map_err(|error| DialError { error, is_leaderless: false })?;
        let read = async {
            let index = connection.index(keys).await?;
            let pairs = connection.read([keys.offset()]).await?;
            Ok((index, pairs.get(&keys.offset()).cloned()))
        };
        match within(limit, read).await {
            Ok((index, offset)) => Ok(Dialed { connection: Rc::new(connection), index, offset }),
            Err(error) => {
                // An agent waits seven seconds for a leader before it answers that it has none.
                let is_leaderless = connection.is_leaderless.get()
                    || !error.is_permanent() && self.knows_no_leader(node).await.unwrap_or(false);
                Err(DialError { error, is_leaderless })
            }
        }
    }

    /// Asks an agent whether it knows a leader; `None` if it does not answer.
    async fn knows_no_leader(&self, node: &Address) -> Option<bool> {
        let connection = self.connection(node).ok()?;
        let leader: String = timeout(SHORTEST_DIAL, connection.get("status/leader")).await.ok()?.ok()?;
        Some(leader.is_empty())
    }

    /// Prepares the requests to an agent. Sends nothing.
    pub(super) fn connection(&self, node: &Address) -> Result<Connection, ConnectError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let tls = self.config.tls.clone().unwrap_or_default();
        let security = |error: crate::engine::remote::SecurityError| error.connect_error(&TLS);
        let tls = match &self.config.tls {
            Some(_) => tls.load().map_err(security)?.as_ref().clone(),
            None => rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_safe_default_protocol_versions()
                .map_err(|error| ConnectError::permanent(error.to_string()))?
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth(),
        };
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.wrap_connector(tcp));
        let token = self.config.secret.as_ref().map(|secret| secret.reveal().map_err(security)).transpose()?;
        let token = token.map(|token| {
            let mut value = HeaderValue::from_str(&token)
                .map_err(|_| ConnectError::permanent("the ACL token has characters that no token has"))?;
            value.set_sensitive(true);
            Ok::<_, ConnectError>(value)
        });
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        Ok(Connection {
            client,
            base: format!("{scheme}://{node}/v1/"),
            token: token.transpose()?,
            prefix: self.config.prefix.clone(),
            has_certificate: self.config.tls.as_ref().is_some_and(|tls| tls.identity.is_some()),
            peer: peer(node),
            given_up: GivenUp::default(),
            is_leaderless: Cell::new(false),
            transactions: Semaphore::new(TRANSACTIONS),
            session_watches: RefCell::default(),
            observer: tokio::sync::Mutex::default(),
        })
    }
}

fn peer(node: &Address) -> Peer {
    Peer::new("Consul", node.to_string())
}
