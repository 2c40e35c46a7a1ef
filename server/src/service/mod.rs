//! The service at work, on one thread: lines are read, commands become entries, what is durable is answered. A second
//! thread writes.

mod audit;
mod connection;
mod far;
mod line;
mod show;
mod state;
mod tally;
mod wait;
mod wheel;
mod writer;

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Answer, Command, Refusal};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;

use crate::http::{self, Http};
use crate::replica::{Replica, ReplicaError};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::{StorageError, Store};
use connection::Connection;
use state::{Caller, State, Waited};
use writer::Writer;

pub(crate) use far::{Far, Measures, Seen, Unavailable};
pub(crate) use state::{Look, Origin, code};
pub(crate) use tally::Histogram;
pub(crate) use wait::Grant;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(20);

/// What the service needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where its files are.
    pub data_dir: PathBuf,
}

/// Where clients come in.
#[derive(Debug)]
pub struct Listeners {
    /// The fast protocol.
    pub resp: TcpListener,
    /// HTTP, if it is wanted.
    pub http: Option<Http>,
}

impl From<TcpListener> for Listeners {
    fn from(resp: TcpListener) -> Listeners {
        Listeners { resp, http: None }
    }
}

/// Why the service does not run, or not any more.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// Its files.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What is in them.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

struct Service<D: Disk> {
    state: RefCell<State<D>>,
    /// There is something to do.
    wake: Notify,
}

impl<D: Disk> Service<D> {
    /// Has a command carried out.
    async fn ask(&self, command: Command) -> Result<Answer, Refusal> {
        self.ask_and_wait(command, None).await
    }

    async fn ask_and_wait(&self, command: Command, wait: Option<oneshot::Sender<Waited>>) -> Result<Answer, Refusal> {
        self.ask_from(Origin::Resp, command, wait).await
    }

    /// Has a command carried out that may have to wait; `wait` is told how that ends.
    async fn ask_from(
        &self,
        origin: Origin,
        command: Command,
        wait: Option<oneshot::Sender<Waited>>,
    ) -> Result<Answer, Refusal> {
        let (sender, answer) = oneshot::channel();
        self.state.borrow_mut().submit(command, Caller::Task(origin, sender, wait));
        self.wake.notify_one();
        match answer.await {
            Ok(answer) => answer,
            // The service has ended, and this task with it.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Serves clients on listeners, until a write fails. Must be called within a `tokio` runtime with I/O and time, and
/// within a local set.
///
/// # Errors
///
/// Files that cannot be used; a write that failed, after which nothing is answered any more.
pub async fn serve(config: Config, listeners: impl Into<Listeners>) -> Result<(), ServiceError> {
    let Listeners { resp, http } = listeners.into();
    let disk = RealDisk::open(config.data_dir)?;
    let (store, found) = Store::open(disk.clone())?;
    let mut replica = Replica::new(1, &[1], hash_key(), &found)?;
    drop(found);
    replica.stand();
    let (writer, mut written) = Writer::start(disk, store)?;
    let service = Rc::new(Service { state: RefCell::new(State::new(replica, writer)), wake: Notify::new() });
    spawn_local(accept(service.clone(), resp));
    let (far, errands) = Far::new();
    spawn_local(far::attend(service.clone(), errands));
    // It ends together with this call.
    let _http = http.map(|http| http::start(http, far)).transpose()?;
    let mut tick = tokio::time::interval(TICK);
    loop {
        service.state.borrow_mut().turn();
        tokio::select! {
            biased;
            report = written.recv() => match report {
                Some(report) => service.state.borrow_mut().note(report)?,
                None => return Err(io::Error::other("the thread that writes has ended").into()),
            },
            () = service.wake.notified() => {}
            _ = tick.tick() => service.state.borrow_mut().tick(),
        }
        while let Ok(report) = written.try_recv() {
            service.state.borrow_mut().note(report)?;
        }
    }
}

async fn accept<D: Disk>(service: Rc<Service<D>>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // It only costs time if it cannot be set.
                drop(stream.set_nodelay(true));
                let service = service.clone();
                spawn_local(async move {
                    service.state.borrow_mut().tally.resp_connections += 1;
                    drop(Connection::new(service.clone(), stream, peer.to_string()).serve().await);
                    service.state.borrow_mut().tally.resp_connections -= 1;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A number that strangers cannot guess, so that they cannot choose names that collide.
fn hash_key() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
