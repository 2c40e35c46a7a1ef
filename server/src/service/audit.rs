//! What is recorded for whoever has to answer for it later: who was let in, who was refused what, which locks were
//! taken away. Texts of clients are escaped, so that none can forge a line of the log.

use std::sync::Arc;

use palisade_core::{Answer, Command, Label, LockName, Refusal, Token};

use super::pace::Pace;
use super::state::code;

/// The target of all audit records.
const TARGET: &str = "palisade::audit";

/// Where a command comes from.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) protocol: Protocol,
    pub(super) audit: Arc<Audit>,
}

/// Over which protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Resp,
    Http,
}

impl Protocol {
    fn as_str(self) -> &'static str {
        match self {
            Protocol::Resp => "resp",
            Protocol::Http => "http",
        }
    }
}

/// An attempt to take a lock away, or to raise the tokens.
pub(super) struct Attempt {
    origin: Origin,
    at: Attempted,
}

enum Attempted {
    Break { lock: LockName, only: Option<Token>, by: Label, reason: Label },
    Raise { above: Token },
}

impl Attempt {
    /// The attempt that a command is, if it is one.
    pub(super) fn of(command: &Command, origin: impl FnOnce() -> Option<Origin>) -> Option<Attempt> {
        let at = match command {
            Command::ForceRelease { lock, only, by, reason } => {
                Attempted::Break { lock: lock.clone(), only: *only, by: by.clone(), reason: reason.clone() }
            }
            Command::RaiseTokens { above } => Attempted::Raise { above: *above },
            _ => return None,
        };
        Some(Attempt { origin: origin()?, at })
    }

    /// Records the outcome: a success always, refusals at a limited rate.
    pub(super) fn record(&self, answer: &Result<Answer, Refusal>) {
        let Origin { protocol, audit } = &self.origin;
        let Audit { peer, user, .. } = &**audit;
        let (over, user) = (protocol.as_str(), user.as_deref());
        let (lock, only, by, reason) = match &self.at {
            Attempted::Break { lock, only, by, reason } => (lock, only, by, reason),
            Attempted::Raise { above } => {
                if let Ok(Answer::Raised { last }) = answer {
                    let (above, outcome) = (above.get(), if *last < above.get() { "done" } else { "already above" });
                    tracing::warn!(
                        target: TARGET, what = "raise tokens", outcome, user, peer, over, above, last,
                        "tokens were raised"
                    );
                }
                return;
            }
        };
        let (lock, by, reason) = (escaped(lock.as_str()), escaped(by.as_str()), escaped(reason.as_str()));
        let only = only.map(Token::get);
        match answer {
            Ok(Answer::Forced { grants, moved_to }) => tracing::warn!(
                target: TARGET, what = "break", outcome = "done", user, peer, over, lock, by, reason, only, grants,
                moved_to = moved_to.get(), "a lock was taken away"
            ),
            Ok(_) => {}
            Err(refusal) => audit.tell(|| {
                tracing::warn!(
                    target: TARGET, what = "break", outcome = code(refusal), user, peer, over, lock, by, reason, only,
                    "a lock was not taken away"
                );
            }),
        }
    }
}

/// Records a call that used what belongs to another session.
pub(super) fn denials(origin: impl FnOnce() -> Option<Origin>, answer: &Result<Answer, Refusal>) {
    if let Err(refusal @ Refusal::OtherSession { lock, token }) = answer
        && let Some(Origin { protocol, audit }) = origin()
    {
        let Audit { peer, user, .. } = &*audit;
        let (over, user, lock) = (protocol.as_str(), user.as_deref(), escaped(lock.as_str()));
        audit.tell(|| {
            tracing::warn!(
                target: TARGET, what = "use", outcome = code(refusal), user, peer, over, lock, token = token.get(),
                "another session's grant was named"
            );
        });
    }
}

fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}

/// What one client did.
#[derive(Debug)]
pub(crate) struct Audit {
    peer: String,
    user: Option<Arc<str>>,
    pace: Arc<Pace>,
}

impl Audit {
    /// Of a client at this address, and of this user if it is one.
    pub(crate) fn new(peer: String, user: Option<&str>, pace: Arc<Pace>) -> Audit {
        Audit { peer, user: user.map(Into::into), pace }
    }

    /// Of the same client, which has said that it is this user.
    pub(crate) fn of_user(&self, user: &str, pace: Arc<Pace>) -> Audit {
        Audit::new(self.peer.clone(), Some(user), pace)
    }

    pub(crate) fn peer(&self) -> &str {
        &self.peer
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

    pub(super) fn does_not_read(&self, bytes: usize) {
        let (peer, user) = (&self.peer, self.user.as_deref());
        self.tell(|| tracing::warn!(peer, user, bytes, "a client that does not read what it asked for is cut off"));
    }

    fn tell(&self, tell: impl FnOnce()) {
        let (peer, user) = (&self.peer, self.user.as_deref());
        let untold = |untold| tracing::info!(target: TARGET, peer, user, untold, "more of the same");
        self.pace.tell(untold, tell);
    }
}
