//! An acquire on the keeper's thread. The keeper sends it, delivers the grant, and cancels it when its caller is gone.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{OptionFuture, poll_immediate};
use palisade_core::{Acquire, Caller, Patience, Reentry, Token};

use super::driver::{CurrentSession, Driver, PendingAcquire, RETRY};
use super::local_queue::Turn;
use super::op::{AcquireOp, Delivered, Reply, Wait};
use super::session::Grant;
use crate::engine::{Acquired, Cancelled, Failure, Order};
use crate::time::{Instant, timeout};
use crate::{Error, ErrorKind, Loss, Standing};

const OPERATION: &str = "acquire";

/// Why the keeper stops waiting for a turn or for the engine.
enum WaitEnd {
    /// The engine replied.
    Replied(Result<Acquired, Failure>),
    /// The caller's future was dropped.
    Abandoned,
    /// The caller's deadline has passed.
    TimedOut,
    /// The session was lost.
    Lost(Loss),
}

/// The outcome of an acquire.
enum Outcome {
    /// A grant, or `None` if there is none and none can follow.
    Settled(Option<Delivered>),
    /// An error, or `None` for a time-out. The engine may still grant the acquire, so the keeper cancels it after it has
    /// answered the caller.
    Unsettled(Option<Error>, PendingAcquire),
}

impl Driver {
    pub(super) async fn acquire(self: Rc<Self>, op: AcquireOp, mut reply: Reply<Option<Delivered>>) {
        let began_at = Instant::now();
        let deadline = match op.wait {
            Wait::Within(wait) => began_at.checked_add(wait),
            Wait::No | Wait::Forever => None,
        };
        let (outcome, unsettled) = match self.grant(&op, deadline, &mut reply).await {
            Ok(Outcome::Settled(delivered)) => (Ok(delivered), None),
            Ok(Outcome::Unsettled(error, pending)) => (error.map_or(Ok(None), Err), Some(pending)),
            Err(error) => (Err(error), None),
        };
        if let Ok(Some(_)) = &outcome {
            let engine = self.guarantees.engine;
            metrics::counter!("palisade_grants_total", "engine" => engine).increment(1);
            metrics::histogram!("palisade_wait_seconds", "engine" => engine).record(began_at.elapsed().as_secs_f64());
        }
        // A grant whose caller is gone releases itself when it is dropped.
        drop(reply.send(outcome));
        if let Some(pending) = unsettled {
            self.cancel_or_release(&pending, &op).await;
        }
    }

    /// Requests the locks until the engine grants or refuses them, the deadline passes, or the caller is gone.
    async fn grant(
        &self,
        op: &AcquireOp,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Outcome, Error> {
        let lost = |loss| Err(self.error(ErrorKind::Lost(loss), OPERATION).on(op.names()));
        let session = self.session_in_time(op.wait, deadline, reply).await.map_err(|error| error.on(op.names()))?;
        let Some(session) = session else {
            return if self.is_closed() { lost(Loss::SessionClosed) } else { Ok(Outcome::Settled(None)) };
        };
        let _turn = match self.turn(&session, op, deadline, reply).await {
            Ok(turn) => turn,
            Err(WaitEnd::Lost(loss)) => return lost(loss),
            Err(_) => return Ok(Outcome::Settled(None)),
        };
        let pending = session.begin_acquire();
        // Whether any request so far may have been granted or queued.
        let mut may_be_granted = false;
        loop {
            match self.call_engine(&pending, op, deadline, reply).await {
                WaitEnd::Replied(Ok(Acquired::Granted { token })) => {
                    return self.deliver(&pending.session, op, token).await.map(Outcome::Settled);
                }
                WaitEnd::Replied(Ok(Acquired::Busy)) => return Ok(Outcome::Settled(None)),
                WaitEnd::Replied(Err(Failure::SessionEnded)) => return lost(self.loss_of(&pending.session).await),
                WaitEnd::Lost(loss) => return lost(loss),
                WaitEnd::Abandoned => {
                    self.cancel_or_release(&pending, op).await;
                    return Ok(Outcome::Settled(None));
                }
                // The engine may have granted it just before the cancel arrived. If it replies soon, deliver that grant.
                WaitEnd::TimedOut => match timeout(RETRY, self.cancel(&pending)).await {
                    Ok(Some(token)) => return self.deliver(&pending.session, op, token).await.map(Outcome::Settled),
                    Ok(None) => return Ok(Outcome::Settled(None)),
                    Err(_) => return Ok(Outcome::Unsettled(None, pending)),
                },
                WaitEnd::Replied(Err(Failure::Unavailable(why))) if why.is_retryable && op.wait != Wait::No => {
                    tracing::debug!(lock = op.names(), error = %why, "retrying the acquire");
                    may_be_granted |= why.may_have_taken_effect;
                    if deadline.is_some_and(|at| Instant::now() + RETRY >= at) {
                        let error = self.error(Failure::from(why), OPERATION).on(op.names());
                        return Ok(Outcome::Unsettled(Some(error), pending));
                    }
                    crate::time::sleep(RETRY).await;
                }
                WaitEnd::Replied(Err(failure)) => {
                    may_be_granted |= failure.may_have_taken_effect();
                    if !may_be_granted {
                        return Err(self.error(failure, OPERATION).on(op.names()));
                    }
                    // If a denied acquire can be undone at once, the error says that nothing has changed.
                    if !failure.is_retryable() && timeout(RETRY, self.cancel_or_release(&pending, op)).await.is_ok() {
                        return Err(self.error(failure.undone(), OPERATION).on(op.names()));
                    }
                    let error = self.error(failure.possibly_applied(), OPERATION).on(op.names());
                    return Ok(Outcome::Unsettled(Some(error), pending));
                }
            }
        }
    }

    /// Waits for the session, at most until the caller's deadline. `None` if the caller or the client is gone.
    async fn session_in_time(
        &self,
        wait: Wait,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Option<Rc<CurrentSession>>, Error> {
        if let Some(ready) = poll_immediate(pin!(self.session())).await {
            return Ok(ready);
        }
        tokio::select! {
            biased;
            session = self.session() => Ok(session),
            error = self.open_failed(wait) => Err(error),
            () = reply.closed() => Ok(None),
            Some(()) = OptionFuture::from(deadline.map(crate::time::sleep_until)) => Err(self.no_session()),
        }
    }

    /// Waits until no earlier task of this client requests these locks, if the engine has no fair queue. A `try_acquire`
    /// does not wait.
    async fn turn(
        &self,
        session: &CurrentSession,
        op: &AcquireOp,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Option<Turn>, WaitEnd> {
        if self.guarantees.order == Order::Fair || op.wait == Wait::No {
            return Ok(None);
        }
        tokio::select! {
            biased;
            turn = self.queues.turn(op.locks()) => Ok(Some(turn)),
            loss = session.state.watch(|| session.state.noted_loss()) => Err(WaitEnd::Lost(loss)),
            () = reply.closed() => Err(WaitEnd::Abandoned),
            Some(()) = OptionFuture::from(deadline.map(crate::time::sleep_until)) => Err(WaitEnd::TimedOut),
        }
    }

    async fn call_engine(
        &self,
        pending: &PendingAcquire,
        op: &AcquireOp,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> WaitEnd {
        let session = &pending.session;
        let patience = if op.wait == Wait::No { Patience::Try } else { Patience::Wait };
        let mut acquire = pin!(self.engine.acquire(Acquire {
            caller: Caller { session: session.state.id, number: Some(pending.number) },
            wants: op.wants.clone(),
            patience,
            // All tasks of the application share the session, so the session must queue behind its own grants.
            reentry: Reentry::Queue,
            delay: op.delay,
            value: op.value.clone(),
        }));
        if let Some(answer) = poll_immediate(acquire.as_mut()).await {
            return WaitEnd::Replied(answer);
        }
        tokio::select! {
            biased;
            answer = acquire => WaitEnd::Replied(answer),
            loss = session.state.watch(|| session.state.noted_loss()) => WaitEnd::Lost(loss),
            () = reply.closed() => WaitEnd::Abandoned,
            Some(()) = OptionFuture::from(deadline.map(crate::time::sleep_until)) => WaitEnd::TimedOut,
        }
    }

    /// Delivers a grant, unless its session has ended. In jeopardy the next keep-alive decides: a caller could do nothing with
    /// a lock that it may lose at once.
    async fn deliver(
        &self,
        session: &Rc<CurrentSession>,
        op: &AcquireOp,
        token: Token,
    ) -> Result<Option<Delivered>, Error> {
        let (grant, delivered) = self.accept(session, op, token);
        let decided = || match grant.standing() {
            Standing::Jeopardy { .. } => None,
            standing => Some(standing),
        };
        match session.state.watch(decided).await {
            Standing::Lost(loss) => Err(self.error(ErrorKind::Lost(loss), OPERATION).on(op.names())),
            _ => Ok(Some(delivered)),
        }
    }

    /// Adds a grant to its session. It is released when it is dropped undelivered.
    fn accept(&self, session: &Rc<CurrentSession>, op: &AcquireOp, token: Token) -> (Arc<Grant>, Delivered) {
        let grant = Arc::new(Grant::new(token, op.locks(), session.state.clone()));
        session.add_grant(&grant);
        (grant.clone(), Delivered::new(grant, self.ops.clone()))
    }

    /// Cancels an acquire, and releases it if it was granted.
    async fn cancel_or_release(&self, pending: &PendingAcquire, op: &AcquireOp) {
        if let Some(token) = self.cancel(pending).await {
            drop(self.accept(&pending.session, op, token));
        }
    }

    /// Cancels an acquire. Returns the token if it was granted. Retries until it succeeds or the session ends.
    async fn cancel(&self, pending: &PendingAcquire) -> Option<Token> {
        let PendingAcquire { session, number } = pending;
        loop {
            let cancelled = tokio::select! {
                biased;
                cancelled = self.engine.cancel(session.state.id, *number) => cancelled,
                _ = session.state.watch(|| session.state.noted_loss()) => return None,
            };
            match cancelled {
                Ok(Cancelled::Gone) | Err(Failure::SessionEnded) => return None,
                // It neither waits nor is held, and a copy that arrives late is refused.
                Err(Failure::Refused(palisade_core::Refusal::NumberForgotten { .. })) => return None,
                Ok(Cancelled::WasGranted { token }) => return Some(token),
                Err(failure) => tracing::debug!(error = %failure, "retrying the cancel"),
            }
            if session.state.noted_loss().is_some() {
                return None;
            }
            crate::time::sleep(RETRY).await;
        }
    }

    /// Returns why the engine ended the session; the notice that says so may arrive later.
    async fn loss_of(&self, session: &CurrentSession) -> Loss {
        let noted = session.state.watch(|| session.state.noted_loss());
        match timeout(RETRY, noted).await {
            Ok(loss) => loss,
            Err(_) => {
                session.state.lose(Loss::Expired);
                Loss::Expired
            }
        }
    }
}
