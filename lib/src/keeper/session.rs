//! The state that guards and the keeper share: a session and its grants, readable from any thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_core::{LockNames, SessionId, Token};
use tokio::sync::Notify;

use super::renewal::Renewal;
use crate::{BootInstant, Loss, Standing};

/// A session as its client knows it.
#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) id: SessionId,
    /// See [`Opened::lifeline`](crate::engine::Opened).
    pub(crate) lifeline: Option<OwnedFd>,
    /// How long the session certainly lives after a keep-alive.
    pub(crate) lease: Duration,
    safe_until_ns: AtomicU64,
    /// When the keeper checks it next.
    due_ns: AtomicU64,
    is_in_jeopardy: AtomicBool,
    loss: OnceLock<Loss>,
    /// Notified when the session or one of its grants changes.
    changed: Notify,
}

impl SessionState {
    pub(crate) fn new(id: SessionId, renewal: &Renewal, lifeline: Option<OwnedFd>) -> SessionState {
        let safe_until = renewal.safe_until();
        SessionState {
            id,
            lifeline,
            lease: renewal.lease(),
            safe_until_ns: AtomicU64::new(safe_until.as_ns()),
            due_ns: AtomicU64::new(safe_until.as_ns()),
            is_in_jeopardy: AtomicBool::new(false),
            loss: OnceLock::new(),
            changed: Notify::new(),
        }
    }

    pub(crate) fn safe_until(&self) -> BootInstant {
        BootInstant::from_ns(self.safe_until_ns.load(Ordering::Acquire))
    }

    /// When the keeper checks it next. In the past if the keeper is late.
    pub(crate) fn due(&self) -> BootInstant {
        BootInstant::from_ns(self.due_ns.load(Ordering::Acquire))
    }

    pub(crate) fn set_due(&self, at: BootInstant) {
        self.due_ns.store(at.as_ns(), Ordering::Release);
    }

    /// Updates the standing. Returns whether jeopardy began or ended.
    pub(crate) fn update(&self, safe_until: BootInstant, is_in_jeopardy: bool) -> bool {
        let before = self.safe_until_ns.swap(safe_until.as_ns(), Ordering::AcqRel);
        let changed = self.is_in_jeopardy.swap(is_in_jeopardy, Ordering::AcqRel) != is_in_jeopardy;
        if changed || before != safe_until.as_ns() {
            self.changed.notify_waiters();
        }
        changed
    }

    pub(crate) fn lose(&self, loss: Loss) {
        // Only the first reason counts.
        drop(self.loss.set(loss));
        self.changed.notify_waiters();
    }

    /// The standing, by the clock as well as by what the keeper has noted: the keeper may have been paused too.
    pub(crate) fn standing(&self) -> Standing {
        if let Some(loss) = self.loss.get() {
            return Standing::Lost(loss.clone());
        }
        let safe_until = self.safe_until();
        if safe_until.has_passed() {
            return Standing::Lost(Loss::not_kept_alive(self.due(), safe_until));
        }
        if self.is_in_jeopardy.load(Ordering::Acquire) { Standing::Jeopardy { safe_until } } else { Standing::Held }
    }

    /// The loss that the keeper has noted.
    pub(crate) fn noted_loss(&self) -> Option<Loss> {
        self.loss.get().cloned()
    }

    /// Waits until `inspect` returns something; calls it after every change.
    pub(crate) async fn watch<T>(&self, mut inspect: impl FnMut() -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = inspect() {
                return found;
            }
            changed.await;
        }
    }
}

/// A grant as its client knows it.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) locks: LockNames,
    pub(crate) session: Arc<SessionState>,
    loss: OnceLock<Loss>,
    /// A release was sent, and may have taken effect.
    was_release_sent: AtomicBool,
    /// The application is done with it. The release may not have been sent yet.
    is_given_up: AtomicBool,
}

impl Grant {
    pub(crate) fn new(token: Token, locks: LockNames, session: Arc<SessionState>) -> Grant {
        let (was_release_sent, is_given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Grant { token, locks, session, loss: OnceLock::new(), was_release_sent, is_given_up }
    }

    pub(crate) fn lose(&self, loss: Loss) {
        // Only the first reason counts.
        drop(self.loss.set(loss));
        self.session.changed.notify_waiters();
    }

    pub(crate) fn standing(&self) -> Standing {
        match (self.loss.get(), self.session.standing()) {
            (Some(loss), _) => Standing::Lost(loss.clone()),
            (None, Standing::Lost(loss)) => Standing::Lost(loss),
            (None, _) if self.is_given_up.load(Ordering::Acquire) => Standing::Lost(Loss::Released),
            (None, standing) => standing,
        }
    }

    /// Refuses the token from now on: the grant is about to be released, and another client may get the lock before the reply comes.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
        self.session.changed.notify_waiters();
    }

    /// The loss of the grant, or of its session, that the keeper has noted.
    pub(crate) fn noted_loss(&self) -> Option<Loss> {
        self.loss.get().cloned().or_else(|| self.session.noted_loss())
    }

    /// Notes that a release is sent. Returns whether one was sent before.
    pub(crate) fn note_release(&self) -> bool {
        self.was_release_sent.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_released(&self) -> bool {
        self.loss.get() == Some(&Loss::Released)
    }
}
