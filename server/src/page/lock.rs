//! A lock as JSON, for HTTP and for the page.

use palisade_core::{LockName, Mode, SessionId, Value};
use serde::Serialize;

use crate::net::words::{ending, mode_word};
use crate::node::{HolderReport, LockReport, WaiterReport};

/// A lock, its holders and its waiters.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(missing_docs)]
pub struct Lock {
    pub name: String,
    /// How many permits it has, if it is a semaphore.
    pub limit: Option<u32>,
    /// How many grants there are, on all pages together.
    pub holder_count: u32,
    /// How many requests wait, on all pages together.
    pub waiter_count: u32,
    /// The grants, the oldest first; a list shows 16 holders and waiters of each lock.
    pub holders: Vec<Holder>,
    /// In the order in which they came, behind the last of the holders.
    pub waiters: Vec<Waiter>,
    /// Where the next page of holders and waiters begins; 0 after the last.
    pub cursor: u32,
    /// What its holder publishes. What is not UTF-8 is shown as U+FFFD.
    pub value: Option<String>,
    /// The last grants that ended, oldest first.
    pub history: Vec<Ended>,
}

/// A grant of a lock.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Holder {
    pub token: u64,
    /// `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// How many, if it is a semaphore.
    pub permits: Option<u32>,
    /// Null when the session expired and the lock is withheld.
    pub session: Option<u64>,
    pub label: Option<String>,
    pub held_for_ms: Option<u64>,
    /// How long the session still lives without a keep-alive.
    pub time_left_ms: Option<u64>,
    /// How long the session lives after a keep-alive; null if it has no end.
    pub ttl_ms: Option<u64>,
}

/// A request in the queue of a lock.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Waiter {
    pub session: u64,
    pub label: String,
    /// `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// How many, if it is a semaphore.
    pub permits: Option<u32>,
    pub waits_for_ms: Option<u64>,
    /// How long the session still lives without a keep-alive.
    pub time_left_ms: Option<u64>,
    /// How long the session lives after a keep-alive; null if it has no end.
    pub ttl_ms: Option<u64>,
}

/// A grant that has ended.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Ended {
    pub token: u64,
    pub session: u64,
    pub label: String,
    /// `released`, `closed`, `expired`, or the operator that took it away and the reason.
    pub how: String,
}

/// Returns a published value as text. Bytes that are not UTF-8 become U+FFFD.
pub fn text(value: &Value) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

impl Lock {
    /// Returns a lock without holders and waiters.
    pub(crate) fn unused(name: &LockName) -> Lock {
        Lock { name: name.as_str().to_owned(), ..Lock::default() }
    }
}

impl Holder {
    /// Returns a holder of which only the mode and the token are known.
    pub fn new(token: u64, mode: Mode) -> Holder {
        let (mode, permits) = mode_word(mode);
        let (session, label) = (None, None);
        Holder { token, mode, permits, session, label, held_for_ms: None, time_left_ms: None, ttl_ms: None }
    }
}

impl Waiter {
    /// Returns a waiter of which no times are known.
    pub fn new(session: u64, label: String, mode: Mode) -> Waiter {
        let (mode, permits) = mode_word(mode);
        Waiter { session, label, mode, permits, waits_for_ms: None, time_left_ms: None, ttl_ms: None }
    }
}

impl From<LockReport> for Lock {
    fn from(report: LockReport) -> Lock {
        Lock {
            name: report.name.as_str().to_owned(),
            limit: report.limit,
            holder_count: report.holder_count,
            waiter_count: report.waiter_count,
            holders: report.holders.into_iter().map(Into::into).collect(),
            waiters: report.waiters.into_iter().map(Into::into).collect(),
            cursor: report.cursor,
            value: report.value.as_ref().map(text),
            history: report.history.iter().map(Into::into).collect(),
        }
    }
}

impl From<HolderReport> for Holder {
    fn from(report: HolderReport) -> Holder {
        let (session, label) = report.session.unzip();
        Holder {
            session: session.map(SessionId::get),
            label: label.map(|label| label.as_str().to_owned()),
            held_for_ms: report.held_for_ms,
            time_left_ms: report.time_left_ms,
            ttl_ms: report.ttl_ms,
            ..Holder::new(report.token.get(), report.mode)
        }
    }
}

impl From<WaiterReport> for Waiter {
    fn from(report: WaiterReport) -> Waiter {
        Waiter {
            waits_for_ms: report.waits_for_ms,
            time_left_ms: report.time_left_ms,
            ttl_ms: report.ttl_ms,
            ..Waiter::new(report.session.get(), report.label.as_str().to_owned(), report.mode)
        }
    }
}

impl From<&palisade_core::Ended> for Ended {
    fn from(ended: &palisade_core::Ended) -> Ended {
        let label = ended.label.as_str().to_owned();
        Ended { token: ended.token.get(), session: ended.session.get(), label, how: ending(&ended.how) }
    }
}
