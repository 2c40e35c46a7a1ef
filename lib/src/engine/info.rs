//! A lock as people see it.

use palisade_core::{
    Ended, Ending, GrantState, Kind, LockName, LockView, Machine, Mode, SessionEnd, SessionId, Token, Value,
};
use serde::Serialize;

/// A lock with holders or waiters, or that was released by force lately.
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
    /// What its holder publishes.
    pub value: Option<Value>,
    /// The last grants that ended while the lock was in use, oldest first; before them, on engines that keep the rules of
    /// `palisade-core`, those after which it was not in use because it was taken away.
    pub history: Vec<EndedInfo>,
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HolderInfo {
    /// Its token.
    pub token: Token,
    /// How the lock is held.
    pub mode: Mode,
    /// The holder; `None` when its session has expired and the lock is withheld for the rest of a delay.
    pub session: Option<SessionId>,
    /// The label of the holder's session. Not escaped: escape it before printing.
    pub label: Option<String>,
    /// How long it has been held, in milliseconds, where the engine knows. For people only.
    pub held_for_ms: Option<u64>,
    /// How long the session lives without another keep-alive, in milliseconds, where the engine knows.
    pub time_left_ms: Option<u64>,
}

/// A request in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaiterInfo {
    /// The session that waits.
    pub session: SessionId,
    /// The label of the waiter's session. Not escaped: escape it before printing.
    pub label: String,
    /// How the lock is wanted.
    pub mode: Mode,
}

/// A grant that is over.
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
    /// What the rules know of a lock. `times` adds what only the host knows of a grant: how long it has been held,
    /// and how long its session lives yet.
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

    /// The remains of a lock without holders and waiters; `None` without remains.
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
