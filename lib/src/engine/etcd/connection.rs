//! One connection to a member of etcd, the calls and watches on it, and how it is opened. A call without an answer in time
//! breaks the connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, GetOptions, Identity, LeaseKeepAliveStream, LeaseKeeper,
    ResponseHeader, TlsOptions, Txn, TxnOpResponse, TxnResponse, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use palisade_core::SessionId;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

use super::Config;
use super::config::TLS;
use super::error::{MAJORITY, classify, is_closed};
use super::wire::{Keys, NameForm, Pair, Unexpected};
use crate::engine::claims::call_error::CallError;
use crate::engine::remote::{Address, ConnectError, GivenUp, Peer, RemoteConnection, Tls, within};

/// A call that takes longer fails and breaks its connection. An election takes one to two seconds with etcd's settings.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest time that one member has to answer before the next one is tried.
const SHORTEST_DIAL: Duration = Duration::from_millis(300);
/// How often an idle connection is probed, which finds a member that was cut off.
const PROBE: Duration = Duration::from_secs(10);

/// A connection.
pub struct Connection {
    client: Client,
    /// The beginning of all keys.
    prefix: String,
    has_certificate: bool,
    pub(super) peer: Peer,
    pub(super) given_up: GivenUp,
    watches: RefCell<Watches>,
    watch_requests: UnboundedSender<WatchRequest>,
    /// Watches of waits that have ended, by their keys. In a busy queue a client comes behind the same claim again.
    kept_watches: RefCell<HashMap<String, Watch>>,
    /// The streams of keep-alives on which no answer is outstanding.
    keep_alives: RefCell<HashMap<SessionId, (LeaseKeeper, LeaseKeepAliveStream)>>,
    /// The tasks that watch the sessions of this client.
    pub(super) session_watches: RefCell<HashMap<SessionId, SessionWatch>>,
    /// Whether the locks are observed for watchers. Locked while the first watch begins.
    pub(super) is_observing: tokio::sync::Mutex<bool>,
}

/// A task that ends when this is dropped.
pub(super) struct SessionWatch(pub(super) AbortHandle);

impl Drop for SessionWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Watches {
    last: i64,
    receivers: HashMap<i64, UnboundedSender<WatchResponse>>,
}

enum WatchRequest {
    Create(Vec<u8>, WatchOptions),
    Cancel(i64),
}

/// How long a watch is kept for another wait.
const KEEP_WATCH: Duration = Duration::from_secs(1);
const MOST_KEPT: usize = 64;

/// A watch. Dropping it cancels it.
pub(super) struct Watch {
    id: i64,
    responses: UnboundedReceiver<WatchResponse>,
    connection: Rc<Connection>,
}

impl Watch {
    /// Waits until the member has begun the watch. Returns the revision after which its events begin; `None` as [`Watch::next`].
    pub(super) async fn begun(&mut self) -> Option<i64> {
        let response = self.responses.recv().await?;
        Some(revision(response.header()))
    }

    /// Waits for the next events. `None` if the member has ended the watch, or the connection is broken.
    pub(super) async fn next(&mut self) -> Option<WatchResponse> {
        loop {
            let response = self.responses.recv().await?;
            if !response.events().is_empty() {
                return Some(response);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.connection.watches.borrow_mut().receivers.remove(&self.id).is_some() {
            drop(self.connection.watch_requests.send(WatchRequest::Cancel(self.id)));
        }
    }
}

/// The header of an answer.
pub(super) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

impl Connection {
    /// Performs a call within the time-out.
    pub(super) async fn call<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CallError> {
        if let Some(error) = self.given_up.error() {
            return Err(CallError::Failed { error, may_have_taken_effect: false });
        }
        match timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.call_error(&error)),
            Err(_) => {
                let error = self.given_up.note(ConnectError::no_answer(limit).at(&self.peer));
                Err(CallError::Failed { error, may_have_taken_effect: true })
            }
        }
    }

    fn call_error(&self, error: &Error) -> CallError {
        let classified = classify(error, &self.prefix, self.has_certificate);
        if classified.is_lease_gone {
            return CallError::SessionEnded;
        }
        let error = classified.error.at(&self.peer);
        if !classified.is_answer {
            self.given_up.note(error.clone());
        }
        CallError::Failed { error, may_have_taken_effect: !classified.is_answer }
    }

    pub(super) fn unexpected(&self, Unexpected(what): Unexpected) -> CallError {
        let error = ConnectError::permanent(format!(
            "{what}, which this build does not understand. If no newer build wrote it, delete that key (etcdctl del)"
        ));
        CallError::Failed { error: error.at(&self.peer), may_have_taken_effect: true }
    }

    /// Performs a transaction.
    pub(super) async fn txn(&self, txn: Txn) -> Result<Answer, CallError> {
        let mut kv = self.client.kv_client().max_decoding_message_size(MESSAGE_BYTES);
        let answer = self.call(CALL_TIMEOUT, kv.txn(txn)).await?;
        Ok(Answer { revision: revision(answer.header()), answer })
    }

    /// Reads a key, or all keys of a range. The read is linearizable.
    pub(super) async fn get(
        &self,
        key: impl Into<Vec<u8>>,
        options: Option<GetOptions>,
    ) -> Result<etcd_client::GetResponse, CallError> {
        let mut kv = self.client.kv_client().max_decoding_message_size(MESSAGE_BYTES);
        self.call(CALL_TIMEOUT, kv.get(key, options)).await
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Begins a watch. Its events begin with this revision; with the next one, if it is 0.
    pub(super) fn watch(self: &Rc<Self>, key: impl Into<Vec<u8>>, options: WatchOptions, from: i64) -> Watch {
        let (sender, responses) = mpsc::unbounded_channel();
        let id = {
            let mut watches = self.watches.borrow_mut();
            watches.last += 1;
            let id = watches.last;
            watches.receivers.insert(id, sender);
            id
        };
        let options = options.with_watch_id(id).with_start_revision(from);
        drop(self.watch_requests.send(WatchRequest::Create(key.into(), options)));
        Watch { id, responses, connection: self.clone() }
    }

    /// Returns the kept watch on this key. Its events are complete since it was begun.
    pub(super) fn take_kept_watch(&self, key: &str) -> Option<Watch> {
        self.kept_watches.borrow_mut().remove(key)
    }

    /// Keeps a watch for another wait that begins soon.
    pub(super) fn keep_watch(self: &Rc<Self>, key: &str, watch: Watch) {
        if self.kept_watches.borrow().len() >= MOST_KEPT {
            return;
        }
        let (connection, key, id) = (Rc::downgrade(self), key.to_owned(), watch.id);
        let replaced = self.kept_watches.borrow_mut().insert(key.clone(), watch);
        drop(replaced);
        spawn_local(async move {
            sleep(KEEP_WATCH).await;
            let Some(connection) = connection.upgrade() else { return };
            let mut kept = connection.kept_watches.borrow_mut();
            let unused = if kept.get(&key).is_some_and(|watch| watch.id == id) { kept.remove(&key) } else { None };
            drop(kept);
            drop(unused);
        });
    }

    /// Sends the requests of watches and passes responses on, until the stream ends.
    async fn run_watches(
        &self,
        mut requests: UnboundedReceiver<WatchRequest>,
        mut sender: WatchRequestSender,
        mut stream: WatchResponseStream,
    ) -> ConnectError {
        loop {
            let failed = tokio::select! {
                request = requests.recv() => match request {
                    Some(WatchRequest::Create(key, options)) => sender.watch(key, Some(options)).await.err(),
                    Some(WatchRequest::Cancel(id)) => sender.cancel(id).await.err(),
                    None => return ConnectError::closed(),
                },
                response = stream.message() => match response {
                    Ok(Some(response)) => match self.pass_on(response) {
                        Ok(()) => None,
                        Err(error) => return error,
                    },
                    Ok(None) => return ConnectError::closed(),
                    Err(error) => Some(error),
                },
            };
            if let Some(error) = failed {
                return classify(&error, &self.prefix, self.has_certificate).error;
            }
        }
    }

    fn pass_on(&self, response: WatchResponse) -> Result<(), ConnectError> {
        let id = response.watch_id();
        let mut watches = self.watches.borrow_mut();
        if !response.canceled() {
            if let Some(receiver) = watches.receivers.get(&id) {
                drop(receiver.send(response));
            }
            return Ok(());
        }
        // A compaction has removed the events. The receiver reads the state again.
        if watches.receivers.remove(&id).is_some() && response.compact_revision() == 0 {
            return Err(ConnectError::transient(format!("it has ended a watch: {}", response.cancel_reason())));
        }
        Ok(())
    }

    /// Keeps the lease of a session alive.
    ///
    /// A deposed leader may answer a keep-alive although a new leader has counted the TTL since its election. So the keep-alive
    /// counts only if a linearizable read that follows is answered in the same term.
    pub(super) async fn keep_alive(&self, keys: &Keys, session: SessionId, limit: Duration) -> Result<(), CallError> {
        let id = lease(session)?;
        let stream = self.keep_alives.borrow_mut().remove(&session);
        let mut client = self.client.clone();
        let attempt = async {
            let (mut keeper, mut stream) = match stream {
                Some(stream) => stream,
                None => client.lease_keep_alive(id).await?,
            };
            loop {
                keeper.keep_alive().await?;
                let Some(answer) = stream.message().await? else { return Ok(None) };
                let read = client.get(keys.session(session), Some(GetOptions::new().with_count_only())).await?;
                let (renewed, now) = (answer.header(), read.header());
                if answer.ttl() <= 0 || read.count() == 0 {
                    return Ok(Some(None));
                }
                if renewed.map(ResponseHeader::raft_term) == now.map(ResponseHeader::raft_term) {
                    return Ok(Some(Some((keeper, stream))));
                }
            }
        };
        match self.call(limit, attempt).await? {
            Some(Some(stream)) => {
                // A stream with an outstanding answer is dropped: a later keep-alive must not take that answer for its own.
                self.keep_alives.borrow_mut().insert(session, stream);
                Ok(())
            }
            Some(None) => Err(CallError::SessionEnded),
            None => {
                let error = self.given_up.note(ConnectError::closed().at(&self.peer));
                Err(CallError::Failed { error, may_have_taken_effect: true })
            }
        }
    }

    pub(super) fn forget_session(&self, session: SessionId) {
        self.keep_alives.borrow_mut().remove(&session);
        self.session_watches.borrow_mut().remove(&session);
    }
}

impl Pair for etcd_client::KeyValue {
    fn key(&self) -> &[u8] {
        self.key()
    }

    fn value(&self) -> &[u8] {
        self.value()
    }

    fn created(&self) -> i64 {
        self.create_revision()
    }

    fn changed(&self) -> i64 {
        self.mod_revision()
    }

    fn is_held(&self) -> bool {
        self.lease() != 0
    }
}

/// A lock's name contains no tab, so that a tab ends it.
pub(super) const NAMES: &NameForm = &NameForm { encoded: None, end: '\t' };

/// The largest answer that is accepted. A page of claims is smaller.
const MESSAGE_BYTES: usize = 64 << 20;

/// The id of a session's lease.
pub(super) fn lease(session: SessionId) -> Result<i64, CallError> {
    i64::try_from(session.get()).map_err(|_| CallError::SessionEnded)
}

impl RemoteConnection for Connection {
    fn is_broken(&self) -> bool {
        self.given_up.is_noted()
    }
}

/// The answer to a transaction.
pub(super) struct Answer {
    /// The revision of etcd after the transaction.
    pub(super) revision: i64,
    answer: TxnResponse,
}

impl Answer {
    pub(super) fn succeeded(&self) -> bool {
        self.answer.succeeded()
    }

    /// The results of the reads in the transaction.
    pub(super) fn reads(&self) -> Vec<etcd_client::GetResponse> {
        let reads = self.answer.op_responses().into_iter().filter_map(|response| match response {
            TxnOpResponse::Get(read) => Some(read),
            _ => None,
        });
        reads.collect()
    }
}

/// A new connection.
pub(super) struct Dialed {
    pub(super) connection: Rc<Connection>,
    /// Receives watches until the connection breaks.
    pub(super) driver: futures_util::future::LocalBoxFuture<'static, ConnectError>,
    pub(super) cluster: u64,
    pub(super) revision: i64,
    /// The key with the offset of tokens, if it exists.
    pub(super) offset: Option<etcd_client::KeyValue>,
}

/// Opens connections.
pub(super) struct Dialer {
    config: Config,
    /// The member that the next connection is opened to.
    next: Cell<usize>,
}

impl Dialer {
    pub(super) fn new(config: Config) -> Dialer {
        Dialer { config, next: Cell::new(0) }
    }

    /// Connects to the first member that answers a linearizable read.
    pub(super) async fn dial(&self, keys: &Keys, longest: Duration) -> Result<Dialed, ConnectError> {
        let nodes = &self.config.nodes;
        let limit = (longest / nodes.len() as u32).max(SHORTEST_DIAL);
        let mut failed = Vec::new();
        for _ in nodes {
            let node = &nodes[self.next.get() % nodes.len()];
            match within(limit, self.dial_node(node, keys)).await {
                Ok(dialed) => return Ok(dialed),
                Err(error) => {
                    let error = error.at(&peer(node));
                    self.next.set(self.next.get() + 1);
                    if error.is_permanent() {
                        return Err(error);
                    }
                    failed.push((node, error));
                }
            }
        }
        Err(no_member(failed))
    }

    /// Makes the next connection go to another member.
    pub(super) fn skip_member(&self) {
        self.next.set(self.next.get() + 1);
    }

    async fn dial_node(&self, node: &Address, keys: &Keys) -> Result<Dialed, ConnectError> {
        let connect_error = |error: Error| self.explain(&error, keys);
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        let client = Client::connect([format!("{scheme}://{node}")], Some(self.options()?));
        let client = client.await.map_err(connect_error)?;
        let mut first = client.clone();
        let read = first.get(keys.offset(), None).await.map_err(connect_error)?;
        let options = WatchOptions::new().with_watch_id(1);
        let stream = first.watch(keys.offset(), Some(options)).await.map_err(connect_error)?;
        let (sender, stream) = stream.split();
        let (watch_requests, requests) = mpsc::unbounded_channel();
        let connection = Rc::new(Connection {
            client,
            prefix: keys.all.clone(),
            has_certificate: self.has_certificate(),
            peer: peer(node),
            given_up: GivenUp::default(),
            watches: RefCell::new(Watches { last: 1, ..Watches::default() }),
            watch_requests,
            kept_watches: RefCell::default(),
            keep_alives: RefCell::default(),
            session_watches: RefCell::default(),
            is_observing: tokio::sync::Mutex::new(false),
        });
        let driven = connection.clone();
        let driver = Box::pin(async move {
            let error = tokio::select! {
                error = driven.given_up.wait() => error,
                error = driven.run_watches(requests, sender, stream) => error,
            };
            let error = driven.given_up.note(error.at(&driven.peer));
            // Tasks hold the connection, and end with these.
            driven.watches.borrow_mut().receivers.clear();
            drop(driven.kept_watches.take());
            driven.session_watches.borrow_mut().clear();
            driven.keep_alives.borrow_mut().clear();
            error
        });
        let (cluster, revision) = read.header().map_or((0, 0), |header| (header.cluster_id(), header.revision()));
        Ok(Dialed { connection, driver, cluster, revision, offset: read.kvs().first().cloned() })
    }

    fn has_certificate(&self) -> bool {
        self.config.tls.as_ref().is_some_and(|tls| tls.identity.is_some())
    }

    /// Adds what a member that was reached but closes the connection may require.
    fn explain(&self, error: &Error, keys: &Keys) -> ConnectError {
        let explained = classify(error, &keys.all, self.has_certificate()).error;
        if !explained.is_unreachable() || !is_closed(error) {
            return explained;
        }
        explained.adding(&match &self.config.tls {
            None => "If it accepts encrypted connections only, use etcds://.".to_owned(),
            Some(tls) => {
                let identity = match &tls.identity {
                    None => format!("If it requires a client certificate, pass one with {}.", TLS.identity()),
                    Some(_) => "It may not accept this client's certificate.".to_owned(),
                };
                format!("It may not encrypt: then use etcd://. {identity}")
            }
        })
    }

    fn options(&self) -> Result<ConnectOptions, ConnectError> {
        let mut options = ConnectOptions::new().with_require_leader(true).with_keep_alive(PROBE, CALL_TIMEOUT);
        if let (Some(user), Some(secret)) = (&self.config.user, &self.config.secret) {
            options = options.with_user(user, secret.reveal().map_err(|error| error.connect_error(&TLS))?);
        }
        if let Some(tls) = &self.config.tls {
            options = options.with_tls(tls_options(tls)?);
        }
        Ok(options)
    }
}

/// The error of a connection for which each member has failed. The member that is nearest to an answer says most.
fn no_member(mut failed: Vec<(&Address, ConnectError)>) -> ConnectError {
    let unreachable: Vec<_> =
        failed.iter().filter(|(_, error)| error.is_unreachable()).map(|(node, _)| node.to_string()).collect();
    let nearest = failed.iter().rposition(|(_, error)| !error.is_unreachable());
    let is_only = failed.len() == 1;
    let Some((_, error)) = nearest.map(|at| failed.swap_remove(at)).or_else(|| failed.pop()) else {
        return ConnectError::closed();
    };
    let has_no_leader = error.to_string().contains(MAJORITY);
    let away = unreachable.join(", ");
    match (error.is_silent() || has_no_leader, unreachable.is_empty()) {
        (true, false) if has_no_leader => error.adding(&format!("Start those that cannot be reached: {away}.")),
        (true, false) => error.adding(&format!("A {MAJORITY}. Start those that cannot be reached: {away}.")),
        (true, true) if has_no_leader => error,
        (true, true) if is_only => error.adding(&format!("If it is one of several members, a {MAJORITY}.")),
        (true, true) => error.adding(&format!("A {MAJORITY}.")),
        (false, _) => error,
    }
}

fn tls_options(tls: &Tls) -> Result<TlsOptions, ConnectError> {
    // Reports files that cannot be used.
    tls.load().map_err(|error| error.connect_error(&TLS))?;
    let read = |path: &std::path::Path| {
        fs::read(path).map_err(|error| ConnectError::permanent(format!("cannot read {}: {error}", path.display())))
    };
    let mut options = match &tls.ca {
        Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?)),
        None => TlsOptions::new().with_native_roots(),
    };
    if let Some(identity) = &tls.identity {
        options = options.identity(Identity::from_pem(read(&identity.certificate)?, read(&identity.key)?));
    }
    Ok(options)
}

fn peer(node: &Address) -> Peer {
    Peer::new("etcd", node.to_string())
}
