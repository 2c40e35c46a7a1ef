//! The state of a lock, for people.

use palisade_core::{
    Ended, Ending, GrantState, Kind, LockName, LockView, Machine, Mode, SessionEnd, SessionId, Token, Value,
};
use serde::Serialize;

/// A lock that has holders or waiters, or was released by force recently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LockInfo {
    /// Its name.
    pub name: LockName,
    /// How many permits it has, for a semaphore.
    pub limit: Option<u32>,
    /// Its holders, oldest first.
    pub holders: Vec<HolderInfo>,
    /// Its waiters, in the order of the queue.
    pub waiters: Vec<WaiterInfo>,
    /// The value that its holder publishes.
    pub value: Option<Value>,
    /// The last grants that ended while the lock was in use, oldest first. The embedded, memory and service engines also list,
    /// before them, grants that were released by force and left the lock unused.
    pub history: Vec<EndedInfo>,
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HolderInfo {
    /// Its token.
    pub token: Token,
    /// How the lock is held.
    pub mode: Mode,
    /// The holder; `None` if its session has expired and its lock-delay lasts.
    pub session: Option<SessionId>,
    /// The label of the holder's session. Not escaped: escape it before printing.
    pub label: Option<String>,
    /// How long it has been held, in milliseconds; `None` if the engine does not know it. For people only.
    pub held_for_ms: Option<u64>,
    /// How long the session lives without another keep-alive, in milliseconds; `None` if the engine does not know it.
    pub time_left_ms: Option<u64>,
}

/// A request in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaiterInfo {
    /// The session that waits.
    pub session: SessionId,
    /// The label of the waiter's session. Not escaped: escape it before printing.
    pub label: String,
    /// How the lock is requested.
    pub mode: Mode,
}

/// A grant that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndedInfo {
    /// Its token.
    pub token: Token,
    /// The session that held it.
    pub session: SessionId,
    /// The label of that session. Not escaped: escape it before printing.
    pub label: String,
    /// How it ended, in words: `released`, `closed`, `expired`, or `forced by …: …`. Not escaped.
    pub how: String,
}

impl From<&Ended> for EndedInfo {
    fn from(ended: &Ended) -> EndedInfo {
        let Ended { session, label, token, how, .. } = ended;
        EndedInfo { token: *token, session: *session, label: label.as_str().to_owned(), how: in_words(how) }
    }
}

pub(crate) fn in_words(how: &Ending) -> String {
    match how {
        Ending::Released => "released".to_owned(),
        Ending::SessionEnded(SessionEnd::Closed) => "closed".to_owned(),
        Ending::SessionEnded(SessionEnd::Expired) => "expired".to_owned(),
        Ending::Forced(force) => format!("forced by {}: {}", force.by.as_str(), force.reason.as_str()),
    }
}

impl LockInfo {
    /// Returns the state of a lock in the machine. `times` adds what the machine does not know of a grant: how long it has
    /// been held, and how long its session lives without another keep-alive.
    pub(crate) fn of(
        lock: LockView<'_>,
        times: impl Fn(Option<SessionId>, Token) -> (Option<u64>, Option<u64>),
    ) -> LockInfo {
        let holders = lock.holders().map(|grant| {
            let (session, label) = match grant.state {
                GrantState::Held { session, label } => (Some(session), Some(label.as_str().to_owned())),
                GrantState::Withheld => (None, None),
            };
            let (held_for_ms, time_left_ms) = times(session, grant.token);
            HolderInfo { token: grant.token, mode: grant.mode, session, label, held_for_ms, time_left_ms }
        });
        let waiters = lock.waiters().map(|waiter| WaiterInfo {
            session: waiter.session,
            label: waiter.label.as_str().to_owned(),
            mode: waiter.mode,
        });
        LockInfo {
            name: lock.name().clone(),
            limit: match lock.kind() {
                Kind::Lock => None,
                Kind::Semaphore { limit } => Some(limit),
            },
            holders: holders.collect(),
            waiters: waiters.collect(),
            value: lock.value().cloned(),
            history: lock.forced_before().chain(lock.history()).map(EndedInfo::from).collect(),
        }
    }

    /// Returns a lock without holders and waiters that was released by force recently; `None` if it was not.
    pub(crate) fn idle(machine: &Machine, name: &LockName) -> Option<LockInfo> {
        let history: Vec<_> = machine.forced(name).map(EndedInfo::from).collect();
        let (limit, holders, waiters, value) = (None, Vec::new(), Vec::new(), None);
        (!history.is_empty()).then(|| LockInfo { name: name.clone(), limit, holders, waiters, value, history })
    }

    /// Whether it has holders or waiters.
    pub fn is_in_use(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty()
    }
}
