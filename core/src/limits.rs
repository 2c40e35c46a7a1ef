//! The limits of a machine. They are part of its state, so that all replicas refuse the same requests.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Refusal;

/// The limits of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a lock's name.
    pub name_bytes: u32,
    /// Bytes of a label: a session's, an operator's, a reason.
    pub label_bytes: u32,
    /// Bytes of a published value.
    pub value_bytes: u32,
    /// Sessions open at once.
    pub sessions: u32,
    /// Locks held or wanted at once.
    pub locks: u32,
    /// Locks that one session holds or waits for at once.
    pub locks_per_session: u32,
    /// Locks in one request.
    pub locks_per_request: u32,
    /// Waiters in one lock's queue.
    pub waiters_per_lock: u32,
    /// The shortest TTL, in milliseconds.
    pub ttl_min_ms: u32,
    /// The longest TTL, in milliseconds.
    pub ttl_max_ms: u32,
    /// The longest lock-delay, in milliseconds.
    pub delay_max_ms: u32,
    /// Ended grants that a live lock remembers.
    pub history_per_lock: u32,
    /// Answered requests that a session remembers, so that their repeats are recognised; at least 1. Requests that wait
    /// or are held do not count: they are always recognised.
    pub answers_per_session: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            name_bytes: 512,
            label_bytes: 256,
            value_bytes: 4096,
            sessions: 2_000_000,
            locks: 4_000_000,
            locks_per_session: 100_000,
            locks_per_request: 64,
            waiters_per_lock: 100_000,
            ttl_min_ms: 100,
            // 32 bits of milliseconds are 49 days.
            ttl_max_ms: 45 * 24 * 60 * 60 * 1000,
            delay_max_ms: 60 * 60 * 1000,
            history_per_lock: 16,
            answers_per_session: 64,
        }
    }
}

/// Names a limit in a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// [`Limits::name_bytes`].
    NameBytes,
    /// [`Limits::label_bytes`].
    LabelBytes,
    /// [`Limits::value_bytes`].
    ValueBytes,
    /// [`Limits::sessions`].
    Sessions,
    /// [`Limits::locks`].
    Locks,
    /// [`Limits::locks_per_session`].
    LocksPerSession,
    /// [`Limits::locks_per_request`].
    LocksPerRequest,
    /// [`Limits::waiters_per_lock`].
    WaitersPerLock,
    /// [`Limits::ttl_min_ms`].
    TtlMinMs,
    /// [`Limits::ttl_max_ms`].
    TtlMaxMs,
    /// [`Limits::delay_max_ms`].
    DelayMaxMs,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::NameBytes => "the length of a lock's name in bytes",
            Limit::LabelBytes => "the length of a label in bytes",
            Limit::ValueBytes => "the length of a value in bytes",
            Limit::Sessions => "the number of open sessions",
            Limit::Locks => "the number of locks in use",
            Limit::LocksPerSession => "the number of locks of one session",
            Limit::LocksPerRequest => "the number of locks in one request",
            Limit::WaitersPerLock => "the number of waiters for one lock",
            Limit::TtlMinMs | Limit::TtlMaxMs => "ttl_ms",
            Limit::DelayMaxMs => "delay_ms",
        })
    }
}

impl Limits {
    /// Returns the limit's value.
    ///
    /// ```
    /// use palisade_core::{Limit, Limits};
    /// assert_eq!(Limits::default().of(Limit::NameBytes), 512);
    /// ```
    pub fn of(&self, limit: Limit) -> u64 {
        u64::from(match limit {
            Limit::NameBytes => self.name_bytes,
            Limit::LabelBytes => self.label_bytes,
            Limit::ValueBytes => self.value_bytes,
            Limit::Sessions => self.sessions,
            Limit::Locks => self.locks,
            Limit::LocksPerSession => self.locks_per_session,
            Limit::LocksPerRequest => self.locks_per_request,
            Limit::WaitersPerLock => self.waiters_per_lock,
            Limit::TtlMinMs => self.ttl_min_ms,
            Limit::TtlMaxMs => self.ttl_max_ms,
            Limit::DelayMaxMs => self.delay_max_ms,
        })
    }

    pub(crate) fn at_most(&self, limit: Limit, value: u64) -> Result<(), Refusal> {
        let max = self.of(limit);
        if value > max { Err(Refusal::OverLimit { limit, max, value }) } else { Ok(()) }
    }

    pub(crate) fn at_least(&self, limit: Limit, value: u64) -> Result<(), Refusal> {
        let min = self.of(limit);
        if value < min { Err(Refusal::UnderLimit { limit, min, value }) } else { Ok(()) }
    }
}
