//! An acquire on the keeper's thread: sent, granted or given up, and undone when its caller is gone.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{OptionFuture, poll_immediate};
use palisade_core::{Acquire, Caller, Patience, Reentry, Token};
use tokio::time::{Instant, timeout};

use super::driver::{Active, Attempt, Driver, RETRY};
use super::local_queue::Turn;
use super::op::{AcquireOp, Delivered, Reply, Wait};
use super::session::Grant;
use crate::engine::{Acquired, Cancelled, Engine, Failure, Order};
use crate::{Error, ErrorKind, Loss, Standing};

const OPERATION: &str = "acquire";

/// How an attempt ends.
enum End {
    Answered(Result<Acquired, Failure>),
    /// The caller's future was dropped.
    Abandoned,
    /// The caller's deadline has passed.
    TimedOut,
    Lost(Loss),
}

/// The outcome of an acquire.
enum Outcome {
    Done(Option<Delivered>),
    /// An error, or a time-out. The engine may grant it yet: the keeper answers the caller first, and undoes it then.
    LeftOver(Option<Error>, Attempt),
}

impl<E: Engine> Driver<E> {
    pub(super) async fn acquire(self: Rc<Self>, op: AcquireOp, mut reply: Reply<Option<Delivered>>) {
        let began = Instant::now();
        let deadline = match op.wait {
            Wait::Within(wait) => began.checked_add(wait),
            Wait::No | Wait::Forever => None,
        };
        let (outcome, left_over) = match self.attempt(&op, deadline, &mut reply).await {
            Ok(Outcome::Done(delivered)) => (Ok(delivered), None),
            Ok(Outcome::LeftOver(error, attempt)) => (error.map_or(Ok(None), Err), Some(attempt)),
            Err(error) => (Err(error), None),
        };
        if let Ok(Some(_)) = &outcome {
            let engine = self.guarantees.engine;
            metrics::counter!("palisade_grants_total", "engine" => engine).increment(1);
            metrics::histogram!("palisade_wait_seconds", "engine" => engine).record(began.elapsed().as_secs_f64());
        }
        // A grant whose caller is gone releases itself when it is dropped.
        drop(reply.send(outcome));
        if let Some(attempt) = left_over {
            self.undo(&attempt, &op).await;
        }
    }

    async fn attempt(
        &self,
        op: &AcquireOp,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Outcome, Error> {
        let lost = |loss| Err(self.error(ErrorKind::Lost(loss), OPERATION).on(op.names()));
        let active = self.session_in_time(deadline, reply).await.map_err(|error| error.on(op.names()))?;
        let Some(active) = active else {
            return if self.is_closed() { lost(Loss::SessionClosed) } else { Ok(Outcome::Done(None)) };
        };
        let _turn = match self.turn(&active, op, deadline, reply).await {
            Ok(turn) => turn,
            Err(End::Lost(loss)) => return lost(loss),
            Err(_) => return Ok(Outcome::Done(None)),
        };
        let attempt = active.attempt();
        // Whether any attempt so far may have been granted or queued.
        let mut may_be_granted = false;
        loop {
            match self.ask_engine(&attempt, op, deadline, reply).await {
                End::Answered(Ok(Acquired::Granted { token })) => {
                    return self.deliver(&attempt.active, op, token).map(Outcome::Done);
                }
                End::Answered(Ok(Acquired::Busy)) => return Ok(Outcome::Done(None)),
                End::Answered(Err(Failure::SessionEnded)) => return lost(self.loss_of(&attempt.active).await),
                End::Lost(loss) => return lost(loss),
                End::Abandoned => {
                    self.undo(&attempt, op).await;
                    return Ok(Outcome::Done(None));
                }
                // A grant of the last moment is delivered if the engine reports it soon.
                End::TimedOut => match timeout(RETRY, self.undo_unless_granted(&attempt)).await {
                    Ok(Some(token)) => return self.deliver(&attempt.active, op, token).map(Outcome::Done),
                    Ok(None) => return Ok(Outcome::Done(None)),
                    Err(_) => return Ok(Outcome::LeftOver(None, attempt)),
                },
                End::Answered(Err(Failure::Unavailable(why))) if why.is_retryable && op.wait != Wait::No => {
                    tracing::debug!(lock = op.names(), error = %why, "acquire is tried again");
                    may_be_granted |= why.may_have_taken_effect;
                    if deadline.is_some_and(|at| Instant::now() + RETRY >= at) {
                        let error = self.error(Failure::from(why), OPERATION).on(op.names());
                        return Ok(Outcome::LeftOver(Some(error), attempt));
                    }
                    tokio::time::sleep(RETRY).await;
                }
                End::Answered(Err(failure)) => {
                    may_be_granted |= failure.may_have_taken_effect();
                    let error = self.error(failure, OPERATION).on(op.names());
                    return if may_be_granted { Ok(Outcome::LeftOver(Some(error), attempt)) } else { Err(error) };
                }
            }
        }
    }

    /// Waits for the session, at most until the caller's deadline.
    async fn session_in_time(
        &self,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Option<Rc<Active>>, Error> {
        if let Some(ready) = poll_immediate(pin!(self.active())).await {
            return Ok(ready);
        }
        tokio::select! {
            active = self.active() => Ok(active),
            error = self.open_failed() => Err(error),
            () = reply.closed() => Ok(None),
            Some(()) = OptionFuture::from(deadline.map(tokio::time::sleep_until)) => Ok(None),
        }
    }

    /// Waits for the right to ask an engine without a fair queue. A `try_acquire` does not wait.
    async fn turn(
        &self,
        active: &Active,
        op: &AcquireOp,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Option<Turn>, End> {
        if self.guarantees.order == Order::Fair || op.wait == Wait::No {
            return Ok(None);
        }
        tokio::select! {
            turn = self.queues.turn(op.locks()) => Ok(Some(turn)),
            loss = active.state.watch(|| active.state.noted_loss()) => Err(End::Lost(loss)),
            () = reply.closed() => Err(End::Abandoned),
            Some(()) = OptionFuture::from(deadline.map(tokio::time::sleep_until)) => Err(End::TimedOut),
        }
    }

    async fn ask_engine(
        &self,
        attempt: &Attempt,
        op: &AcquireOp,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> End {
        let active = &attempt.active;
        let patience = if op.wait == Wait::No { Patience::Try } else { Patience::Wait };
        let mut acquire = pin!(self.engine.acquire(Acquire {
            caller: Caller { session: active.state.id, number: Some(attempt.number) },
            wants: op.wants.clone(),
            patience,
            // All tasks of the application share the session, and wait for each other as other clients would.
            reentry: Reentry::Queue,
            delay: op.delay,
            value: op.value.clone(),
        }));
        if let Some(answer) = poll_immediate(acquire.as_mut()).await {
            return End::Answered(answer);
        }
        tokio::select! {
            answer = acquire => End::Answered(answer),
            loss = active.state.watch(|| active.state.noted_loss()) => End::Lost(loss),
            () = reply.closed() => End::Abandoned,
            Some(()) = OptionFuture::from(deadline.map(tokio::time::sleep_until)) => End::TimedOut,
        }
    }

    /// Delivers a grant, unless its session may have ended.
    fn deliver(&self, active: &Rc<Active>, op: &AcquireOp, token: Token) -> Result<Option<Delivered>, Error> {
        let grant = Arc::new(Grant::new(token, op.locks(), active.state.clone()));
        active.admit(&grant);
        let standing = grant.standing();
        let delivered = Delivered::new(grant, self.ops.clone());
        match standing {
            Standing::Lost(loss) => Err(self.error(ErrorKind::Lost(loss), OPERATION).on(op.names())),
            Standing::Held | Standing::Jeopardy { .. } => Ok(Some(delivered)),
        }
    }

    /// Cancels an acquire, and releases it if it was granted.
    async fn undo(&self, attempt: &Attempt, op: &AcquireOp) {
        if let Some(token) = self.undo_unless_granted(attempt).await {
            // Dropping it releases it.
            drop(self.deliver(&attempt.active, op, token));
        }
    }

    /// Cancels an acquire. Returns the token if it was granted. Retries until it succeeds or the session ends.
    async fn undo_unless_granted(&self, attempt: &Attempt) -> Option<Token> {
        let Attempt { active, number } = attempt;
        loop {
            let cancelled = tokio::select! {
                cancelled = self.engine.cancel(active.state.id, *number) => cancelled,
                _ = active.state.watch(|| active.state.noted_loss()) => return None,
            };
            match cancelled {
                Ok(Cancelled::Gone) | Err(Failure::SessionEnded) => return None,
                Ok(Cancelled::WasGranted { token }) => return Some(token),
                Err(failure) => tracing::debug!(error = %failure, "cancel is tried again"),
            }
            if active.state.noted_loss().is_some() {
                return None;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Returns why the engine ended the session; the notice that says so may arrive later.
    async fn loss_of(&self, active: &Active) -> Loss {
        let noted = active.state.watch(|| active.state.noted_loss());
        match timeout(RETRY, noted).await {
            Ok(loss) => loss,
            Err(_) => {
                active.state.lose(Loss::Expired);
                Loss::Expired
            }
        }
    }
}
