//! Runs the service: one thread for the node and RESP, one that writes, one for HTTP.

mod writer;

use std::cell::RefCell;
use std::future::{Future, pending};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Limits, Refusal, Token};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_local};
use tokio::time::{Instant, sleep};

use crate::access::Users;
use crate::net::resp;
use crate::net::{Bounds, Http, Server, ServiceHandle, start_http, turn_away};
use crate::node::{Input, Node, NodeConfig, Seeds};
use crate::peers::{Founding, PeerTls, Peers, accept as accept_peers, form, random_cluster, random_number};
use crate::replica::{LOG_VERSION, LogLost, ReplicaError};
use crate::sign::{KeyError, Signer};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::{Identity, StorageError, Store, read_identity, write_identity};
use crate::tls::Tls;
use writer::{Writer, Written};

/// [`Config::compact_after`] without a value.
const COMPACT_AFTER: usize = 64 << 20;
/// How many writes follow each other before clients are served again. Many sessions that expire at once need many writes.
const WRITES_PER_TURN: usize = 16;
/// How long a leader that stops waits for the next one.
const HAND_OVER: Duration = Duration::from_secs(2);
/// How long clients have to read their last replies when the service stops.
const GRACE: Duration = Duration::from_secs(5);

/// The configuration of the service.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The directory of its files.
    pub data_dir: PathBuf,
    /// The limits of the machine; without them, the limits stay as they were.
    pub limits: Option<Limits>,
    /// The limits on clients.
    pub bounds: Bounds,
    /// Its users; without them, every client may do everything.
    pub users: Option<Users>,
    /// TLS for its connections.
    pub tls: Option<Tls>,
    /// The keys that sign tokens, if tokens can be signed.
    pub signer: Option<Signer>,
    /// Gives only tokens above this one, and starts even if the end of the log is missing.
    pub raise_tokens_above: Option<Token>,
    /// How the node takes part in a cluster, if it does.
    pub cluster: Option<ClusterConfig>,
    /// The version of the log that the node says it understands, for tests of upgrades; by default the newest one.
    pub log_version: Option<u16>,
    /// The log grows by this many bytes before a snapshot is made; by default 64 MiB. Bounds the disk space and the time of a start.
    pub compact_after: Option<usize>,
}

/// How a node takes part in a cluster.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// The cluster's beginning. It matters to a node that is no member yet.
    pub founding: Founding,
    /// TLS to and from other members; without it, they must all be on this machine.
    pub tls: Option<PeerTls>,
}

impl Config {
    /// Returns the default configuration, with files in this directory.
    pub fn new(data_dir: impl Into<PathBuf>) -> Config {
        Config { data_dir: data_dir.into(), ..Config::default() }
    }
}

/// The sockets that clients connect to.
#[derive(Debug)]
pub struct Listeners {
    /// RESP.
    pub resp: TcpListener,
    /// HTTP, if the service offers it.
    pub http: Option<Http>,
    /// Other members of the cluster, if the node takes part in one.
    pub peers: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(resp: TcpListener) -> Listeners {
        Listeners { resp, http: None, peers: None }
    }
}

/// Why the service could not start, or had to stop.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// Its directory cannot be used.
    #[error(transparent)]
    Directory(StorageError),
    /// Its files cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The contents of its files cannot be used.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The keys that sign tokens cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The directory belongs to another node, or to a service of one node, or to a node of a cluster.
    #[error("{0}")]
    OtherNode(String),
    /// The node was removed from its cluster.
    #[error(
        "this node was removed from its cluster. To use the machine again, start it with an empty directory and --join, and \
         add it (palisade cluster add)"
    )]
    Removed,
    /// The files of a node cannot be used, and the other nodes have the data.
    #[error(
        "node '{name}' cannot use its files: {why}. If the other nodes work (`palisade cluster status`), they have its data: replace \
         this node. Run `palisade cluster remove {name}`, start it with an empty directory and --join, and run `palisade cluster add \
         {name}={address}`. If they do not work either, keep all directories: `palisade cluster recover` begins again with the best one. \
         Never start it with an older copy of its directory"
    )]
    Replace {
        /// Its name.
        name: String,
        /// Its address.
        address: String,
        /// The problem of its files.
        why: String,
    },
    /// The other nodes have lost entries that this one has.
    #[error(
        "{0}. The other nodes have lost entries that were acknowledged: an older copy of a directory was put back, or a disk has lost \
         what it had written. Locks may have two holders now, with different tokens. This node has the entries: keep its directory. To \
         go on with its locks, stop all nodes and run `palisade cluster recover` on it; to go on with those of the others, replace this node"
    )]
    LostElsewhere(LogLost),
    /// The configuration raises tokens too far.
    #[error("{0}")]
    Refused(Refusal),
    /// An I/O error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The server, and the disk that its writes go to.
struct Service<D: Disk> {
    server: Rc<Server>,
    writer: Writer<D>,
    written: mpsc::UnboundedReceiver<Written>,
    peers: Rc<Peers<D>>,
    /// Writes that were handed to the writing thread, and are not yet reported.
    in_flight: usize,
    /// Told when clients can be served.
    may_serve: Option<oneshot::Sender<()>>,
}

impl<D: Disk> Service<D> {
    /// Opens the files of a directory, of this member if it is one of a cluster.
    fn open(disk: D, config: Config, member: Option<Identity>) -> Result<Service<D>, ServiceError> {
        let raise_above = config.raise_tokens_above.map(Token::get);
        // A member with a cut log must not vote, whatever its tokens are.
        let accept_cut = raise_above.filter(|_| config.cluster.is_none());
        let opened = Store::open(disk.clone(), accept_cut);
        let (store, recovered) = opened.map_err(|error| advise_member(error, config.cluster.as_ref()))?;
        // Tokens up to the watermark may have been given out: continuing above those raises nothing.
        if let Some(above) = config.raise_tokens_above.filter(|above| above.get() > recovered.watermark.tokens) {
            above.check_raise().map_err(ServiceError::Refused)?;
        }
        if let Some(signer) = &config.signer {
            signer.begin()?;
        }
        let bounds = config.bounds;
        let node_config = NodeConfig {
            limits: config.limits,
            users: config.users.clone(),
            wait_ms: bounds.wait_ms(),
            watches: bounds.watches,
            sessions_per_user: bounds.sessions_per_user,
            waiters: bounds.waiters,
            waiters_per_user: bounds.waiters_per_user,
            compact_after: config.compact_after.unwrap_or(COMPACT_AFTER),
        };
        let known = member.map_or_else(|| read_identity(&disk), |identity| Ok(Some(identity)))?;
        let identity = match known {
            Some(identity) => identity,
            None if recovered.last_index() > 0 => {
                return Err(StorageError::NoIdentity { directory: disk.path("") }.into());
            }
            None => {
                let identity = random_identity();
                write_identity(&disk, &identity)?;
                identity
            }
        };
        check_node(&identity, config.cluster.as_ref(), &disk.path(""))?;
        let mut node = Node::new(node_config, &identity, &recovered, random_seeds(), raise_above)?;
        if let Some(member) = &identity.node {
            node.name_member(member.clone());
        }
        drop(recovered);
        let (writer, written) = Writer::start(disk.clone(), store)?;
        let server = Server::new(node, bounds, config.users, config.tls, config.signer);
        let peer_tls = config.cluster.and_then(|cluster| cluster.tls);
        let log_version = config.log_version.unwrap_or(LOG_VERSION);
        let peers = Peers::new(identity, peer_tls, disk, server.clone(), log_version);
        Ok(Service { server, writer, written, peers, in_flight: 0, may_serve: None })
    }

    /// Runs the node until a write fails. `may_serve` is told when clients can be served.
    async fn run(mut self, may_serve: oneshot::Sender<()>) -> ServiceError {
        self.may_serve = Some(may_serve);
        loop {
            if let Err(error) = self.turn().await {
                return error;
            }
        }
    }

    /// Carries out the node's output, and waits for the next input.
    async fn turn(&mut self) -> Result<(), ServiceError> {
        let has_more = self.carry_out().await?;
        let server = self.server.clone();
        if let Some(may_serve) = self.may_serve.take_if(|_| !server.with_node(|node| node.is_about_to_lead())) {
            // The receiver is gone only if the service ends.
            let _ = may_serve.send(());
        }
        let report = tokio::select! {
            biased;
            report = self.written.recv() => match report {
                Some(report) => Some(report),
                None => return Err(io::Error::other("the writing thread has ended").into()),
            },
            () = server.wake.notified() => None,
            () = tokio::task::yield_now(), if has_more => None,
        };
        let mut report = report.or_else(|| self.written.try_recv().ok());
        while let Some(written) = report {
            self.handle_report(written)?;
            report = self.written.try_recv().ok();
        }
        Ok(())
    }

    /// Carries out the node's output, until it waits for a write or an input, or has written for a while. Returns whether it has more to
    /// do.
    async fn carry_out(&mut self) -> Result<bool, ServiceError> {
        for _ in 0..WRITES_PER_TURN {
            let mut output = self.server.take_output();
            match output.log_lost {
                Some(lost @ LogLost::Here { .. }) => return Err(self.peers.replace(lost.to_string())),
                Some(lost @ LogLost::Elsewhere { .. }) => return Err(ServiceError::LostElsewhere(lost)),
                None => {}
            }
            if let Some(watermark) = output.watermark {
                self.writer.replace_watermark(watermark)?;
            }
            self.server.deliver(&mut output);
            if output.is_deposed {
                self.server.disconnect_all();
            }
            if let Some(membership) = &output.membership {
                self.peers.refuse_removed(&membership.removed);
            }
            if let Some(contacts) = &output.contacts {
                self.peers.connect(contacts);
            }
            // The others write while this node does: the tasks that send the messages run before this thread waits for the disk.
            let has_messages = !output.peer_messages.is_empty();
            self.peers.send(output.peer_messages);
            if has_messages && !output.writes.is_empty() {
                self.server.flush();
                tokio::task::yield_now().await;
            }
            let mut is_persisted = false;
            for (number, write) in output.writes {
                is_persisted |= self.persist(number, write)?;
            }
            if let Some(compaction) = output.compaction {
                self.writer.compact(compaction);
            }
            if !is_persisted {
                self.server.flush();
                return Ok(output.has_more);
            }
        }
        self.server.flush();
        // Each write wakes this task, so `turn` would not wait. Here the runtime polls the sockets.
        tokio::task::yield_now().await;
        Ok(true)
    }

    /// Writes on this thread if the disk is fast, and returns whether it did. Otherwise the writing thread writes.
    fn persist(&mut self, number: u64, write: crate::storage::Write) -> Result<bool, StorageError> {
        let left = if self.in_flight == 0 {
            // Replies that are ready need not wait for the disk.
            self.server.flush();
            self.writer.write_here(write)?
        } else {
            Some(write)
        };
        match left {
            Some(write) => {
                self.in_flight += 1;
                self.writer.write(number, write);
                Ok(false)
            }
            None => {
                self.server.step(Input::Persisted { number });
                Ok(true)
            }
        }
    }

    /// Handles a report of the writing threads.
    fn handle_report(&mut self, written: Written) -> Result<(), StorageError> {
        match written {
            Written::UpTo(number, took) => {
                self.in_flight -= 1;
                self.writer.record_duration(took);
                self.server.step(Input::Persisted { number });
            }
            Written::Failed(error) => return Err(error),
            Written::Compacted(Ok(compacted)) => {
                let index = compacted.index;
                self.server.step(Input::Compacted(Some(compacted)));
                self.writer.forget(index);
            }
            Written::Compacted(Err(error)) => {
                tracing::error!(%error, "no snapshot could be made; the log grows meanwhile");
                self.server.step(Input::Compacted(None));
            }
        }
        Ok(())
    }
}

/// Serves clients until a write fails. Must be called within a `tokio` runtime with I/O and time, and within a local set.
///
/// # Errors
///
/// Files that cannot be used; a write that failed, after which nothing is answered any more.
pub async fn serve(config: Config, listeners: impl Into<Listeners>) -> Result<(), ServiceError> {
    serve_until(config, listeners.into(), || (), pending()).await
}

/// Serves clients until `stop` is ready. Then no more clients are accepted, requests are answered, and connections are
/// closed. `ready` is called when clients are served.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_until(
    config: Config,
    listeners: Listeners,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ServiceError> {
    // A node that waits for the others has no files yet, and one that has lost them gets a new number.
    let is_one_of_many = config.cluster.as_ref().is_some_and(|cluster| cluster.founding.founders.len() != 1);
    let may_start_empty = config.raise_tokens_above.is_some() || is_one_of_many;
    let disk = RealDisk::open_alone(config.data_dir.clone(), may_start_empty);
    let disk = disk.map_err(|error| match advise_member(error, config.cluster.as_ref()) {
        ServiceError::Storage(error) => ServiceError::Directory(error),
        advised => advised,
    })?;
    serve_on(disk, config, listeners, ready, stop).await
}

/// Serves clients on another disk than that of the configuration's directory. Keys for signing stay in that directory.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_on(
    disk: impl Disk,
    config: Config,
    listeners: Listeners,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ServiceError> {
    let Listeners { resp, http, peers } = listeners;
    let resp_port = resp.local_addr()?.port();
    let mut stop = pin!(stop);
    let waiting = RefCell::default();
    let member = match (&config.cluster, &peers) {
        (Some(ClusterConfig { founding, tls }), Some(listener)) => tokio::select! {
            member = form(&disk, founding, listener, tls.as_ref(), &waiting) => {
                Some(member.map_err(|error| advise_member(error, config.cluster.as_ref()))?)
            }
            never = turn_away(&resp, http.as_ref().map(|http| &http.listener), &waiting) => match never {},
            () = &mut stop => return Ok(()),
        },
        _ => None,
    };
    let watermark_disk = disk.clone();
    let service = Service::open(disk, config, member)?;
    let server = service.server.clone();
    // Its tasks end together with this call.
    let mut background = JoinSet::new();
    let peer_set = service.peers.clone();
    server.set_admin(service.peers.clone());
    if let Some(listener) = peers {
        server.set_relay(service.peers.clone());
        background.spawn_local(accept_peers(service.peers.clone(), listener));
    }
    // A task like those of the connections: it runs after all connections that have received requests, and before the
    // runtime polls the sockets again. So those requests share a write.
    let mut work = JoinSet::new();
    let (may_serve, mut serving) = oneshot::channel();
    work.spawn_local(service.run(may_serve));
    let mut clients = Some((resp, http));
    let mut accepting = None;
    // It ends together with this call.
    let mut _http = None;
    let mut ready = Some(ready);
    let mut handed_over_by: Option<Instant> = None;
    let mut end_at: Option<Instant> = None;
    let mut users = server.users.as_ref().map(Users::subscribe);
    loop {
        if accepting.is_some()
            && ready.is_some()
            && server.with_node(|node| node.is_leader() || node.is_following())
            && let Some(ready) = ready.take()
        {
            ready();
        }
        if end_at.is_some_and(|at| server.has_no_connections() || Instant::now() >= at) {
            let watermark = server.with_node(Node::last_watermark);
            crate::storage::write_watermark(&watermark_disk, watermark)?;
            return Ok(());
        }
        tokio::select! {
            biased;
            () = &mut stop, if end_at.is_none() && handed_over_by.is_none() => {
                // The clients of a leader go on with the next one at once.
                let is_handing_over = server.with_node(|node| node.transfer(None)).is_ok();
                server.wake.notify_one();
                handed_over_by = Some(Instant::now() + if is_handing_over { HAND_OVER } else { Duration::ZERO });
            }
            () = handed_over(&server, handed_over_by), if end_at.is_none() && handed_over_by.is_some() => {
                accepting.take().as_ref().map(JoinHandle::abort);
                clients = None;
                server.close();
                end_at = Some(Instant::now() + GRACE);
            }
            Ok(()) = &mut serving, if clients.is_some() => {
                let Some((resp, http)) = clients.take() else { continue };
                accepting = Some(spawn_local(resp::accept(server.clone(), resp)));
                let (handle, requests) = ServiceHandle::new(&server);
                spawn_local(requests.run(server.clone()));
                _http = http.map(|http| start_http(http, handle, &server, resp_port)).transpose()?;
            }
            () = peer_set.removed.notified() => return Err(ServiceError::Removed),
            () = sleep(server.until_tick()) => server.step(Input::Tick),
            () = changed(&mut users) => server.users_changed(),
            Some(ended) = work.join_next() => return Err(match ended {
                Ok(why) => why,
                Err(error) => panic::resume_unwind(error.into_panic()),
            }),
        }
    }
}

/// Waits until this node leads no more, at most until then.
async fn handed_over(server: &Server, by: Option<Instant>) {
    let Some(by) = by else { return pending().await };
    let mut leader = server.leader.subscribe();
    let is_over = async { while server.with_node(|node| node.is_leader()) && leader.changed().await.is_ok() {} };
    drop(tokio::time::timeout_at(by, is_over).await);
}

/// Says how to replace a member of a cluster whose files cannot be used: it must not vote without what it has promised.
fn advise_member(error: StorageError, cluster: Option<&ClusterConfig>) -> ServiceError {
    use StorageError::{Damaged, FilesRemoved, LogCut, NoWatermark};
    let why = match &error {
        Damaged { file, offset, what, .. } => format!("{file} is damaged at byte {offset}: {what}"),
        LogCut { directory, last, index, .. } => {
            format!("the log in {directory} ends at entry {last}, and entry {index} was durable")
        }
        NoWatermark { directory, .. } => format!("{directory} has a log and no watermark file"),
        FilesRemoved { directory } => format!("the watermark in {directory} was removed, or all its files"),
        _ => return error.into(),
    };
    match cluster {
        Some(ClusterConfig { founding, .. }) => {
            let address = founding.founders.get(&founding.name).map_or("HOST:PORT", String::as_str);
            ServiceError::Replace { name: founding.name.clone(), address: address.to_owned(), why }
        }
        None => error.into(),
    }
}

/// Waits until users are changed.
async fn changed(users: &mut Option<watch::Receiver<()>>) {
    let is_told = match users {
        Some(users) => users.changed().await.is_ok(),
        None => false,
    };
    if !is_told {
        pending().await
    }
}

fn random_seeds() -> Seeds {
    let random = RandomState::new();
    Seeds { hash_key: random.hash_one(0), session_ids: random.hash_one(1) }
}

/// Refuses a directory that belongs to another node than the configuration says.
fn check_node(identity: &Identity, cluster: Option<&ClusterConfig>, directory: &str) -> Result<(), ServiceError> {
    let owner = identity.node.as_ref().map(|node| node.name.as_str());
    let why = match (owner, cluster.map(|cluster| cluster.founding.name.as_str())) {
        (None, None) => return Ok(()),
        (Some(owner), Some(name)) if owner == name => return Ok(()),
        (Some(owner), Some(name)) => {
            format!("{directory} belongs to node '{owner}' of a cluster, and this one is called '{name}'")
        }
        (Some(owner), None) => {
            format!("{directory} belongs to node '{owner}' of a cluster; start it with a port for the other nodes")
        }
        (None, Some(_)) => format!(
            "{directory} belongs to a service of one node. To make a cluster of it, name only this node in --cluster; then \
             add the other ones, with empty directories (palisade cluster add)"
        ),
    };
    Err(ServiceError::OtherNode(why))
}

/// The identity of a new service of one node.
fn random_identity() -> Identity {
    Identity::alone(random_cluster(), random_number())
}
