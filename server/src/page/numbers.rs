//! Numbers of each second: grants, hand-overs, losses, and how long waits and the disk take.

use std::collections::{HashMap, VecDeque};

use palisade_core::{Ending, Event, LockName, SessionEnd, SessionId};
use serde::Serialize;

use crate::node::{Histogram, WAIT_SECONDS};

/// How many samples are kept: one each second, for 15 minutes.
const SAMPLES: usize = 900;
/// The most waits whose beginning is remembered.
const WAITS: usize = 100_000;

/// Counters since the start.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Counters {
    pub grants: u64,
    /// Grants to requests that had waited.
    pub handovers: u64,
    /// Grants that expired or were taken away.
    pub losses: u64,
    /// Sessions that expired.
    pub expiries: u64,
    /// How long those that were granted had waited.
    pub waits: Histogram,
    /// How long a write took to become durable, if the engine tells.
    pub commits: Option<Histogram>,
    /// Open sessions, if the engine tells.
    pub sessions: Option<u64>,
    /// Locks in use, and requests that wait.
    pub locks: u64,
    pub waiting: u64,
}

impl Default for Counters {
    fn default() -> Counters {
        let waits = Histogram::new(WAIT_SECONDS);
        Counters {
            grants: 0,
            handovers: 0,
            losses: 0,
            expiries: 0,
            waits,
            commits: None,
            sessions: None,
            locks: 0,
            waiting: 0,
        }
    }
}

/// Counts events, for an engine that has no counters.
#[derive(Debug, Default)]
pub(super) struct EventCounts {
    counters: Counters,
    /// When each wait began.
    waiting_since: HashMap<(LockName, SessionId), u64>,
    last_expired: Option<SessionId>,
}

impl EventCounts {
    pub(super) fn counters(&self) -> Counters {
        self.counters.clone()
    }

    /// Returns when this session began to wait for the lock.
    /// Forgets since when sessions wait.
    pub(super) fn forget_waits(&mut self) {
        self.waiting_since.clear();
    }

    pub(super) fn waiting_since(&self, lock: &LockName, session: SessionId) -> Option<u64> {
        self.waiting_since.get(&(lock.clone(), session)).copied()
    }

    pub(super) fn event(&mut self, event: &Event, now: u64) {
        match event {
            Event::Queued { session, locks, .. } => {
                for lock in locks {
                    if self.waiting_since.len() < WAITS {
                        self.waiting_since.insert((lock.clone(), *session), now);
                    }
                }
            }
            Event::LeftQueue { session, locks, .. } => {
                self.forget(locks.iter(), *session);
            }
            Event::Granted { session, locks, .. } => {
                self.counters.grants += 1;
                if let Some(since) = self.forget(locks.iter(), *session) {
                    self.counters.handovers += 1;
                    self.counters.waits.observe(now.saturating_sub(since) as f64 / 1000.0);
                }
            }
            Event::GrantEnded { how: Ending::Forced(_), .. } => self.counters.losses += 1,
            Event::GrantEnded { session, how: Ending::SessionEnded(SessionEnd::Expired), .. } => {
                self.counters.losses += 1;
                // The grants of one session end one after the other.
                if self.last_expired.replace(*session) != Some(*session) {
                    self.counters.expiries += 1;
                }
            }
            _ => {}
        }
    }

    /// Forgets the waits of a session for these locks. Returns when the first of them began.
    fn forget<'a>(&mut self, locks: impl Iterator<Item = &'a LockName>, session: SessionId) -> Option<u64> {
        locks.filter_map(|lock| self.waiting_since.remove(&(lock.clone(), session))).min()
    }
}

/// The numbers of one second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Sample {
    at: u64,
    grants: u64,
    handovers: u64,
    losses: u64,
    expiries: u64,
    wait_p50: Option<f64>,
    wait_p99: Option<f64>,
    disk_p50: Option<f64>,
    disk_p99: Option<f64>,
    locks: u64,
    waiting: u64,
    sessions: Option<u64>,
}

/// The samples of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Samples {
    kept: VecDeque<Sample>,
    last: Option<Counters>,
}

impl Samples {
    pub(super) fn kept(&self) -> &VecDeque<Sample> {
        &self.kept
    }

    /// Adds a sample: what the counters have grown by since the last one.
    pub(super) fn add(&mut self, at: u64, counters: Counters) -> Sample {
        let before = self.last.as_ref().unwrap_or(&counters);
        let grown = |count: fn(&Counters) -> u64| count(&counters).saturating_sub(count(before));
        let waits = grown_histogram(&counters.waits, &before.waits);
        let commits = counters.commits.as_ref().zip(before.commits.as_ref());
        let commits = commits.map(|(now, before)| grown_histogram(now, before));
        let ms = |counts: &[u64], bounds, part| percentile(counts, bounds, part).map(|seconds| seconds * 1000.0);
        let of_waits = |part| ms(&waits, counters.waits.bounds, part);
        let of_disk = |part| ms(commits.as_deref()?, counters.commits.as_ref()?.bounds, part);
        let sample = Sample {
            at,
            grants: grown(|counters| counters.grants),
            handovers: grown(|counters| counters.handovers),
            losses: grown(|counters| counters.losses),
            expiries: grown(|counters| counters.expiries),
            wait_p50: of_waits(0.5),
            wait_p99: of_waits(0.99),
            disk_p50: of_disk(0.5),
            disk_p99: of_disk(0.99),
            locks: counters.locks,
            waiting: counters.waiting,
            sessions: counters.sessions,
        };
        self.last = Some(counters);
        if self.kept.len() >= SAMPLES {
            self.kept.pop_front();
        }
        self.kept.push_back(sample.clone());
        sample
    }
}

fn grown_histogram(now: &Histogram, before: &Histogram) -> Vec<u64> {
    now.counts.iter().zip(&before.counts).map(|(now, before)| now.saturating_sub(*before)).collect()
}

/// Returns the value that this part of the observations do not exceed, interpolated within its bucket.
fn percentile(counts: &[u64], bounds: &[f64], part: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let wanted = total as f64 * part;
    let mut below = 0;
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (low, most) =
            (if bucket == 0 { 0.0 } else { bounds[bucket - 1] }, *bounds.get(bucket).or(bounds.last())?);
        if (below + count) as f64 >= wanted {
            return Some(low + (most - low) * (wanted - below as f64) / *count as f64);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_within_its_bucket() {
        let bounds = [1.0, 2.0, 4.0];
        assert_eq!(percentile(&[0, 0, 0, 0], &bounds, 0.5), None);
        assert_eq!(percentile(&[10, 0, 0, 0], &bounds, 0.5), Some(0.5));
        assert_eq!(percentile(&[5, 0, 5, 0], &bounds, 0.99).map(|value| value > 2.0 && value < 4.0), Some(true));
        assert_eq!(percentile(&[0, 0, 0, 3], &bounds, 0.5), Some(4.0), "above all bounds");
    }

    #[test]
    fn a_sample_is_what_has_been_added() {
        let mut samples = Samples::default();
        let counters = |grants| Counters { grants, ..Counters::default() };
        assert_eq!(samples.add(1000, counters(7)).grants, 0, "what was before the first look is unknown");
        assert_eq!(samples.add(2000, counters(12)).grants, 5);
        for at in 3..2000 {
            samples.add(at * 1000, counters(12));
        }
        assert_eq!(samples.kept().len(), SAMPLES);
    }
}
