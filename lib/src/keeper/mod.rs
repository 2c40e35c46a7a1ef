//! The keeper: a thread that keeps the session alive and does all of the engine's I/O.
//!
//! An application's futures only send operations and wait for replies. An application that blocks its async runtime
//! therefore keeps its locks. Dropping any future is safe: the keeper cancels an acquire, and releases a grant, whose caller is gone.

mod acquire;
mod driver;
mod local_queue;
mod op;
mod operations;
mod renewal;
mod session;
mod sessions;
mod waker;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Engine, Failure, Guarantees};
use crate::{Error, ErrorKind, Options};

use waker::{BatchWaker, Outbox};

pub(crate) use op::{AcquireOp, ForceRelease, Op, Reply, SessionOp, Wait};
pub(crate) use session::Grant;

/// The stack of a keeper's thread. In debug builds the futures of drivers need more than the usual 2 MiB. Only the part that is used costs
/// memory.
const STACK: usize = 8 << 20;

/// How long dropping the last handle waits for the keeper to close the session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The connection of handles and guards to their keeper. When the last of them is dropped, the keeper closes the session
/// and ends.
pub(crate) struct Link {
    ops: Option<mpsc::UnboundedSender<Op>>,
    outbox: Arc<Outbox>,
    pub(crate) guarantees: Guarantees,
    /// The client's label.
    pub(crate) label: String,
    /// Whether the client has no session and only views locks.
    pub(crate) is_observer: bool,
    thread: ThreadId,
    /// The names of the groups that this client is a member of.
    joined: Mutex<BTreeSet<String>>,
    /// Closed when the keeper has ended; never receives anything.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

impl Link {
    /// Starts a keeper. `connect` connects the engine, on the keeper's thread.
    pub(crate) async fn start(
        engine: &'static str,
        options: Options,
        connect: impl AsyncFnOnce() -> Result<Box<dyn Engine>, Failure> + Send + 'static,
    ) -> Result<Arc<Link>, Error> {
        let (label, is_observer) = (options.label.clone(), options.is_observer);
        let (ready, guarantees) = oneshot::channel();
        let (ops, operations) = mpsc::unbounded_channel();
        let (ending, ended) = std_mpsc::channel();
        let outbox = Arc::new(Outbox::default());
        let waker = BatchWaker::new(outbox.clone());
        let start = Start { ready, operations, ops: ops.downgrade(), waker };
        let no_thread = |source| outage(engine, "the keeper's thread could not be started", source);
        let thread = spawn(engine, options, start, connect, ending).map_err(no_thread)?;
        let gone = |_| outage(engine, "the keeper's thread ended unexpectedly", std::io::Error::other("it panicked"));
        let guarantees = guarantees.await.map_err(gone)??;
        let ended = Mutex::new(ended);
        Ok(Arc::new(Link {
            ops: Some(ops),
            outbox,
            guarantees,
            label,
            is_observer,
            thread,
            joined: Mutex::default(),
            ended,
        }))
    }

    /// Sends an operation to the keeper and waits for the reply.
    pub(crate) async fn call<T>(&self, op: impl FnOnce(Reply<T>) -> Op) -> Result<T, Error> {
        let (reply, received) = oneshot::channel();
        self.send(op(reply));
        let ended = || Error::new(ErrorKind::Lost(crate::Loss::SessionClosed), self.guarantees.engine, "do anything");
        self.outbox.receive(received).await.unwrap_or_else(|| Err(ended()))
    }

    /// Sends an operation to the keeper. Never blocks.
    pub(crate) fn send(&self, op: Op) {
        if let Some(ops) = &self.ops {
            // A keeper that has ended has closed the session, and with it every grant and wait.
            drop(ops.send(op));
        }
    }

    /// Returns the names of the groups that this client is a member of.
    pub(crate) fn joined(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // No panic can leave it inconsistent.
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ended` is closed by a task on the keeper's thread, for as long as dropping the last handle waits. Does
    /// nothing on that thread.
    pub(crate) fn wait_for_task(&self, ended: &std_mpsc::Receiver<()>) {
        if thread::current().id() != self.thread {
            let _ = ended.recv_timeout(CLOSE_TIMEOUT);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.ops.take());
        if thread::current().id() != self.thread {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            // Without a reply in time, the session ends when its TTL expires.
            let _ = ended.recv_timeout(CLOSE_TIMEOUT);
        }
    }
}

fn outage(engine: &'static str, what: &str, source: std::io::Error) -> Error {
    let kind = ErrorKind::Outage {
        what: what.to_owned(),
        may_have_taken_effect: false,
        is_retryable: true,
        source: Some(Box::new(source)),
    };
    Error::new(kind, engine, "connect")
}

/// The channels that a new keeper starts with.
struct Start {
    ready: oneshot::Sender<Result<Guarantees, Error>>,
    operations: mpsc::UnboundedReceiver<Op>,
    ops: mpsc::WeakUnboundedSender<Op>,
    waker: BatchWaker,
}

impl Start {
    /// Reports that the engine could not be connected.
    fn fail(self, error: Error) {
        // The caller may be gone.
        drop(self.ready.send(Err(error)));
    }
}

/// Connects an engine, and keeps a session on it until the last handle is gone.
async fn keep(
    engine: &'static str,
    options: Options,
    start: Start,
    connect: impl AsyncFnOnce() -> Result<Box<dyn Engine>, Failure>,
) {
    match connect().await {
        Ok(connected) => driver::keep(connected, options, start).await,
        Err(failure) => start.fail(Error::new(failure.into(), engine, "connect")),
    }
}

/// Starts the keeper's thread, which drops `ending` when it ends.
fn spawn(
    engine: &'static str,
    options: Options,
    start: Start,
    connect: impl AsyncFnOnce() -> Result<Box<dyn Engine>, Failure> + Send + 'static,
    ending: std_mpsc::Sender<()>,
) -> std::io::Result<ThreadId> {
    #[cfg(feature = "_simulation")]
    if crate::simulation::is_inside() {
        tokio::task::spawn_local(async move {
            // As on a thread, tasks that remain end with the keeper.
            tokio::task::LocalSet::new().run_until(keep(engine, options, start, connect)).await;
            drop(ending);
        });
        return Ok(thread::current().id());
    }
    let builder = thread::Builder::new().name("palisade-keeper".to_owned()).stack_size(STACK);
    let thread = builder.spawn(move || {
        run(engine, options, start, connect);
        drop(ending);
    })?;
    Ok(thread.thread().id())
}

/// The keeper's thread.
fn run(
    engine: &'static str,
    options: Options,
    start: Start,
    connect: impl AsyncFnOnce() -> Result<Box<dyn Engine>, Failure>,
) {
    match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => {
            runtime.block_on(keep(engine, options, start, connect));
            // The remaining tasks have no caller.
            runtime.shutdown_background();
        }
        Err(source) => start.fail(outage(engine, "the keeper's runtime could not be started", source)),
    }
}
