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
use crate::engine::{Engine, Guarantees};
use crate::{Error, ErrorKind, Loss, Options};

/// The pause between two attempts while the engine does not answer.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// The most operations that start before renewals and waiting tasks run.
const BATCH: usize = 128;

/// How long the keeper spins before it sleeps: about as long as a wake-up takes.
const SPIN: Duration = Duration::from_micros(30);

/// Everything the keeper's tasks share.
pub(super) struct Driver<E> {
    pub(super) engine: E,
    pub(super) guarantees: Guarantees,
    pub(super) ops: mpsc::WeakUnboundedSender<Op>,
    pub(super) options: Options,
    pub(super) queues: LocalQueues,
    pub(super) active: RefCell<Option<Rc<Active>>>,
    /// A session was opened, cannot be opened, or never will be.
    pub(super) opened: Notify,
    /// Why no session can be opened until the operator changes something.
    pub(super) open_error: RefCell<Option<String>>,
    /// Dropped when the client is closed, or its keeper ends; watches end with it.
    pub(super) life: RefCell<Option<watch::Sender<()>>>,
}

/// The current session.
pub(super) struct Active {
    pub(super) state: Arc<SessionState>,
    pub(super) grants: RefCell<HashMap<Token, Arc<Grant>>>,
    /// Grants that the engine ended before the reply to their acquire arrived; kept while acquires are pending.
    pub(super) ended_early: RefCell<HashMap<Token, Loss>>,
    pub(super) attempts: Cell<usize>,
    last_number: Cell<u64>,
}

/// An acquire whose outcome is not known yet.
pub(super) struct Attempt {
    pub(super) active: Rc<Active>,
    pub(super) number: RequestNo,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Active { attempts, ended_early, .. } = &*self.active;
        attempts.set(attempts.get() - 1);
        if attempts.get() == 0 {
            ended_early.borrow_mut().clear();
        }
    }
}

impl Active {
    pub(super) fn new(state: Arc<SessionState>) -> Active {
        Active {
            state,
            grants: RefCell::default(),
            ended_early: RefCell::default(),
            attempts: Cell::new(0),
            last_number: Cell::new(0),
        }
    }

    pub(super) fn attempt(self: Rc<Self>) -> Attempt {
        self.attempts.set(self.attempts.get() + 1);
        let number = self.next_number();
        Attempt { active: self, number }
    }

    /// Registers a grant, or ends it if the engine ended it meanwhile.
    pub(super) fn admit(&self, grant: &Arc<Grant>) {
        match self.ended_early.borrow_mut().remove(&grant.token) {
            Some(loss) => grant.lose(loss),
            None => drop(self.grants.borrow_mut().insert(grant.token, grant.clone())),
        }
    }

    /// The number of grants.
    pub(super) fn held(&self) -> u64 {
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
pub(super) async fn keep<E: Engine>(engine: E, options: Options, start: Start) {
    let Start { ready, mut operations, ops, waker } = start;
    let guarantees = engine.guarantees();
    let driver = Rc::new(Driver {
        engine,
        guarantees: guarantees.clone(),
        ops,
        options,
        queues: LocalQueues::default(),
        active: RefCell::new(None),
        opened: Notify::new(),
        open_error: RefCell::default(),
        life: RefCell::new(Some(watch::Sender::new(()))),
    });
    if !driver.options.is_observer {
        match driver.open().await {
            Ok(session) => drop(spawn_local(driver.clone().keep_sessions(session))),
            Err(error) => return drop(ready.send(Err(error))),
        }
    }
    if ready.send(Ok(guarantees)).is_err() {
        return driver.close_quietly().await;
    }
    let waker = Rc::new(waker);
    spawn_local(waker.clone().run());
    let (mut batch, mut begun) = (Vec::new(), 0);
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
        let is_alone = batch.len() == 1;
        begun += batch.len();
        waker.collect(|| batch.drain(..).for_each(|op| driver.clone().begin(op)));
        if begun >= BATCH {
            begun = 0;
            tokio::task::yield_now().await;
        }
        if is_alone {
            spin(&mut operations, &mut batch).await;
        }
    }
    driver.close_quietly().await;
}

/// Waits briefly for more operations. A lone caller usually sends its next request within microseconds of the last reply.
/// Spinning saves it a wake-up. On a busy processor the time has passed when this thread runs again.
async fn spin(operations: &mut mpsc::UnboundedReceiver<Op>, batch: &mut Vec<Op>) {
    let began_at = std::time::Instant::now();
    let mut context = Context::from_waker(Waker::noop());
    while operations.poll_recv_many(&mut context, batch, BATCH).is_pending() && began_at.elapsed() < SPIN {
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

impl<E: Engine> Driver<E> {
    pub(super) fn error(&self, kind: impl Into<ErrorKind>, operation: &'static str) -> Error {
        Error::new(kind.into(), self.guarantees.engine, operation)
    }

    /// Whether the client was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.life.borrow().is_none()
    }

    /// Waits for the current session; `None` once the client is closed.
    pub(super) async fn active(&self) -> Option<Rc<Active>> {
        loop {
            let opened = self.opened.notified();
            if self.is_closed() {
                return None;
            }
            if let Some(active) = self.active.borrow().clone() {
                return Some(active);
            }
            opened.await;
        }
    }
}
