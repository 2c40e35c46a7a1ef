//! The node's metrics: plain numbers of one thread, copied for every report.

use palisade_core::{Command, Ending, Event, SessionEnd};

use super::principal::Protocol;
use crate::request::Query;

/// Upper bounds for the duration of a commit in seconds: from a fast SSD to an overloaded disk.
const COMMIT_SECONDS: &[f64] =
    &[0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
/// Upper bounds for waits in seconds, up to an hour.
pub(crate) const WAIT_SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];
/// Upper bounds for commands in one entry.
const BATCH_SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// Observations, counted by the bucket they fall into.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Histogram {
    pub bounds: &'static [f64],
    /// One count for each bucket, and one for values above all bounds.
    pub counts: Vec<u64>,
    pub sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(crate) fn observe(&mut self, value: f64) {
        let index = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[index] += 1;
        self.sum += value;
    }
}

/// One counter for each of a few names.
#[derive(Debug, Clone)]
pub struct Counts<const N: usize> {
    names: &'static [&'static str; N],
    counts: [u64; N],
}

impl<const N: usize> Counts<N> {
    fn new(names: &'static [&'static str; N]) -> Counts<N> {
        Counts { names, counts: [0; N] }
    }

    /// Returns the counters that are not zero.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.iter().copied().zip(self.counts).filter(|(_, count)| *count > 0)
    }
}

/// Commands and queries.
const COMMANDS: &[&str; 18] = &[
    "open_session",
    "close_session",
    "expire_session",
    "acquire",
    "release",
    "cancel",
    "publish",
    "break",
    "resize",
    "end_delay",
    "raise_tokens",
    "configure",
    "show",
    "list",
    "leader",
    "sign",
    "extend",
    "held",
];

/// How a grant can end.
const ENDINGS: &[&str; 4] = &["released", "session_closed", "session_expired", "forced"];

/// Everything that is counted since the start.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Metrics {
    /// Commands and queries, by protocol.
    pub resp_commands: Counts<18>,
    pub http_commands: Counts<18>,
    pub keepalives: u64,
    pub grants: u64,
    /// Grants that ended, by cause.
    pub ended: Counts<4>,
    pub forced: u64,
    pub sessions_expired: u64,
    /// Places taken in all queues together, now.
    pub waiting: u64,
    pub waits_granted: Histogram,
    pub waits_left: Histogram,
    /// From handing over a write until it is durable.
    pub commits: Histogram,
    pub batches: Histogram,
    /// How often this node has learned of a leader, itself or another one.
    pub leader_changes: u64,
    /// Snapshots that have reached another member, and that came from one.
    pub snapshots_sent: u64,
    pub snapshots_received: u64,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            resp_commands: Counts::new(COMMANDS),
            http_commands: Counts::new(COMMANDS),
            keepalives: 0,
            grants: 0,
            ended: Counts::new(ENDINGS),
            forced: 0,
            sessions_expired: 0,
            waiting: 0,
            waits_granted: Histogram::new(WAIT_SECONDS),
            waits_left: Histogram::new(WAIT_SECONDS),
            commits: Histogram::new(COMMIT_SECONDS),
            batches: Histogram::new(BATCH_SIZES),
            leader_changes: 0,
            snapshots_sent: 0,
            snapshots_received: 0,
        }
    }
}

impl Metrics {
    fn count(&mut self, protocol: Protocol, index: usize) {
        let commands = match protocol {
            Protocol::Resp => &mut self.resp_commands,
            Protocol::Http => &mut self.http_commands,
        };
        commands.counts[index] += 1;
    }

    pub(super) fn command(&mut self, protocol: Protocol, command: &Command) {
        let index = match command {
            Command::OpenSession { .. } => 0,
            Command::CloseSession { .. } => 1,
            Command::ExpireSession { .. } => 2,
            Command::Acquire(_) | Command::OpenAndAcquire(_) => 3,
            Command::Release { .. } | Command::ReleaseHeld { .. } => 4,
            Command::Cancel { .. } => 5,
            Command::Publish { .. } => 6,
            Command::ForceRelease { .. } => 7,
            Command::Resize { .. } => 8,
            Command::EndDelay { .. } => 9,
            Command::RaiseTokens { .. } => 10,
            Command::Configure { .. } => 11,
            Command::ExtendHeld { .. } => 16,
        };
        self.count(protocol, index);
    }

    pub(super) fn query(&mut self, protocol: Protocol, query: &Query) {
        let index = match query {
            Query::Lock { .. } => 12,
            Query::Locks { .. } => 13,
            Query::Leader { .. } => 14,
            Query::Claims { .. } => 15,
            Query::Held { .. } => 17,
        };
        self.count(protocol, index);
    }

    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::Queued { locks, .. } => self.waiting += locks.len() as u64,
            Event::LeftQueue { locks, .. } => self.stop_waiting(locks.len()),
            Event::Granted { locks, ticket, .. } => {
                self.grants += 1;
                if ticket.is_some() {
                    self.stop_waiting(locks.len());
                }
            }
            Event::GrantEnded { how, .. } => {
                let index = match how {
                    Ending::Released => 0,
                    Ending::SessionEnded(SessionEnd::Closed) => 1,
                    Ending::SessionEnded(SessionEnd::Expired) => 2,
                    Ending::Forced(_) => 3,
                };
                self.ended.counts[index] += 1;
            }
            Event::SessionEnded { how: SessionEnd::Expired, .. } => self.sessions_expired += 1,
            _ => {}
        }
    }

    fn stop_waiting(&mut self, places: usize) {
        self.waiting = self.waiting.saturating_sub(places as u64);
    }
}
