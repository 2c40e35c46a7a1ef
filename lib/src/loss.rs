//! Why a lock was lost, and the state of one that was granted.

use std::fmt;
use std::time::Duration;

use palisade_core::{Ending, SessionEnd};

use crate::BootInstant;

/// Why a lock is no longer held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The session is over: it was not kept alive in time, or another program closed it or deleted it in the store.
    Expired,
    /// The lock was released by force.
    ForcedBy {
        /// The label of the client that did it. Not escaped: escape it before printing.
        by: String,
        /// The reason it gave. Not escaped: escape it before printing.
        reason: String,
    },
    /// This client closed its session.
    SessionClosed,
    /// This client released it.
    Released,
    /// This client has detached from its session, which holds the lock until its TTL expires.
    Detached,
    /// The store has lost its data, this lock included. Another client may hold it, and may have a lower token.
    DataLost {
        /// The sign of the data loss.
        what: String,
    },
    /// This process did not run, because it was stopped (SIGSTOP, Ctrl-Z) or its host was suspended, and its session
    /// was not kept alive meanwhile. Until `safe_until` no other client can have had the lock; since then, another
    /// may.
    Paused {
        /// The shortest time that the pause can have lasted.
        time: Duration,
        /// The end of the time in which it was certainly held.
        safe_until: BootInstant,
    },
    /// The engine could not be reached to keep the session alive. Until `safe_until` no other client can have had
    /// the lock; since then, another may.
    Unreachable {
        /// The end of the time in which it was certainly held.
        safe_until: BootInstant,
    },
}

/// If the keeper runs this much later than planned, its process or its host was paused (SIGSTOP, suspended VM).
const PAUSED: Duration = Duration::from_secs(1);

impl Loss {
    /// Returns the loss of a session that was not kept alive. The keeper planned to run at `due`, and runs only now.
    pub(crate) fn not_kept_alive(due: BootInstant, safe_until: BootInstant) -> Loss {
        let time = BootInstant::now().since(due);
        if time >= PAUSED { Loss::Paused { time, safe_until } } else { Loss::Unreachable { safe_until } }
    }

    pub(crate) fn from_ending(how: &Ending) -> Loss {
        match how {
            Ending::Forced(force) => {
                Loss::ForcedBy { by: force.by.as_str().to_owned(), reason: force.reason.as_str().to_owned() }
            }
            // A session that this client closes is marked as closed before the engine reports its end.
            Ending::SessionEnded(SessionEnd::Expired | SessionEnd::Closed) => Loss::Expired,
            Ending::Released => Loss::Released,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Expired => f.write_str("its session is over: it was not kept alive in time, or was deleted"),
            Loss::ForcedBy { by, reason } => {
                write!(f, "it was taken away by {}: {}", by.escape_debug(), reason.escape_debug())
            }
            Loss::SessionClosed => f.write_str("its session was closed"),
            Loss::Released => f.write_str("it was released"),
            Loss::Detached => {
                f.write_str("this client detached from its session, which holds it until its TTL expires")
            }
            Loss::DataLost { what } => write!(f, "{what}, and another client may hold it by now"),
            Loss::Paused { time, .. } => write!(
                f,
                "this process was paused for {:.1} s and did not keep its session alive, and another client may hold it \
                 by now",
                time.as_secs_f64()
            ),
            Loss::Unreachable { .. } => f.write_str(
                "the engine could not be reached to keep its session alive, and another client may hold it by now",
            ),
        }
    }
}

/// The state of a lock that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is held.
    Held,
    /// It is held, but two thirds of its lease have passed since the last confirmed keep-alive.
    Jeopardy {
        /// The end of the lease, unless a keep-alive succeeds before.
        safe_until: BootInstant,
    },
    /// It is no longer certain that it is held.
    Lost(Loss),
}
