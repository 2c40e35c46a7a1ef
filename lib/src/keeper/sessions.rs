//! The session loop: opens a session, renews it, and replaces it when it is lost.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{BadNumber, Label, Ttl};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::CLOSE_TIMEOUT;
use super::driver::{CurrentSession, Driver, RETRY};
use super::op::Wait;
use super::renewal::{Renewal, Step};
use super::session::SessionState;
use crate::engine::{Failure, Notice, Opened, Unavailable};
use crate::{BootInstant, Error, ErrorKind, Loss};

/// The longest pause between two attempts to open a session.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why no session could be opened.
#[derive(Clone)]
pub(super) struct OpenError {
    what: String,
    /// Whether it may succeed without a change by the operator.
    is_retryable: bool,
}

/// An open session and its renewal.
pub(super) struct Session {
    current: Rc<CurrentSession>,
    renewal: Renewal,
    notices: mpsc::UnboundedReceiver<Notice>,
}

impl Driver {
    pub(super) async fn open(&self) -> Result<Session, Error> {
        let bad = |bad: BadNumber| self.error(ErrorKind::Misuse(crate::Misuse::Number(bad)), "open a session");
        let ttl = Ttl::from_ms(u64::try_from(self.options.ttl.as_millis()).unwrap_or(u64::MAX)).map_err(bad)?;
        let requested_at = BootInstant::now();
        let opened = self.engine.open_session(ttl, Label::new(&self.options.label)).await;
        let Opened { session, notices, lifeline } =
            opened.map_err(|failure| self.error(failure, "open a session"))?;
        // In whole milliseconds, as the engine counts.
        let renewal = Renewal::new(Duration::from_millis(ttl.as_ms()), self.options.drift(), requested_at);
        let state = Arc::new(SessionState::new(session, &renewal, lifeline));
        let current = Rc::new(CurrentSession::new(state));
        *self.current.borrow_mut() = Some(current.clone());
        *self.open_error.borrow_mut() = None;
        self.opened.notify_waiters();
        tracing::debug!(engine = self.guarantees.engine, session = session.get(), "session opened");
        Ok(Session { current, renewal, notices })
    }

    /// Keeps one session after the other until the client is closed.
    pub(super) async fn keep_sessions(self: Rc<Self>, mut session: Session) {
        loop {
            let loss = self.keep_session(&mut session).await;
            if self.is_closed() {
                return;
            }
            tracing::warn!(engine = self.guarantees.engine, session = session.current.state.id.get(), %loss, "session lost");
            metrics::counter!("palisade_session_losses_total", "engine" => self.guarantees.engine).increment(1);
            let held = session.current.grant_count();
            metrics::counter!("palisade_losses_total", "engine" => self.guarantees.engine).increment(held);
            session.current.state.lose(loss);
            *self.current.borrow_mut() = None;
            spawn_local(self.clone().close_lost(session.current.state.clone()));
            let mut pause = RETRY;
            session = loop {
                match self.open().await {
                    Ok(session) => break session,
                    Err(error) => {
                        tracing::debug!(%error, "no new session yet");
                        self.note_open_error(&error);
                    }
                }
                crate::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                if self.is_closed() {
                    return;
                }
            };
            if self.is_closed() {
                return self.close_without_caller().await;
            }
        }
    }

    /// Notes why no session can be opened, for the acquires that wait for one.
    fn note_open_error(&self, error: &Error) {
        let noted = match error.kind() {
            ErrorKind::Outage { what, is_retryable, .. } => {
                OpenError { what: what.clone(), is_retryable: *is_retryable }
            }
            ErrorKind::Denied { what } => OpenError { what: what.clone(), is_retryable: false },
            _ => OpenError { what: error.to_string(), is_retryable: error.is_retryable() },
        };
        *self.open_error.borrow_mut() = Some(noted);
        self.opened.notify_waiters();
    }

    /// Waits until opening a session fails for good, or once more if the caller does not wait for a later attempt; returns why.
    pub(super) async fn open_failed(&self, wait: Wait) -> Error {
        let mut is_new = false;
        loop {
            let opened = self.opened.notified();
            let failed = self.open_error.borrow().clone();
            if failed.is_some_and(|error| !error.is_retryable || (is_new && wait == Wait::No)) {
                return self.no_session();
            }
            opened.await;
            is_new = true;
        }
    }

    /// The error of an acquire without a session.
    pub(super) fn no_session(&self) -> Error {
        let failed = self.open_error.borrow().clone();
        let OpenError { what, is_retryable } = failed.unwrap_or_else(|| OpenError {
            what: "there is no session, and the engine has not answered the request for a new one".to_owned(),
            is_retryable: true,
        });
        let why = Unavailable::new(what).without_effect();
        self.error(Failure::from(if is_retryable { why } else { why.permanent() }), "acquire")
    }

    /// Keeps one session until it is lost; returns why.
    async fn keep_session(self: &Rc<Self>, session: &mut Session) -> Loss {
        let state = session.current.state.clone();
        let (replies, mut received) = mpsc::unbounded_channel();
        loop {
            let now = BootInstant::now();
            let step = session.renewal.step(now);
            let safe_until = session.renewal.safe_until();
            if state.update(safe_until, session.renewal.is_in_jeopardy(now)) {
                tracing::warn!(session = state.id.get(), standing = ?state.standing(), "session's standing changed");
            }
            let ended = match step {
                Step::Lose => return Loss::not_kept_alive(state.due(), safe_until),
                Step::Renew => {
                    spawn_local(self.clone().renew(state.clone(), now, replies.clone()));
                    None
                }
                Step::Wait(until) => {
                    state.set_due(until);
                    tokio::select! {
                        biased;
                        () = until.reached() => None,
                        Some((sent_at, reply)) = received.recv() => match reply {
                            Ok(()) => {
                                session.renewal.confirmed(sent_at, BootInstant::now());
                                None
                            }
                            Err(Failure::SessionEnded) => Some(Loss::Expired),
                            Err(_) => {
                                session.renewal.failed(BootInstant::now());
                                None
                            }
                        },
                        loss = state.watch(|| state.noted_loss()) => Some(loss),
                        notice = session.notices.recv() => self.handle_notice(&session.current, notice),
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
        replies: mpsc::UnboundedSender<(BootInstant, Result<(), Failure>)>,
    ) {
        let reply = self.engine.keep_alive(state.id).await;
        let lag = BootInstant::now().since(sent_at);
        metrics::histogram!("palisade_renew_lag_seconds", "engine" => self.guarantees.engine)
            .record(lag.as_secs_f64());
        if let Err(failure) = &reply {
            tracing::warn!(session = state.id.get(), error = %failure, "keep-alive failed");
        }
        // The receiver is gone if the session was lost meanwhile.
        drop(replies.send((sent_at, reply)));
    }

    /// Ends a grant that the engine ended. Returns the loss if the whole session ended.
    fn handle_notice(&self, session: &CurrentSession, notice: Option<Notice>) -> Option<Loss> {
        match notice {
            Some(Notice::GrantEnded { token, how }) => {
                // A client that closes its session ends its grants for that reason.
                let loss = session.state.noted_loss().unwrap_or_else(|| Loss::from_ending(&how));
                let grant = session.grants.borrow_mut().remove(&token);
                if let Some(grant) = grant {
                    tracing::warn!(token = token.get(), %loss, "lock lost");
                    metrics::counter!("palisade_losses_total", "engine" => self.guarantees.engine).increment(1);
                    grant.lose(loss);
                } else if session.pending_acquires.get() > 0 {
                    session.ended_early.borrow_mut().insert(token, loss);
                }
                None
            }
            Some(Notice::SessionEnded(how)) => Some(Loss::from_ending(&palisade_core::Ending::SessionEnded(how))),
            Some(Notice::DataLost { what }) => Some(Loss::DataLost { what }),
            None => Some(Loss::Expired),
        }
    }

    /// Ends a lost session at the engine, where it may still live, so that other clients need not wait for its TTL.
    async fn close_lost(self: Rc<Self>, state: Arc<SessionState>) {
        let expires_at = BootInstant::now() + self.options.ttl;
        while !expires_at.has_passed() && self.engine.close_session(state.id).await.is_err() {
            crate::time::sleep(RETRY).await;
        }
    }

    /// Closes the session. There is no caller to report a failure to.
    pub(super) async fn close_without_caller(&self) {
        drop(self.open_client.borrow_mut().take());
        let session = self.current.borrow_mut().take();
        if let Some(session) = session {
            session.state.lose(Loss::SessionClosed);
            // Without a reply in time, the session ends when its TTL expires.
            drop(crate::time::timeout(CLOSE_TIMEOUT, self.engine.close_session(session.state.id)).await);
        }
    }
}
