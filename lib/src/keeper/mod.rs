//! The keeper: a thread of its own that keeps the session alive and does all of the engine's I/O.
//!
//! An application's futures only send it operations and wait for answers. That is why an application that blocks its
//! async runtime keeps its locks, and why dropping any future is safe: an answer that nobody waits for is undone here.

mod acquire;
mod drive;
mod gate;
mod op;
mod outbox;
mod rhythm;
mod session;

use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Engine, Guarantees};
use crate::{Error, ErrorKind, Options};

use outbox::{Courier, Outbox};

pub(crate) use op::{Ask, AskPatience, ForceRelease, OfSession, Op, Reply};
pub(crate) use session::Grant;

/// How long the end of the last handle waits for the keeper to close the session.
const FAREWELL: Duration = Duration::from_secs(2);

/// The way from handles and guards to their keeper. When the last of them is dropped, the keeper closes the session
/// and ends.
pub(crate) struct Link {
    ops: Option<mpsc::UnboundedSender<Op>>,
    outbox: Arc<Outbox>,
    pub(crate) guarantees: Guarantees,
    /// What this client is called.
    pub(crate) label: String,
    /// Whether it has no session.
    pub(crate) is_observer: bool,
    thread: ThreadId,
    /// Says nothing, and is closed when the keeper has ended.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

impl Link {
    /// Starts a keeper: on its thread, `connect` connects the engine and has a session kept on it.
    pub(crate) async fn start(
        engine: &'static str,
        options: Options,
        connect: impl AsyncFnOnce(Options, Start) + Send + 'static,
    ) -> Result<Arc<Link>, Error> {
        let (label, is_observer) = (options.label.clone(), options.is_observer);
        let (ready, is_ready) = oneshot::channel();
        let (ops, operations) = mpsc::unbounded_channel();
        let (ending, ended) = std_mpsc::channel();
        let outbox = Arc::new(Outbox::default());
        let courier = Courier::new(outbox.clone());
        let start = Start { ready, operations, ops: ops.downgrade(), courier };
        let thread = thread::Builder::new().name("palisade-keeper".to_owned()).spawn(move || {
            run(engine, options, start, connect);
            drop(ending);
        });
        let no_thread = |source| outage(engine, "the keeper's thread could not be started", source);
        let thread = thread.map_err(no_thread)?.thread().id();
        let gone = |_| outage(engine, "the keeper's thread ended unexpectedly", std::io::Error::other("it panicked"));
        let guarantees = is_ready.await.map_err(gone)??;
        let ended = Mutex::new(ended);
        Ok(Arc::new(Link { ops: Some(ops), outbox, guarantees, label, is_observer, thread, ended }))
    }

    /// Asks the keeper for something and waits for the answer.
    pub(crate) async fn ask<T>(&self, op: impl FnOnce(Reply<T>) -> Op) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(op(reply));
        let ended = || Error::new(ErrorKind::Lost(crate::Loss::SessionClosed), self.guarantees.engine, "do anything");
        self.outbox.receive(answer).await.unwrap_or_else(|| Err(ended()))
    }

    /// Tells the keeper to do something, without an answer. Never blocks.
    pub(crate) fn send(&self, op: Op) {
        if let Some(ops) = &self.ops {
            // A keeper that has ended has closed the session, and with it whatever this was about.
            drop(ops.send(op));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.ops.take());
        if thread::current().id() != self.thread {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            // Either way there is nothing left to do: the session is closed, or it expires.
            let _ = ended.recv_timeout(FAREWELL);
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

/// What a keeper needs to begin.
pub(crate) struct Start {
    ready: oneshot::Sender<Result<Guarantees, Error>>,
    operations: mpsc::UnboundedReceiver<Op>,
    ops: mpsc::WeakUnboundedSender<Op>,
    courier: Courier,
}

impl Start {
    /// Reports that there is no engine to keep a session on.
    pub(crate) fn fail(self, error: Error) {
        // Nobody waits for the connection any more: there is nothing to tell.
        drop(self.ready.send(Err(error)));
    }

    /// Keeps a session on this engine until the last handle is gone.
    pub(crate) async fn keep<E: Engine>(self, engine: E, options: Options) {
        drive::keep(engine, options, self).await;
    }
}

/// The keeper's thread.
fn run(engine: &'static str, options: Options, start: Start, connect: impl AsyncFnOnce(Options, Start)) {
    match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => {
            runtime.block_on(connect(options, start));
            // Whatever still runs in the background has nobody left to run for.
            runtime.shutdown_background();
        }
        Err(source) => start.fail(outage(engine, "the keeper's runtime could not be started", source)),
    }
}
