//! The code that all engines share which reach their store over a connection.
//!
//! [`Remote`] implements [`Engine`] once: it reconnects, repeats waiting acquires, restores grants whose release did not
//! happen, releases orphaned grants and notifies sessions of grants that ended. A `Backend` adds the store's part: how to
//! connect, how to attach a session, and how to perform one operation.

mod backend;
mod client_state;
mod connect_error;
mod data_loss;
mod dial;
mod limits;
mod push;
mod reconnector;
mod security_error;
#[cfg(feature = "_tls")]
mod tls;
mod url;
mod watch_lease;

use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use palisade_core::{
    Acquire, Label, LockName, Patience, Refusal, RequestNo, SessionEnd, SessionId, Token, Ttl, Value,
};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};

use super::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, LockInfo, Opened, Raised, Released, Unavailable,
    Watched,
};
use crate::SignedToken;

pub(crate) use backend::{AcquireReply, Backend, CancelReply, Connected, ForceRelease, Held, RemoteConnection};
pub(crate) use client_state::{ClientState, WaitKey, forced_unseen};
pub(crate) use connect_error::{ConnectError, Peer, printable};
pub(crate) use data_loss::DataLoss;
pub(crate) use dial::{GivenUp, connect_tcp, within};
pub(crate) use limits::{check_acquire, check_label, check_least, check_most, check_value};
pub(crate) use push::Push;
pub(crate) use reconnector::{Reconnector, jittered, keep_alive_timeout};
pub use security_error::SecurityError;
pub(crate) use security_error::TlsOptions;
#[cfg(any(feature = "redis", feature = "service"))]
pub(crate) use tls::encrypt;
#[cfg(any(feature = "consul", feature = "etcd"))]
pub(crate) use tls::is_not_tls;
#[cfg(feature = "_tls")]
pub use tls::{Identity, Tls};
#[cfg(feature = "_tls")]
pub(crate) use tls::{TlsModes, stream_error};
pub use url::{Address, BadUrl, Login, Secret};
pub(crate) use url::{Url, UrlForm, decoded, is_local};

use crate::time::{Instant, sleep};
use reconnector::ConnectionEnd;

/// An engine on a store that is reached over a connection.
pub struct Remote<B: Backend> {
    shared: Rc<Shared<B>>,
    reconnecting: AbortHandle,
}

struct Shared<B: Backend> {
    backend: B,
    client: Rc<ClientState<B>>,
    reconnector: Reconnector<B::Connection>,
}

impl<B: Backend> Drop for Remote<B> {
    fn drop(&mut self) {
        self.reconnecting.abort();
    }
}

impl<B: Backend> Remote<B> {
    /// Connects to the store. Must be called on a `tokio` runtime with a local set. A task there keeps the connection, and
    /// replaces it when it breaks, until this engine is dropped.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, refuses this client, or is not fit to keep locks. The message says which.
    pub async fn connect(config: B::Config) -> Result<Remote<B>, Failure> {
        let client = Rc::new(ClientState::default());
        let backend = B::new(config, client.clone());
        let shared = Rc::new(Shared { backend, client, reconnector: Reconnector::new() });
        let reconnecting = spawn_local(shared.clone().reconnect()).abort_handle();
        let remote = Remote { shared, reconnecting };
        remote.shared.connection().await?;
        Ok(remote)
    }

    async fn wait(&self, acquire: Acquire) -> Result<Token, Failure> {
        let shared = &self.shared;
        let Some(number) = acquire.caller.number else {
            let what = "an acquire that waits needs a request number, so that another connection can repeat it";
            return Err(Unavailable::new(what).without_effect().permanent().into());
        };
        let key = (acquire.caller.session, number);
        let wait = shared.client.begin_wait(key, acquire.clone());
        // Without a connection, `serve_connection` sends every waiting acquire on the next one.
        if let Some(connection) = shared.reconnector.current() {
            shared.send_acquire(&connection, key, &acquire, Transmission::First).await;
        }
        wait.outcome().await
    }

    /// Returns the token of a grant that is as durable as the configuration demands; releases the grant otherwise.
    async fn confirm(&self, acquire: &Acquire, token: Token) -> Result<Token, Failure> {
        let session = acquire.caller.session;
        match self.shared.backend.confirm_grant(session, &self.shared.reconnector).await {
            Ok(()) => Ok(token),
            Err(failure) => match self.release(session, acquire.wants[0].lock.clone(), token).await {
                Ok(_) => Err(failure),
                // The grant may remain. `Unavailable::new` says so, and the keeper cancels the acquire.
                Err(_) => Err(Unavailable::new(failure.to_string()).into()),
            },
        }
    }

    async fn try_once(&self, acquire: &Acquire) -> Result<Option<Token>, Failure> {
        let (shared, session) = (&self.shared, acquire.caller.session);
        // The store recognises a repeated acquire by its number.
        let (reply, _) = shared.repeat(async |connection| shared.backend.acquire(connection, acquire).await).await;
        match reply {
            Ok(AcquireReply::Granted(token)) => {
                shared.client.add_grant(session, token, shared.client.grant_extra(acquire));
                Ok(Some(token))
            }
            Ok(AcquireReply::Queued | AcquireReply::Busy) => Ok(None),
            Err(failure) => Err(shared.note_ended(session, failure)),
        }
    }
}

/// Whether a waiting acquire is sent for the first time, or again on a new connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transmission {
    First,
    Repeat,
}

/// The pause before a waiting acquire is sent again on the same connection: a failing store must not be flooded.
const REPEAT_PAUSE: Duration = Duration::from_millis(50);

impl<B: Backend> Shared<B> {
    async fn connection(&self) -> Result<Rc<B::Connection>, Failure> {
        self.reconnector.connection().await
    }

    async fn reconnect(self: Rc<Self>) {
        let peer = self.backend.peer();
        let serve = async || match self.serve_connection().await {
            ConnectionEnd::NotOpened(error) => ConnectionEnd::NotOpened(error.at(peer)),
            ConnectionEnd::Broke(error) => ConnectionEnd::Broke(error.at(peer)),
        };
        self.reconnector.run(&self.client, serve).await;
    }

    /// Opens a connection and serves it until it breaks.
    async fn serve_connection(self: &Rc<Self>) -> ConnectionEnd {
        let Connected { connection, orphans, driver } = match self.backend.connect().await {
            Ok(connected) => connected,
            Err(error) => return ConnectionEnd::NotOpened(error),
        };
        for orphan in orphans {
            // A crash of the store undid its release, or the reply to its acquire was lost and the caller is gone.
            let (shared, connection) = (self.clone(), connection.clone());
            spawn_local(async move { drop(shared.backend.release(&connection, &orphan, None).await) });
        }
        for (key, acquire) in self.client.waits(|acquire, _| acquire.clone()) {
            let (shared, connection) = (self.clone(), connection.clone());
            let repeat = async move { shared.send_acquire(&connection, key, &acquire, Transmission::Repeat).await };
            let mut repeat = Box::pin(repeat);
            // The first poll sends the acquire. A spawned task would run only after the tasks that are awake already, and
            // one of those could send a later acquire first.
            if repeat.as_mut().now_or_never().is_none() {
                spawn_local(repeat);
            }
        }
        self.client.note_missed_events();
        self.reconnector.set(connection);
        let error = driver.await;
        self.reconnector.unset();
        ConnectionEnd::Broke(error)
    }

    /// Sends a waiting acquire, again after transient failures, until the store answers, the connection breaks, or the caller
    /// is gone. Sending it again is safe: the store recognises it by its number.
    async fn send_acquire(
        self: &Rc<Self>,
        connection: &Rc<B::Connection>,
        key: WaitKey,
        acquire: &Acquire,
        nth: Transmission,
    ) {
        let mut may_wait_at_store = nth == Transmission::Repeat;
        loop {
            let failure = match self.backend.acquire(connection, acquire).await {
                Ok(AcquireReply::Granted(token)) => return self.client.settle(key, Ok(token)),
                Ok(AcquireReply::Queued | AcquireReply::Busy) => return,
                Err(Failure::SessionEnded) => return self.client.session_ended(key.0, SessionEnd::Expired),
                Err(failure) => failure,
            };
            if connection.is_broken() && failure.is_retryable() {
                // The next connection repeats it.
                return;
            }
            may_wait_at_store |= failure.may_have_taken_effect();
            if !(failure.is_retryable() && may_wait_at_store) {
                if !may_wait_at_store {
                    return self.client.settle(key, Err(failure));
                }
                // An earlier attempt may have queued it. The keeper cancels an acquire that may have taken effect.
                return match self.backend.cancel(connection, key).await {
                    Ok(CancelReply::Gone) => self.client.settle(key, Err(failure.undone())),
                    Ok(CancelReply::Granted(token, grant)) => self.found_by_cancel(key, acquire, token, grant),
                    Err(_) => self.client.settle(key, Err(failure.possibly_applied())),
                };
            }
            sleep(jittered(REPEAT_PAUSE)).await;
            if !self.client.is_waiting(key) {
                return;
            }
        }
    }

    /// Delivers a grant that the cancel of a failed acquire has found. Releases it if its caller is gone.
    fn found_by_cancel(self: &Rc<Self>, key: WaitKey, acquire: &Acquire, token: Token, grant: B::GrantExtra) {
        let (session, number) = key;
        let is_waiting = self.client.is_waiting(key);
        if !is_waiting && !self.client.tokens(session).contains(&token) {
            let held = Held { session, lock: acquire.wants[0].lock.clone(), token };
            spawn_local(self.clone().release_orphan(held, grant));
            return;
        }
        if is_waiting {
            self.client.settle(key, Ok(token));
            // What the cancel has found replaces what is known of any grant.
            self.client.add_grant(session, token, grant);
        }
        // Otherwise a push or a poll has settled the wait meanwhile, and a guard may have the grant.
        self.client.note_found(session, number, token);
    }

    /// Releases a grant whose caller is gone, until the store has done so or its session is over. The keeper does not know of the
    /// grant: some stores answer a second cancel as if nothing were held.
    async fn release_orphan(self: Rc<Self>, held: Held, grant: B::GrantExtra) {
        while self.client.ttl(held.session).is_some() {
            let released = match self.connection().await {
                Ok(connection) => self.backend.release(&connection, &held, Some(&grant)).await,
                Err(failure) => Err(failure),
            };
            match released {
                Ok(()) | Err(Failure::Refused(_)) => return,
                Err(Failure::SessionEnded) => return self.client.session_ended(held.session, SessionEnd::Expired),
                Err(failure) => tracing::debug!(lock = held.lock.as_str(), error = %failure, "retrying the release"),
            }
            sleep(jittered(REPEAT_PAUSE)).await;
        }
    }

    /// Makes a call, again after transient failures of its connection, within the time that the backend allows. Returns also
    /// whether an attempt before the last may have taken effect.
    async fn repeat<T>(
        &self,
        mut call: impl AsyncFnMut(&Rc<B::Connection>) -> Result<T, Failure>,
    ) -> (Result<T, Failure>, bool) {
        let repeat_within = self.backend.repeat_within();
        let until = Instant::now() + repeat_within;
        let mut may_have_happened = false;
        loop {
            let connection = match repeat_within.is_zero() {
                true => self.connection().await,
                false => self.reconnector.connection_until(until).await,
            };
            let (reply, is_broken) = match connection {
                Ok(connection) => (call(&connection).await, connection.is_broken()),
                Err(failure) => (Err(failure), true),
            };
            match reply {
                Err(failure) if is_broken && failure.is_retryable() && Instant::now() + REPEAT_PAUSE < until => {
                    may_have_happened |= failure.may_have_taken_effect();
                    sleep(jittered(REPEAT_PAUSE)).await;
                }
                // The session is over, or the store says that this call changes nothing, also after an earlier attempt.
                Err(failure @ (Failure::SessionEnded | Failure::Refused(_))) => {
                    return (Err(failure), may_have_happened);
                }
                Err(failure) if may_have_happened => return (Err(failure.possibly_applied()), may_have_happened),
                reply => return (reply, may_have_happened),
            }
        }
    }

    /// Notifies the session that it has ended, if this failure says so.
    fn note_ended(&self, session: SessionId, failure: Failure) -> Failure {
        if matches!(failure, Failure::SessionEnded) {
            self.client.session_ended(session, SessionEnd::Expired);
        }
        failure
    }
}

#[async_trait(?Send)]
impl<B: Backend> Engine for Remote<B> {
    fn guarantees(&self) -> Guarantees {
        self.shared.backend.guarantees()
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        let shared = &self.shared;
        // One that was opened without an answer holds nothing, and ends after its TTL.
        let open = async |connection: &Rc<B::Connection>| shared.backend.open_session(connection, ttl, &label).await;
        let (session, _) = shared.repeat(open).await;
        Ok(shared.client.add_session(session?, ttl))
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let connection = self.shared.connection().await?;
        let timeout = keep_alive_timeout(self.shared.client.ttl(session), B::CALL_TIMEOUT);
        self.shared.backend.keep_alive(&connection, session, timeout).await
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        let connection = self.shared.connection().await?;
        match self.shared.backend.close_session(&connection, session).await {
            Ok(()) | Err(Failure::SessionEnded) => {
                self.shared.client.forget_session(session);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn detach_session(&self, session: SessionId) -> Result<(), Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.detach_session(&connection, session).await?;
        self.shared.client.forget_session(session);
        Ok(())
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Acquired, Failure> {
        let backend = &self.shared.backend;
        backend.begin_request(&acquire)?;
        let outcome = match acquire.patience {
            Patience::Wait => self.wait(acquire.clone()).await.map(Some),
            Patience::Try => self.try_once(&acquire).await,
        };
        let outcome = match outcome {
            Ok(Some(token)) => self.confirm(&acquire, token).await.map(Some),
            outcome => outcome,
        };
        backend.end_request(&acquire, outcome.as_ref().err());
        Ok(outcome?.map_or(Acquired::Busy, |token| Acquired::Granted { token }))
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        if let Some(token) = self.shared.client.found(session, number) {
            return Ok(Cancelled::WasGranted { token });
        }
        let connection = self.shared.connection().await?;
        match self.shared.backend.cancel(&connection, (session, number)).await {
            Ok(CancelReply::Granted(token, grant)) => {
                self.shared.client.add_grant(session, token, grant);
                Ok(Cancelled::WasGranted { token })
            }
            Ok(CancelReply::Gone) | Err(Failure::SessionEnded) => Ok(Cancelled::Gone),
            Err(failure) => Err(failure),
        }
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        let (shared, held) = (&self.shared, Held { session, lock, token });
        let mut grant = None;
        let (reply, may_have_happened) = shared
            .repeat(async |connection| {
                // Forget the grant before sending, so that a push saying it ended is not reported as a loss.
                grant = shared.client.remove_grant(session, token).or(grant.take());
                shared.backend.release(connection, &held, grant.as_ref()).await
            })
            .await;
        if let Ok(()) | Err(Failure::Refused(_)) = reply {
            shared.client.forget_found(session, token);
        }
        match reply {
            Ok(()) => Ok(Released::Now),
            Err(Failure::Refused(Refusal::NotHeld { .. })) if may_have_happened => Ok(Released::Repeated),
            Err(Failure::Refused(Refusal::NotHeld { .. })) => Ok(Released::Before),
            Err(Failure::SessionEnded) => {
                shared.client.session_ended(session, SessionEnd::Expired);
                Ok(Released::Before)
            }
            Err(failure) => {
                if let Some(grant) =
                    grant.filter(|_| !failure.may_have_taken_effect() && !matches!(failure, Failure::Refused(_)))
                {
                    shared.client.add_grant(session, token, grant);
                }
                Err(failure)
            }
        }
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.publish(&connection, &Held { session, lock, token }, &value).await
    }

    async fn sign(&self, session: SessionId, lock: LockName, token: Token) -> Result<SignedToken, Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.sign(&connection, &Held { session, lock, token }).await
    }

    async fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> Result<Forced, Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.force_release(&connection, &ForceRelease { lock, only, by, reason }).await
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.resize(&connection, &lock, limit).await
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.raise_tokens(&connection, above).await
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.inspect(&connection, &lock).await
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.list(&connection, &prefix).await
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        let connection = self.shared.connection().await?;
        self.shared.backend.watch(&connection, &prefix).await
    }
}
