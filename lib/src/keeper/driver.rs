//! The keeper's main loop, and the state that its tasks share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use palisade_core::{RequestNo, Token};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_local;

use super::Start;
use super::local_queue::LocalQueues;
use super::op::Op;
use super::session::{Grant, SessionState};
use super::sessions::OpenError;
use crate::engine::{Engine, Guarantees};
use crate::{Error, ErrorKind, Loss, Options};

/// The pause between two attempts while the engine does not answer.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// The most operations that start before the keeper yields to renewals and waiting tasks.
const BATCH: usize = 128;

/// How long the keeper polls for the next operation before it sleeps: about as long as a wake-up takes.
const SPIN: Duration = Duration::from_micros(30);

/// Everything the keeper's tasks share.
pub(super) struct Driver {
    pub(super) engine: Box<dyn Engine>,
    pub(super) guarantees: Guarantees,
    pub(super) ops: mpsc::WeakUnboundedSender<Op>,
    pub(super) options: Options,
    pub(super) queues: LocalQueues,
    pub(super) current: RefCell<Option<Rc<CurrentSession>>>,
    /// Notified when a session was opened or cannot be opened, and when the client is closed.
    pub(super) opened: Notify,
    /// Why the last attempt to open a session failed; `None` if it did not.
    pub(super) open_error: RefCell<Option<OpenError>>,
    /// Dropped when the client is closed or its keeper ends. Watches subscribe to it and end with it.
    pub(super) open_client: RefCell<Option<watch::Sender<()>>>,
}

/// The current session.
pub(super) struct CurrentSession {
    pub(super) state: Arc<SessionState>,
    pub(super) grants: RefCell<HashMap<Token, Arc<Grant>>>,
    /// Grants that the engine ended before the reply to their acquire arrived; kept while acquires are pending.
    pub(super) ended_early: RefCell<HashMap<Token, Loss>>,
    pub(super) pending_acquires: Cell<usize>,
    last_number: Cell<u64>,
}

/// An acquire whose outcome is not known yet.
pub(super) struct PendingAcquire {
    pub(super) session: Rc<CurrentSession>,
    pub(super) number: RequestNo,
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        let CurrentSession { pending_acquires, ended_early, .. } = &*self.session;
        pending_acquires.set(pending_acquires.get() - 1);
        if pending_acquires.get() == 0 {
            ended_early.borrow_mut().clear();
        }
    }
}

impl CurrentSession {
    pub(super) fn new(state: Arc<SessionState>) -> CurrentSession {
        CurrentSession {
            state,
            grants: RefCell::default(),
            ended_early: RefCell::default(),
            pending_acquires: Cell::new(0),
            last_number: Cell::new(0),
        }
    }

    pub(super) fn begin_acquire(self: Rc<Self>) -> PendingAcquire {
        self.pending_acquires.set(self.pending_acquires.get() + 1);
        let number = self.next_number();
        PendingAcquire { session: self, number }
    }

    /// Registers a grant, or ends it if the engine ended it meanwhile.
    pub(super) fn add_grant(&self, grant: &Arc<Grant>) {
        match self.ended_early.borrow_mut().remove(&grant.token) {
            Some(loss) => grant.lose(loss),
            None => drop(self.grants.borrow_mut().insert(grant.token, grant.clone())),
        }
    }

    pub(super) fn grant_count(&self) -> u64 {
        self.grants.borrow().len() as u64
    }

    fn next_number(&self) -> RequestNo {
        self.last_number.set(self.last_number.get() + 1);
        match RequestNo::new(self.last_number.get()) {
            Ok(number) => number,
            Err(_) => unreachable!("numbers are counted up from 1"),
        }
    }
}

/// Keeps a session on this engine until the last handle is gone.
pub(super) async fn keep(engine: Box<dyn Engine>, options: Options, start: Start) {
    let Start { ready, mut operations, ops, waker } = start;
    let guarantees = engine.guarantees();
    let driver = Rc::new(Driver {
        engine,
        guarantees: guarantees.clone(),
        ops,
        options,
        queues: LocalQueues::default(),
        current: RefCell::new(None),
        opened: Notify::new(),
        open_error: RefCell::default(),
        open_client: RefCell::new(Some(watch::Sender::new(()))),
    });
    if !driver.options.is_observer {
        match driver.open().await {
            Ok(session) => drop(spawn_local(driver.clone().keep_sessions(session))),
            Err(error) => return drop(ready.send(Err(error))),
        }
    }
    if ready.send(Ok(guarantees)).is_err() {
        return driver.close_without_caller().await;
    }
    let waker = Rc::new(waker);
    spawn_local(waker.clone().run());
    let (mut batch, mut begun_since_yield) = (Vec::new(), 0);
    loop {
        if batch.is_empty() {
            tokio::select! {
                biased;
                count = operations.recv_many(&mut batch, BATCH) => if count == 0 { break },
                () = waker.has_woken_one() => {
                    spin(&mut operations, &mut batch).await;
                    continue;
                }
            }
        }
        begun_since_yield += batch.len();
        let woken = waker.collect(|| batch.drain(..).for_each(|op| driver.clone().begin(op)));
        if begun_since_yield >= BATCH {
            begun_since_yield = 0;
            tokio::task::yield_now().await;
        }
        // A caller that still waits for its reply sends no operation.
        if woken == 1 {
            spin(&mut operations, &mut batch).await;
        }
    }
    driver.close_without_caller().await;
}

/// Waits briefly for more operations. A lone caller usually sends its next request within microseconds of the last reply.
/// Spinning saves it a wake-up. On a busy processor other threads run first, and the loop then ends after one round.
async fn spin(operations: &mut mpsc::UnboundedReceiver<Op>, batch: &mut Vec<Op>) {
    #[cfg(feature = "_simulation")]
    if crate::simulation::is_inside() {
        return;
    }
    let began_at = std::time::Instant::now();
    let mut context = Context::from_waker(Waker::noop());
    while operations.poll_recv_many(&mut context, batch, BATCH).is_pending() && began_at.elapsed() < SPIN {
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

impl Driver {
    pub(super) fn error(&self, kind: impl Into<ErrorKind>, operation: &'static str) -> Error {
        Error::new(kind.into(), self.guarantees.engine, operation)
    }

    /// Whether the client was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.open_client.borrow().is_none()
    }

    /// Waits for the current session; `None` once the client is closed.
    pub(super) async fn session(&self) -> Option<Rc<CurrentSession>> {
        loop {
            let opened = self.opened.notified();
            if self.is_closed() {
                return None;
            }
            if let Some(session) = self.current.borrow().clone() {
                return Some(session);
            }
            opened.await;
        }
    }
}
