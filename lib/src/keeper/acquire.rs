//! An acquire's way through the keeper: asked, granted or given up, and undone when nobody waits for it any more.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, poll_immediate};
use palisade_core::{Acquire, Caller, Patience, Reentry, RequestNo, Token};
use tokio::time::Instant;

use super::drive::{Active, Driver};
use super::op::{Ask, AskPatience, Delivered, Reply};
use super::session::Grant;
use crate::engine::{Acquired, Cancelled, Engine, Failure};
use crate::{Error, ErrorKind, Loss, Standing};

const OPERATION: &str = "acquire";
const RETRY: Duration = Duration::from_millis(50);

/// How an attempt ends.
enum End {
    Answered(Result<Acquired, Failure>),
    /// The future that waits for it was dropped.
    Abandoned,
    /// It has waited as long as it was told to.
    TimedOut,
    Lost(Loss),
}

impl<E: Engine> Driver<E> {
    pub(super) async fn acquire(&self, ask: Ask, mut reply: Reply<Option<Delivered>>) {
        let began = Instant::now();
        let deadline = match ask.patience {
            AskPatience::Within(wait) => began.checked_add(wait),
            AskPatience::Try | AskPatience::Forever => None,
        };
        let outcome = self.attempt(&ask, deadline, &mut reply).await;
        if let Ok(Some(_)) = &outcome {
            let engine = self.guarantees.engine;
            metrics::counter!("palisade_grants_total", "engine" => engine).increment(1);
            metrics::histogram!("palisade_wait_seconds", "engine" => engine).record(began.elapsed().as_secs_f64());
        }
        // If nobody waits any more, the grant in the answer gives itself back.
        drop(reply.send(outcome));
    }

    async fn attempt(
        &self,
        ask: &Ask,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Result<Option<Delivered>, Error> {
        let lost = |loss| Err(self.error(ErrorKind::Lost(loss), OPERATION).on(ask.names()));
        let Some(active) = self.session_in_time(deadline, reply).await else {
            return if self.is_gone() { lost(Loss::SessionClosed) } else { Ok(None) };
        };
        let number = active.next_number();
        loop {
            match self.ask_engine(&active, ask, number, deadline, reply).await {
                End::Answered(Ok(Acquired::Granted { token })) => return self.deliver(&active, ask, token),
                End::Answered(Ok(Acquired::Busy)) => return Ok(None),
                End::Answered(Err(Failure::SessionEnded)) => return lost(self.loss_of(&active).await),
                End::Lost(loss) => return lost(loss),
                End::Abandoned => {
                    self.undo(&active, ask, number).await;
                    return Ok(None);
                }
                End::TimedOut => {
                    let granted = self.undo_unless_granted(&active, number).await;
                    return granted.map_or(Ok(None), |token| self.deliver(&active, ask, token));
                }
                End::Answered(Err(Failure::Unavailable(why)))
                    if why.is_retryable && ask.patience != AskPatience::Try =>
                {
                    tracing::debug!(lock = ask.names(), error = %why, "acquire is tried again");
                    if deadline.is_some_and(|at| Instant::now() + RETRY >= at) {
                        self.undo(&active, ask, number).await;
                        return Err(self.error(Failure::from(why), OPERATION).on(ask.names()));
                    }
                    tokio::time::sleep(RETRY).await;
                }
                End::Answered(Err(failure)) => {
                    if matches!(&failure, Failure::Unavailable(why) if why.may_have_taken_effect) {
                        self.undo(&active, ask, number).await;
                    }
                    return Err(self.error(failure, OPERATION).on(ask.names()));
                }
            }
        }
    }

    /// The session that lives, unless it takes longer than the caller wants to wait.
    async fn session_in_time(
        &self,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> Option<Rc<Active>> {
        if let Some(ready) = poll_immediate(pin!(self.active())).await {
            return ready;
        }
        tokio::select! {
            active = self.active() => active,
            () = reply.closed() => None,
            Some(()) = OptionFuture::from(deadline.map(tokio::time::sleep_until)) => None,
        }
    }

    async fn ask_engine(
        &self,
        active: &Active,
        ask: &Ask,
        number: RequestNo,
        deadline: Option<Instant>,
        reply: &mut Reply<Option<Delivered>>,
    ) -> End {
        let patience = if ask.patience == AskPatience::Try { Patience::Try } else { Patience::Wait };
        let mut acquire = pin!(self.engine.acquire(Acquire {
            caller: Caller { session: active.state.id, number: Some(number) },
            wants: ask.wants.iter().cloned().collect(),
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
        active.grants.borrow_mut().insert(token, grant.clone());
        let delivered = Delivered::new(grant, self.ops.clone());
        match active.state.standing() {
            Standing::Lost(loss) => Err(self.error(ErrorKind::Lost(loss), OPERATION).on(ask.names())),
            Standing::Held | Standing::Jeopardy { .. } => Ok(Some(delivered)),
        }
    }

    /// Makes sure that nothing is left of an attempt: neither a wait nor a grant.
    async fn undo(&self, active: &Rc<Active>, ask: &Ask, number: RequestNo) {
        if let Some(token) = self.undo_unless_granted(active, number).await {
            // Dropping it gives it back.
            drop(self.deliver(active, ask, token));
        }
    }

    /// Makes sure that an attempt waits no longer; returns the token if it was granted. Tried until it is done or the
    /// session, and with it the attempt, is over.
    async fn undo_unless_granted(&self, active: &Active, number: RequestNo) -> Option<Token> {
        loop {
            match self.engine.cancel(active.state.id, number).await {
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
        tokio::task::yield_now().await;
        active.state.noted_loss().unwrap_or(Loss::Expired)
    }
}
