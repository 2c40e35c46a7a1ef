//! What is recorded for whoever has to answer for it later: who was let in, who was refused what, which locks were
//! taken away. Texts of clients are escaped, so that none can forge a line of the log.

use std::sync::Arc;

use palisade_core::{Answer, Command, Label, LockName, Refusal, Token};

use super::pace::Pace;
use super::state::{Origin, code};

/// The target of all audit records.
const TARGET: &str = "palisade::audit";

/// An attempt to take a lock away.
pub(super) struct Attempt {
    origin: Option<Origin>,
    lock: LockName,
    only: Option<Token>,
    by: Label,
    reason: Label,
}

impl Attempt {
    /// The attempt that a command is, if it is one.
    pub(super) fn of(command: &Command, origin: Option<Origin>) -> Option<Attempt> {
        let Command::ForceRelease { lock, only, by, reason } = command else { return None };
        Some(Attempt { origin, lock: lock.clone(), only: *only, by: by.clone(), reason: reason.clone() })
    }

    pub(super) fn record(&self, answer: &Result<Answer, Refusal>) {
        let (who, over) = who(self.origin.as_ref());
        let only = self.only.map(Token::get);
        let (lock, by, reason) =
            (escaped(self.lock.as_str()), escaped(self.by.as_str()), escaped(self.reason.as_str()));
        match answer {
            Ok(Answer::Forced { grants, moved_to }) => tracing::warn!(
                target: TARGET, what = "break", outcome = "done", who, over, lock, by, reason, only, grants,
                moved_to = moved_to.get(), "a lock was taken away"
            ),
            Ok(_) => {}
            Err(refusal) => tracing::warn!(
                target: TARGET, what = "break", outcome = code(refusal), who, over, lock, by, reason, only,
                "a lock was not taken away"
            ),
        }
    }
}

/// Records a call that used what belongs to another session.
pub(super) fn denials(origin: Option<Origin>, answer: &Result<Answer, Refusal>) {
    if let Err(refusal @ Refusal::OtherSession { lock, token }) = answer {
        let (who, over) = who(origin.as_ref());
        tracing::warn!(
            target: TARGET, what = "use", outcome = code(refusal), who, over, lock = escaped(lock.as_str()),
            token = token.get(), "another session's grant was named"
        );
    }
}

fn who(origin: Option<&Origin>) -> (Option<String>, &'static str) {
    match origin {
        Some(Origin::Http(name)) => (Some(escaped(name)), "http"),
        Some(Origin::Resp) | None => (None, "resp"),
    }
}

fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}

/// What one client did.
#[derive(Debug)]
pub(crate) struct Audit {
    peer: String,
    pace: Arc<Pace>,
}

impl Audit {
    /// Of a client that stays on one connection.
    pub(super) fn new(peer: String) -> Audit {
        Audit::paced(peer, Arc::new(Pace::new()))
    }

    /// Of one that may come anew each time, and has its pace all the same.
    pub(crate) fn paced(peer: String, pace: Arc<Pace>) -> Audit {
        Audit { peer, pace }
    }

    pub(crate) fn let_in(&self, user: &str, how: &str) {
        tracing::debug!(target: TARGET, peer = self.peer, user, how, "let in");
    }

    /// The name is what a stranger has said.
    pub(super) fn not_let_in(&self, name: &[u8]) {
        let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
        self.tell(|| tracing::info!(target: TARGET, peer = self.peer, ?name, "not let in"));
    }

    pub(super) fn denied(&self, user: &str, why: &str) {
        self.tell(|| tracing::info!(target: TARGET, peer = self.peer, user, why, "denied"));
    }

    pub(crate) fn not_encrypted(&self, why: &str) {
        self.tell(|| tracing::info!(target: TARGET, peer = self.peer, why, "no encrypted connection came about"));
    }

    fn tell(&self, tell: impl FnOnce()) {
        let untold = |untold| tracing::info!(target: TARGET, peer = self.peer, untold, "more of the same");
        self.pace.tell(untold, tell);
    }
}
