//! The keeper at work: one session after the other, and everything that handles and guards ask for meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::poll_immediate;
use palisade_core::{BadNumber, Label, RequestNo, SessionId, Token, Ttl};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_local;

use super::gate::Gates;
use super::op::{ForceRelease, OfSession, Op, Reply};
use super::rhythm::{Rhythm, Step};
use super::session::{Grant, SessionState};
use super::{FAREWELL, Start};
use crate::engine::{Engine, Failure, Guarantees, Notice, Opened, Released, Unavailable};
use crate::{BootInstant, Error, ErrorKind, Loss, Options, Watch};

/// How long to wait between two attempts when the engine does not answer.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// After how many operations renewal, and those who wait, have their turn, however much is asked for.
const TURN: usize = 128;

/// How long it looks for more to do before it goes to sleep: about as long as it takes to be woken.
const LINGER: Duration = Duration::from_micros(30);

/// Everything the keeper's tasks share.
pub(super) struct Driver<E> {
    pub(super) engine: E,
    pub(super) guarantees: Guarantees,
    pub(super) ops: mpsc::WeakUnboundedSender<Op>,
    options: Options,
    pub(super) gates: Gates,
    active: RefCell<Option<Rc<Active>>>,
    opened: Notify,
    /// Why there is no session, and will be none until somebody does something about it.
    obstacle: RefCell<Option<String>>,
    /// Ends when the client is closed, or its keeper ends; watches end with it.
    life: RefCell<Option<watch::Sender<()>>>,
}

/// The session that lives.
pub(super) struct Active {
    pub(super) state: Arc<SessionState>,
    pub(super) grants: RefCell<HashMap<Token, Arc<Grant>>>,
    /// What the engine ended before the answer that granted it was here; only while there are attempts.
    ended_early: RefCell<HashMap<Token, Loss>>,
    attempts: Cell<usize>,
    last_number: Cell<u64>,
}

/// A session's request for locks, as long as it is not settled.
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
    fn new(state: Arc<SessionState>) -> Active {
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

    /// Takes in a grant that was answered.
    pub(super) fn admit(&self, grant: &Arc<Grant>) {
        match self.ended_early.borrow_mut().remove(&grant.token) {
            Some(loss) => grant.lose(loss),
            None => drop(self.grants.borrow_mut().insert(grant.token, grant.clone())),
        }
    }

    /// How many grants it holds.
    fn held(&self) -> u64 {
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
    let Start { ready, mut operations, ops, courier } = start;
    let guarantees = engine.guarantees();
    let driver = Rc::new(Driver {
        engine,
        guarantees: guarantees.clone(),
        ops,
        options,
        gates: Gates::default(),
        active: RefCell::new(None),
        opened: Notify::new(),
        obstacle: RefCell::default(),
        life: RefCell::new(Some(watch::Sender::new(()))),
    });
    if !driver.options.is_observer {
        match driver.open().await {
            Ok(session) => drop(spawn_local(driver.clone().keep_sessions(session))),
            Err(error) => return drop(ready.send(Err(error))),
        }
    }
    if ready.send(Ok(guarantees)).is_err() {
        return driver.say_farewell().await;
    }
    let courier = Rc::new(courier);
    spawn_local(courier.clone().run());
    let (mut batch, mut begun) = (Vec::new(), 0);
    loop {
        if batch.is_empty() {
            tokio::select! {
                biased;
                count = operations.recv_many(&mut batch, TURN) => if count == 0 { break },
                () = courier.has_woken_one() => {
                    linger(&mut operations, &mut batch).await;
                    continue;
                }
            }
        }
        let is_alone = batch.len() == 1;
        begun += batch.len();
        courier.collect(|| batch.drain(..).for_each(|op| driver.clone().begin(op)));
        if begun >= TURN {
            begun = 0;
            tokio::task::yield_now().await;
        }
        if is_alone {
            linger(&mut operations, &mut batch).await;
        }
    }
    driver.say_farewell().await;
}

/// Stays awake a little: who asks alone is often answered at once, and who was just answered often asks again, and need
/// not wake a thread that is awake. Where the processor is wanted by others, the time is over when it is this thread's
/// turn again.
async fn linger(operations: &mut mpsc::UnboundedReceiver<Op>, batch: &mut Vec<Op>) {
    let began_at = std::time::Instant::now();
    let mut nobody = Context::from_waker(Waker::noop());
    while operations.poll_recv_many(&mut nobody, batch, TURN).is_pending() && began_at.elapsed() < LINGER {
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

/// Begins an operation. Most are done at once; only one that has to wait becomes a task.
fn start(operation: impl Future<Output = ()> + 'static) {
    let mut operation = Box::pin(operation);
    // If it panics, it ends alone, as a task would.
    let first_step = catch_unwind(AssertUnwindSafe(|| operation.as_mut().now_or_never()));
    if let Ok(None) = first_step {
        // It ends by itself, or with the keeper.
        drop(spawn_local(operation));
    }
}

/// A session that was opened, with what is needed to keep it.
struct Session {
    active: Rc<Active>,
    rhythm: Rhythm,
    notices: mpsc::UnboundedReceiver<Notice>,
}

impl<E: Engine> Driver<E> {
    pub(super) fn error(&self, kind: impl Into<ErrorKind>, operation: &'static str) -> Error {
        Error::new(kind.into(), self.guarantees.engine, operation)
    }

    async fn open(&self) -> Result<Session, Error> {
        let bad = |bad: BadNumber| self.error(ErrorKind::Misuse(crate::Misuse::Number(bad)), "open a session");
        let ttl = Ttl::from_ms(u64::try_from(self.options.ttl.as_millis()).unwrap_or(u64::MAX)).map_err(bad)?;
        let asked_at = BootInstant::now();
        let opened = self.engine.open_session(ttl, Label::new(&self.options.label)).await;
        let Opened { session, notices, lifeline } =
            opened.map_err(|failure| self.error(failure, "open a session"))?;
        // In the engine's own unit: it knows no parts of it.
        let rhythm = Rhythm::new(Duration::from_millis(ttl.as_ms()), self.options.drift(), asked_at);
        let state = Arc::new(SessionState::new(session, rhythm.safe_until(), lifeline));
        let active = Rc::new(Active::new(state));
        *self.active.borrow_mut() = Some(active.clone());
        *self.obstacle.borrow_mut() = None;
        self.opened.notify_waiters();
        tracing::debug!(engine = self.guarantees.engine, session = session.get(), "session opened");
        Ok(Session { active, rhythm, notices })
    }

    /// One session after the other, until the client is closed.
    async fn keep_sessions(self: Rc<Self>, mut session: Session) {
        loop {
            let loss = self.keep_session(&mut session).await;
            if self.is_gone() {
                return;
            }
            tracing::warn!(engine = self.guarantees.engine, session = session.active.state.id.get(), %loss, "session lost");
            metrics::counter!("palisade_session_losses_total", "engine" => self.guarantees.engine).increment(1);
            let held = session.active.held();
            metrics::counter!("palisade_losses_total", "engine" => self.guarantees.engine).increment(held);
            session.active.state.lose(loss);
            *self.active.borrow_mut() = None;
            spawn_local(self.clone().close_lost(session.active.state.clone()));
            session = loop {
                match self.open().await {
                    Ok(session) => break session,
                    Err(error) => {
                        tracing::debug!(%error, "no new session yet");
                        self.note_obstacle(&error);
                    }
                }
                tokio::time::sleep(RETRY).await;
                if self.is_gone() {
                    return;
                }
            };
            if self.is_gone() {
                return self.say_farewell().await;
            }
        }
    }

    /// Whoever waits for a session is told when none can be had.
    fn note_obstacle(&self, error: &Error) {
        let what = match error.kind() {
            ErrorKind::Outage { what, is_retryable: false, .. } | ErrorKind::Denied { what } => Some(what.clone()),
            _ => None,
        };
        *self.obstacle.borrow_mut() = what;
        self.opened.notify_waiters();
    }

    /// What is in the way of a session, as soon as it is known that something is.
    pub(super) async fn obstacle(&self) -> Error {
        loop {
            let opened = self.opened.notified();
            if let Some(what) = self.obstacle.borrow().clone() {
                return self.error(Failure::from(Unavailable::new(what).without_effect().permanent()), "acquire");
            }
            opened.await;
        }
    }

    /// Keeps one session until it is lost, and says why.
    async fn keep_session(self: &Rc<Self>, session: &mut Session) -> Loss {
        let state = session.active.state.clone();
        let (answers, mut answered) = mpsc::unbounded_channel();
        loop {
            let now = BootInstant::now();
            let step = session.rhythm.step(now);
            let safe_until = session.rhythm.safe_until();
            if state.update(safe_until, session.rhythm.is_in_jeopardy(now)) {
                tracing::warn!(session = state.id.get(), standing = ?state.standing(), "session's standing changed");
            }
            let ended = match step {
                Step::Lose => return Loss::not_kept_alive(state.due(), safe_until),
                Step::Renew => {
                    spawn_local(self.clone().renew(state.clone(), now, answers.clone()));
                    None
                }
                Step::Wait(until) => {
                    state.set_due(until);
                    tokio::select! {
                        () = until.reached() => None,
                        Some((sent_at, answer)) = answered.recv() => match answer {
                            Ok(()) => {
                                session.rhythm.confirmed(sent_at, BootInstant::now());
                                None
                            }
                            Err(Failure::SessionEnded) => Some(Loss::Expired),
                            Err(_) => {
                                session.rhythm.failed(BootInstant::now());
                                None
                            }
                        },
                        loss = state.watch(|| state.noted_loss()) => Some(loss),
                        notice = session.notices.recv() => self.heed(&session.active, notice),
                    }
                }
            };
            match (ended, Loss::not_kept_alive(state.due(), safe_until)) {
                // The engine ended it because this process was paused.
                (Some(Loss::Expired), paused @ Loss::Paused { .. }) => return paused,
                (Some(loss), _) => return loss,
                (None, _) => {}
            }
        }
    }

    async fn renew(
        self: Rc<Self>,
        state: Arc<SessionState>,
        sent_at: BootInstant,
        answers: mpsc::UnboundedSender<(BootInstant, Result<(), Failure>)>,
    ) {
        let answer = self.engine.keep_alive(state.id).await;
        let lag = BootInstant::now().since(sent_at);
        metrics::histogram!("palisade_renew_lag_seconds", "engine" => self.guarantees.engine)
            .record(lag.as_secs_f64());
        if let Err(failure) = &answer {
            tracing::warn!(session = state.id.get(), error = %failure, "keep-alive failed");
        }
        // An answer that comes after the session was lost changes nothing.
        drop(answers.send((sent_at, answer)));
    }

    /// Notes what the engine has ended; returns the loss of the whole session.
    fn heed(&self, active: &Active, notice: Option<Notice>) -> Option<Loss> {
        match notice {
            Some(Notice::GrantEnded { token, how }) => {
                // What the client has closed itself ends with its session, and for that reason.
                let loss = active.state.noted_loss().unwrap_or_else(|| Loss::from_ending(&how));
                let grant = active.grants.borrow_mut().remove(&token);
                if let Some(grant) = grant {
                    tracing::warn!(token = token.get(), %loss, "lock lost");
                    metrics::counter!("palisade_losses_total", "engine" => self.guarantees.engine).increment(1);
                    grant.lose(loss);
                } else if active.attempts.get() > 0 {
                    active.ended_early.borrow_mut().insert(token, loss);
                }
                None
            }
            Some(Notice::SessionEnded(how)) => Some(Loss::from_ending(&palisade_core::Ending::SessionEnded(how))),
            Some(Notice::DataLost { what }) => Some(Loss::DataLost { what }),
            None => Some(Loss::Expired),
        }
    }

    /// A session that was given up may live on at the engine: end it, so that others need not wait for its TTL.
    async fn close_lost(self: Rc<Self>, state: Arc<SessionState>) {
        let over_at = BootInstant::now() + self.options.ttl;
        while !over_at.has_passed() && self.engine.close_session(state.id).await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Whether the client was closed.
    pub(super) fn is_gone(&self) -> bool {
        self.life.borrow().is_none()
    }

    /// The session that lives, as soon as there is one; `None` once the client was closed.
    pub(super) async fn active(&self) -> Option<Rc<Active>> {
        loop {
            let opened = self.opened.notified();
            if self.is_gone() {
                return None;
            }
            if let Some(active) = self.active.borrow().clone() {
                return Some(active);
            }
            opened.await;
        }
    }

    /// Starts an operation: a future for each kind, as one for all would be as large as the largest.
    fn begin(self: Rc<Self>, op: Op) {
        match op {
            Op::Acquire(ask, reply) => start(self.acquire(ask, reply)),
            Op::Release(grant, reply) => start(self.release(grant, reply)),
            Op::Publish(grant, value, reply) => start(async move {
                let (session, lock) = (grant.session.id, grant.locks[0].clone());
                let published = self.engine.publish(session, lock, grant.token, value);
                self.answer(reply, published, "publish a value for", grant.locks[0].as_str()).await;
            }),
            Op::Sign(grant, lock, reply) => start(async move {
                let signed = self.engine.sign(grant.session.id, lock.clone(), grant.token);
                self.answer(reply, signed, "sign the token of", lock.as_str()).await;
            }),
            Op::ForceRelease(ForceRelease { lock, only, by, reason }, reply) => start(async move {
                let forced = self.engine.force_release(lock.clone(), only, by, reason);
                self.answer(reply, forced, "force the release of", lock.as_str()).await;
            }),
            Op::Resize(lock, limit, reply) => start(async move {
                self.answer(reply, self.engine.resize(lock.clone(), limit), "resize", lock.as_str()).await;
            }),
            Op::RaiseTokens(above, reply) => start(async move {
                self.answer(reply, self.engine.raise_tokens(above), "raise tokens above", &above.to_string()).await;
            }),
            Op::Inspect(lock, reply) => start(async move {
                self.answer(reply, self.engine.inspect(lock.clone()), "inspect", lock.as_str()).await;
            }),
            Op::List(prefix, reply) => start(async move {
                self.answer(reply, self.engine.list(prefix.clone()), "list locks below", &prefix).await;
            }),
            Op::Watch(prefix, reply) => start(async move {
                let life = self.life.borrow().as_ref().map(watch::Sender::subscribe);
                let watch = async {
                    let life = life.ok_or(Failure::SessionEnded)?;
                    Ok(Watch::new(self.engine.watch(prefix.clone()).await?, life))
                };
                self.answer(reply, watch, "watch locks below", &prefix).await;
            }),
            Op::OfSession(session, what, reply) => start(async move {
                let operation = what.operation();
                self.answer(reply, self.do_for(session, what), operation, &session.to_string()).await;
            }),
            Op::Leave(reply) => start(async move { self.leave(reply).await }),
            Op::Close(reply) => start(async move { self.close(reply).await }),
        }
    }

    /// Asks the engine, unless the client was closed, and passes on what it says.
    async fn answer<T>(
        &self,
        reply: Reply<T>,
        ask: impl Future<Output = Result<T, Failure>>,
        operation: &'static str,
        on: &str,
    ) {
        let answer = match self.is_gone() {
            true => Err(ErrorKind::Lost(Loss::SessionClosed)),
            false => ask.await.map_err(ErrorKind::from),
        };
        // If nobody waits for the answer any more, there is nothing to undo.
        drop(reply.send(answer.map_err(|kind| self.error(kind, operation).on(on))));
    }

    async fn do_for(&self, session: SessionId, what: OfSession) -> Result<(), Failure> {
        match what {
            OfSession::KeepAlive => self.engine.keep_alive(session).await,
            OfSession::Close => self.engine.close_session(session).await,
            OfSession::Release(lock, token) => {
                // Refused where a process keeps the session: it would not be told, and go on without the lock.
                self.engine.keep_alive(session).await?;
                match self.engine.release(session, lock, token).await? {
                    Released::Now => Ok(()),
                    Released::Before => Err(Failure::SessionEnded),
                }
            }
        }
    }

    /// Gives a grant back. Tried until it is done or the session is over, whoever waits for the first answer.
    async fn release(self: Rc<Self>, grant: Arc<Grant>, mut reply: Option<Reply<()>>) {
        let name = grant.locks[0].as_str();
        loop {
            let answer = match grant.noted_loss() {
                Some(Loss::Released) => Ok(()),
                Some(loss) => Err(ErrorKind::Lost(loss)),
                None => self.try_release(&grant).await,
            };
            let again = match &answer {
                Ok(()) => self.forget(&grant, Loss::Released),
                Err(ErrorKind::Lost(loss)) => self.forget(&grant, loss.clone()),
                Err(ErrorKind::Outage { .. } | ErrorKind::Denied { .. }) => true,
                Err(ErrorKind::Misuse(_) | ErrorKind::Unsupported { .. } | ErrorKind::NotSealed { .. }) => false,
            };
            if let Some(reply) = reply.take() {
                drop(reply.send(answer.map_err(|kind| self.error(kind, "release").on(name))));
            }
            if !again {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_release(&self, grant: &Grant) -> Result<(), ErrorKind> {
        let was_sent = grant.note_release();
        let mut released = pin!(self.engine.release(grant.session.id, grant.locks[0].clone(), grant.token));
        let answer = match poll_immediate(released.as_mut()).await {
            Some(answer) => answer,
            None => tokio::select! {
                answer = released => answer,
                loss = grant.session.watch(|| grant.session.noted_loss()) => return Err(ErrorKind::Lost(loss)),
            },
        };
        match answer {
            Ok(Released::Now) => Ok(()),
            // By an earlier attempt of ours, unless somebody says otherwise.
            Ok(Released::Before) if was_sent => match grant.noted_loss() {
                None | Some(Loss::Released) => Ok(()),
                Some(loss) => Err(ErrorKind::Lost(loss)),
            },
            Ok(Released::Before) => {
                // The notice that says how may be on its way.
                let noted = grant.session.watch(|| grant.noted_loss());
                match tokio::time::timeout(RETRY, noted).await.unwrap_or(Loss::Expired) {
                    Loss::Released => Ok(()),
                    loss => Err(ErrorKind::Lost(loss)),
                }
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Nothing is left to be done about a grant, not even again.
    fn forget(&self, grant: &Grant, loss: Loss) -> bool {
        grant.lose(loss);
        if let Some(active) = &*self.active.borrow() {
            active.grants.borrow_mut().remove(&grant.token);
        }
        false
    }

    /// Ends the client, and leaves its session to itself.
    async fn leave(&self, reply: Reply<SessionId>) {
        let Some(active) = self.active().await else {
            return drop(reply.send(Err(self.error(ErrorKind::Lost(Loss::SessionClosed), "leave the session"))));
        };
        let session = active.state.id;
        let left = self.engine.leave_session(session).await;
        if left.is_ok() {
            drop(self.life.borrow_mut().take());
            drop(self.active.borrow_mut().take());
            active.state.lose(Loss::Left);
        }
        drop(reply.send(left.map(|()| session).map_err(|failure| self.error(failure, "leave the session"))));
    }

    async fn close(&self, reply: Reply<()>) {
        drop(self.life.borrow_mut().take());
        self.opened.notify_waiters();
        let active = self.active.borrow_mut().take();
        let answer = match active {
            Some(active) => {
                active.state.lose(Loss::SessionClosed);
                let closed = tokio::time::timeout(FAREWELL, self.engine.close_session(active.state.id)).await;
                closed.unwrap_or_else(|_| {
                    Err(Unavailable::new("the engine did not answer; the session ends by its TTL").into())
                })
            }
            None => Ok(()),
        };
        drop(reply.send(answer.map_err(|failure| self.error(failure, "close the session"))));
    }

    async fn say_farewell(&self) {
        drop(self.life.borrow_mut().take());
        let active = self.active.borrow_mut().take();
        if let Some(active) = active {
            active.state.lose(Loss::SessionClosed);
            // If the engine does not answer in time, the session expires by itself.
            drop(tokio::time::timeout(FAREWELL, self.engine.close_session(active.state.id)).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::oneshot;

    use super::*;

    fn on_the_keepers_runtime(test: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn an_operation_is_begun_at_once_and_ends_when_what_it_waits_for_comes() {
        on_the_keepers_runtime(async {
            let ((go, may_go), (reply, answer)) = (oneshot::channel(), oneshot::channel());
            let has_begun = Rc::new(Cell::new(false));
            let begun = has_begun.clone();
            start(async move {
                begun.set(true);
                may_go.await.expect("it is told to go on");
                reply.send(()).expect("somebody waits");
            });
            assert!(has_begun.get());
            go.send(()).expect("it waits");
            answer.await.expect("it has ended");
        });
    }

    #[test]
    fn an_operation_that_panics_ends_alone() {
        on_the_keepers_runtime(async {
            let (reply, answer) = oneshot::channel::<()>();
            start(async move {
                let _reply = reply;
                panic!("an engine has an error");
            });
            answer.await.expect_err("there is no answer");
        });
    }
}
