//! The dispatch of operations, and all of them except the acquire.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::poll_immediate;
use palisade_core::SessionId;
use tokio::sync::watch;
use tokio::task::spawn_local;

use super::CLOSE_TIMEOUT;
use super::driver::{Driver, RETRY};
use super::op::{ForceRelease, Op, Reply, SessionOp};
use super::session::Grant;
use crate::engine::{Failure, Released, Unavailable};
use crate::{ErrorKind, Loss, Watch};

/// Starts an operation. Most finish at once; only one that has to wait becomes a task.
fn start(operation: impl Future<Output = ()> + 'static) {
    let mut operation = Box::pin(operation);
    // A panic ends this operation only, as it would end a task.
    let first_step = catch_unwind(AssertUnwindSafe(|| operation.as_mut().now_or_never()));
    if let Ok(None) = first_step {
        drop(spawn_local(operation));
    }
}

/// Makes a call whose failure never says that it may have taken effect, since it changes nothing.
async fn read_only<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    call.await.map_err(|failure| match failure {
        Failure::Unavailable(unavailable) => unavailable.without_effect().into(),
        failure => failure,
    })
}

impl Driver {
    /// Starts an operation. Each kind has its own future: one for all kinds would be as large as the largest.
    pub(super) fn begin(self: Rc<Self>, op: Op) {
        match op {
            Op::Acquire(acquire, reply) => start(self.acquire(acquire, reply)),
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
                let lock_info = read_only(self.engine.inspect(lock.clone()));
                self.answer(reply, lock_info, "inspect", lock.as_str()).await;
            }),
            Op::List(prefix, reply) => start(async move {
                let listed = read_only(self.engine.list(prefix.clone()));
                self.answer(reply, listed, "list locks below", &prefix).await;
            }),
            Op::Watch(prefix, reply) => start(async move {
                let open_client = self.open_client.borrow().as_ref().map(watch::Sender::subscribe);
                let watch = async {
                    let open_client = open_client.ok_or(Failure::SessionEnded)?;
                    Ok(Watch::new(self.engine.watch(prefix.clone()).await?, open_client))
                };
                self.answer(reply, read_only(watch), "watch locks below", &prefix).await;
            }),
            Op::ForSession(session, op, reply) => start(async move {
                let operation = op.operation();
                self.answer(reply, self.for_session(session, op), operation, &session.to_string()).await;
            }),
            Op::Spawn(task) => start(task()),
            Op::Detach(reply) => start(async move { self.detach(reply).await }),
            Op::Close(reply) => start(async move { self.close(reply).await }),
        }
    }

    /// Sends the engine's answer to the caller, or an error if the client was closed.
    async fn answer<T>(
        &self,
        reply: Reply<T>,
        call: impl Future<Output = Result<T, Failure>>,
        operation: &'static str,
        on: &str,
    ) {
        let answer = match self.is_closed() {
            true => Err(ErrorKind::Lost(Loss::SessionClosed)),
            false => call.await.map_err(ErrorKind::from),
        };
        // A caller that is gone leaves nothing to undo.
        drop(reply.send(answer.map_err(|kind| self.error(kind, operation).on(on))));
    }

    /// Performs an operation on a session that another client opened.
    async fn for_session(&self, session: SessionId, op: SessionOp) -> Result<(), Failure> {
        match op {
            SessionOp::KeepAlive => self.engine.keep_alive(session).await,
            SessionOp::Close => self.engine.close_session(session).await,
            SessionOp::Release(lock, token) => {
                // Fails while a process keeps the session alive: that process would not notice the release and go on writing.
                self.engine.keep_alive(session).await?;
                match self.engine.release(session, lock, token).await? {
                    Released::Now | Released::Repeated => Ok(()),
                    Released::Before => Err(Failure::SessionEnded),
                }
            }
        }
    }

    /// Releases a grant. Replies with the result of the first attempt, and retries until the grant or its session has ended.
    async fn release(self: Rc<Self>, grant: Arc<Grant>, mut reply: Option<Reply<()>>) {
        let name = grant.locks[0].as_str();
        loop {
            let answer = match grant.noted_loss() {
                Some(Loss::Released) => Ok(()),
                Some(loss) => Err(ErrorKind::Lost(loss)),
                None => self.try_release(&grant).await,
            };
            let needs_retry = match &answer {
                Ok(()) => self.forget(&grant, Loss::Released),
                Err(ErrorKind::Lost(loss)) => self.forget(&grant, loss.clone()),
                Err(ErrorKind::Outage { .. } | ErrorKind::Denied { .. }) => true,
                Err(ErrorKind::Misuse(_) | ErrorKind::Unsupported { .. } | ErrorKind::NotSealed { .. }) => false,
            };
            if let Some(reply) = reply.take() {
                drop(reply.send(answer.map_err(|kind| self.error(kind, "release").on(name))));
            }
            if !needs_retry {
                return;
            }
            crate::time::sleep(RETRY).await;
        }
    }

    async fn try_release(&self, grant: &Grant) -> Result<(), ErrorKind> {
        let mut was_sent_before = grant.note_release();
        let mut released = pin!(self.engine.release(grant.session.id, grant.locks[0].clone(), grant.token));
        let answer = match poll_immediate(released.as_mut()).await {
            Some(answer) => answer,
            None => tokio::select! {
                biased;
                answer = released => answer,
                loss = grant.session.watch(|| grant.session.noted_loss()) => return Err(ErrorKind::Lost(loss)),
            },
        };
        was_sent_before |= matches!(answer, Ok(Released::Repeated));
        match answer {
            Ok(Released::Now) => Ok(()),
            // An earlier attempt released it, unless a loss was noted.
            Ok(Released::Before | Released::Repeated) if was_sent_before => match grant.noted_loss() {
                None | Some(Loss::Released) => Ok(()),
                Some(loss) => Err(ErrorKind::Lost(loss)),
            },
            Ok(Released::Before | Released::Repeated) => {
                // The notice that says how it ended may arrive later.
                let noted = grant.session.watch(|| grant.noted_loss());
                match crate::time::timeout(RETRY, noted).await.unwrap_or(Loss::Expired) {
                    Loss::Released => Ok(()),
                    loss => Err(ErrorKind::Lost(loss)),
                }
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Marks a grant as ended in this process. Returns false: its release needs no retry.
    fn forget(&self, grant: &Grant, loss: Loss) -> bool {
        grant.lose(loss);
        if let Some(session) = &*self.current.borrow() {
            session.grants.borrow_mut().remove(&grant.token);
        }
        false
    }

    /// Ends the client and leaves its session open until the TTL expires.
    async fn detach(&self, reply: Reply<SessionId>) {
        let Some(session) = self.session().await else {
            return drop(
                reply.send(Err(self.error(ErrorKind::Lost(Loss::SessionClosed), "detach from the session"))),
            );
        };
        let id = session.state.id;
        let detached = self.engine.detach_session(id).await;
        if detached.is_ok() {
            drop(self.open_client.borrow_mut().take());
            drop(self.current.borrow_mut().take());
            session.state.lose(Loss::Detached);
        }
        drop(reply.send(detached.map(|()| id).map_err(|failure| self.error(failure, "detach from the session"))));
    }

    async fn close(&self, reply: Reply<()>) {
        drop(self.open_client.borrow_mut().take());
        self.opened.notify_waiters();
        let session = self.current.borrow_mut().take();
        let answer = match session {
            Some(session) => {
                session.state.lose(Loss::SessionClosed);
                let closed = crate::time::timeout(CLOSE_TIMEOUT, self.engine.close_session(session.state.id)).await;
                closed.unwrap_or_else(|_| {
                    Err(Unavailable::new("the engine did not answer; the session ends by its TTL").into())
                })
            }
            None => Ok(()),
        };
        drop(reply.send(answer.map_err(|failure| self.error(failure, "close the session"))));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::oneshot;

    use super::*;

    fn on_the_keepers_runtime(test: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        let bounded = async {
            tokio::time::timeout(Duration::from_secs(300), test).await.expect("the operation ends within 300 s");
        };
        runtime.expect("a runtime").block_on(bounded);
    }

    #[test]
    fn an_operation_starts_at_once_and_ends_when_its_reply_arrives() {
        on_the_keepers_runtime(async {
            let ((go, may_go), (reply, answer)) = (oneshot::channel(), oneshot::channel());
            let has_begun = Rc::new(Cell::new(false));
            let begun = has_begun.clone();
            start(async move {
                begun.set(true);
                may_go.await.expect("the sender is alive");
                reply.send(()).expect("the receiver waits");
            });
            assert!(has_begun.get());
            go.send(()).expect("it waits");
            answer.await.expect("it has ended");
        });
    }

    #[test]
    fn a_panic_ends_one_operation_only() {
        on_the_keepers_runtime(async {
            let (reply, answer) = oneshot::channel::<()>();
            start(async move {
                let _reply = reply;
                panic!("an engine panics");
            });
            answer.await.expect_err("there is no answer");
        });
    }
}
