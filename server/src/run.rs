//! Runs the service: one thread for the node and RESP, one that writes, one for HTTP.

mod writer;

use std::future::{Future, pending};
use std::io;
use std::panic;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Limits, Refusal, Token};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep};

use crate::access::Users;
use crate::net::resp;
use crate::net::{Bounds, Http, Server, ServiceHandle, start_http};
use crate::node::{Input, Node, NodeConfig, Seeds};
use crate::replica::ReplicaError;
use crate::sign::{KeyError, Signer};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::{StorageError, Store};
use crate::tls::Tls;
use writer::{Writer, Written};

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
}

impl From<TcpListener> for Listeners {
    fn from(resp: TcpListener) -> Listeners {
        Listeners { resp, http: None }
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
    /// Writes that were handed to the writing thread, and are not yet reported.
    in_flight: usize,
}

impl<D: Disk> Service<D> {
    fn open(disk: D, config: Config) -> Result<Service<D>, ServiceError> {
        let raise_above = config.raise_tokens_above.map(Token::get);
        let (store, recovered) = Store::open(disk.clone(), raise_above)?;
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
        };
        let node = Node::new(node_config, &recovered, random_seeds(), raise_above)?;
        drop(recovered);
        let (writer, written) = Writer::start(disk, store)?;
        let server = Server::new(node, bounds, config.users, config.tls, config.signer);
        Ok(Service { server, writer, written, in_flight: 0 })
    }

    /// Runs the node until a write fails.
    async fn run(mut self) -> ServiceError {
        loop {
            if let Err(error) = self.turn().await {
                return error;
            }
        }
    }

    /// Carries out the node's output, and waits for the next input.
    async fn turn(&mut self) -> Result<(), ServiceError> {
        let has_more = self.carry_out()?;
        let server = self.server.clone();
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

    /// Carries out the node's output, until it waits for a write or an input. Returns whether it has more to do.
    fn carry_out(&mut self) -> Result<bool, StorageError> {
        loop {
            let mut output = self.server.take_output();
            if let Some(watermark) = output.watermark {
                self.writer.replace_watermark(watermark)?;
            }
            self.server.deliver(&mut output);
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
            Written::Compacted(Ok(index)) => {
                self.server.step(Input::Compacted { index: Some(index) });
                self.writer.forget(index);
            }
            Written::Compacted(Err(error)) => {
                tracing::error!(%error, "no snapshot could be made; the log grows meanwhile");
                self.server.step(Input::Compacted { index: None });
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
    let disk = RealDisk::open_alone(config.data_dir.clone(), config.raise_tokens_above.is_some());
    let disk = disk.map_err(ServiceError::Directory)?;
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
    let Listeners { resp, http } = listeners;
    let watermark_disk = disk.clone();
    let service = Service::open(disk, config)?;
    let server = service.server.clone();
    let accepting = spawn_local(resp::accept(server.clone(), resp));
    let (handle, requests) = ServiceHandle::new(&server);
    spawn_local(requests.run(server.clone()));
    // It ends together with this call.
    let _http = http.map(|http| start_http(http, handle, &server)).transpose()?;
    // A task like those of the connections: it runs after all connections that have received requests, and before the
    // runtime polls the sockets again. So those requests share a write.
    let mut work = JoinSet::new();
    work.spawn_local(service.run());
    let mut ready = Some(ready);
    let mut stop = pin!(stop);
    let mut end_at: Option<Instant> = None;
    let mut users = server.users.as_ref().map(Users::subscribe);
    loop {
        if ready.is_some()
            && server.with_node(|node| node.is_leader())
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
            () = &mut stop, if end_at.is_none() => {
                accepting.abort();
                server.close();
                end_at = Some(Instant::now() + GRACE);
            }
            () = sleep(server.until_tick()) => server.step(Input::Tick),
            () = changed(&mut users) => server.users_changed(),
            Some(ended) = work.join_next() => return Err(match ended {
                Ok(why) => why,
                Err(error) => panic::resume_unwind(error.into_panic()),
            }),
        }
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
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    Seeds { hash_key: random.hash_one(0), session_ids: random.hash_one(1) }
}
