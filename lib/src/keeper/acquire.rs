//! An acquire's way through the keeper: asked, granted or given up, and undone when nobody waits for it any more.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{OptionFuture, poll_immediate};
use palisade_core::{Acquire, Caller, Patience, Reentry, Token};
use tokio::time::{Instant, timeout};

use super::drive::{Active, Attempt, Driver, RETRY};
use super::gate::Turn;
use super::op::{Ask, AskPatience, Delivered, Reply};
use super::session::Grant;
use crate::engine::{Acquired, Cancelled, Engine, Failure, Order};
use crate::{Error, ErrorKind, Loss, Standing};

const OPERATION: &str = "acquire";

/// How an attempt ends.
enum End {
    Answered(Result<Acquired, Failure>),
    /// The future that waits for it was dropped.
    Abandoned,
    /// It has waited as long as it was told to.
    TimedOut,
    Lost(Loss),
}

/// What comes of a request.
enum Outcome {
    Done(Option<Delivered>),
    /// An error, or nothing. The engine may grant it yet, or have granted it: that is undone when the caller knows.
    LeftOver(Option<Error>, Attempt),
}

impl<E: Engine> Driver<E> {
    pub(super) async fn acquire(self: Rc<Self>, ask: Ask, mut reply: Reply<Option<Delivered>>) {
        let began = Instant::now();
        let deadline = match ask.patience {
            AskPatience::Within(wait) => began.checked_add(wait),
            AskPatience::Try | AskPatience::Forever => None,
        };
        let (outcome, left_over) = match self.attempt(&ask, deadline, &mut reply).await {
            Ok(Outcome::Done(delivered)) => (Ok(delivered), None),
            Ok(Outcome::LeftOver(error, attempt)) => (error.map_or(Ok(None), Err), Some(attempt)),
            Err(error) => (Err(error), None),
        };
        if let Ok(Some(_)) = &outcome {
            let engine = self.guarantees.engine;
            metrics::counter!("palisade_grants_total", "engine" => engine).increment(1);
            metrics::histogram!("palisade_wait_seconds", "engine" => engine).record(began.elapsed().as_secs_f64());
        }
        // If nobody waits any more, the grant in the answer gives itself back.
        drop(reply.send(outcome));
        if let Some(attempt) = left_over {
            self.undo(&attempt, &ask).await;
        }
    }

    async fn attempt(
        &self,
        ask: &Ask,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Outcome, Error> {
        let lost = |loss| Err(self.error(ErrorKind::Lost(loss), OPERATION).on(ask.names()));
        let active = self.session_in_time(deadline, reply).await.map_err(|error| error.on(ask.names()))?;
        let Some(active) = active else {
            return if self.is_gone() { lost(Loss::SessionClosed) } else { Ok(Outcome::Done(None)) };
        };
        let _turn = match self.turn(&active, ask, deadline, reply).await {
            Ok(turn) => turn,
            Err(End::Lost(loss)) => return lost(loss),
            Err(_) => return Ok(Outcome::Done(None)),
        };
        let attempt = active.attempt();
        loop {
            match self.ask_engine(&attempt, ask, deadline, reply).await {
                End::Answered(Ok(Acquired::Granted { token })) => {
                    return self.deliver(&attempt.active, ask, token).map(Outcome::Done);
                }
                End::Answered(Ok(Acquired::Busy)) => return Ok(Outcome::Done(None)),
                End::Answered(Err(Failure::SessionEnded)) => return lost(self.loss_of(&attempt.active).await),
                End::Lost(loss) => return lost(loss),
                End::Abandoned => {
                    self.undo(&attempt, ask).await;
                    return Ok(Outcome::Done(None));
                }
                // What was granted at the last moment is handed over, if the engine says so soon.
                End::TimedOut => match timeout(RETRY, self.undo_unless_granted(&attempt)).await {
                    Ok(Some(token)) => return self.deliver(&attempt.active, ask, token).map(Outcome::Done),
                    Ok(None) => return Ok(Outcome::Done(None)),
                    Err(_) => return Ok(Outcome::LeftOver(None, attempt)),
                },
                End::Answered(Err(Failure::Unavailable(why)))
                    if why.is_retryable && ask.patience != AskPatience::Try =>
                {
                    tracing::debug!(lock = ask.names(), error = %why, "acquire is tried again");
                    if deadline.is_some_and(|at| Instant::now() + RETRY >= at) {
                        let error = self.error(Failure::from(why), OPERATION).on(ask.names());
                        return Ok(Outcome::LeftOver(Some(error), attempt));
                    }
                    tokio::time::sleep(RETRY).await;
                }
                End::Answered(Err(failure)) => {
                    let may_be_granted = matches!(&failure, Failure::Unavailable(why) if why.may_have_taken_effect);
                    let error = self.error(failure, OPERATION).on(ask.names());
                    return if may_be_granted { Ok(Outcome::LeftOver(Some(error), attempt)) } else { Err(error) };
                }
            }
        }
    }

    /// The session that lives, unless it takes longer than the caller wants to wait.
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
            error = self.obstacle() => Err(error),
            () = reply.closed() => Ok(None),
            Some(()) = OptionFuture::from(deadline.map(tokio::time::sleep_until)) => Ok(None),
        }
    }

    /// The turn to ask an engine that has no queue of its own. Who asks once does not wait for it.
    async fn turn(
        &self,
        active: &Active,
        ask: &Ask,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Option<Turn>, End> {
        if self.guarantees.order == Order::Fair || ask.patience == AskPatience::Try {
            return Ok(None);
        }
        tokio::select! {
            turn = self.gates.turn(ask.locks()) => Ok(Some(turn)),
            loss = active.state.watch(|| active.state.noted_loss()) => Err(End::Lost(loss)),
            () = reply.closed() => Err(End::Abandoned),
            Some(()) = OptionFuture::from(deadline.map(tokio::time::sleep_until)) => Err(End::TimedOut),
        }
    }

    async fn ask_engine(
        &self,
        attempt: &Attempt,
        ask: &Ask,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> End {
        let active = &attempt.active;
        let patience = if ask.patience == AskPatience::Try { Patience::Try } else { Patience::Wait };
        let mut acquire = pin!(self.engine.acquire(Acquire {
            caller: Caller { session: active.state.id, number: Some(attempt.number) },
            wants: ask.wants.clone(),
            patience,
            // One session stands for all of the application's tasks; they wait for each other like anybody else.
            reentry: Reentry::Queue,
            delay: ask.delay,
            value: ask.value.clone(),
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

    /// Hands over a grant, unless its session cannot be trusted any more.
    fn deliver(&self, active: &Rc<Active>, ask: &Ask, token: Token) -> Result<Option<Delivered>, Error> {
        let grant = Arc::new(Grant::new(token, ask.locks(), active.state.clone()));
        active.admit(&grant);
        let standing = grant.standing();
        let delivered = Delivered::new(grant, self.ops.clone());
        match standing {
            Standing::Lost(loss) => Err(self.error(ErrorKind::Lost(loss), OPERATION).on(ask.names())),
            Standing::Held | Standing::Jeopardy { .. } => Ok(Some(delivered)),
        }
    }

    /// Makes sure that nothing is left of an attempt: neither a wait nor a grant.
    async fn undo(&self, attempt: &Attempt, ask: &Ask) {
        if let Some(token) = self.undo_unless_granted(attempt).await {
            // Dropping it gives it back.
            drop(self.deliver(&attempt.active, ask, token));
        }
    }

    /// Makes sure that an attempt waits no longer; returns the token if it was granted. Tried until it is done or the
    /// session, and with it the attempt, is over.
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

    /// Why the engine ended the session; the notice that says so may be on its way.
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
