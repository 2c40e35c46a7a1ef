//! The trace of a simulation, and the counts of what happened in it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// How many lines of the trace are kept for the report of a failure.
const KEPT: usize = 400;

/// A trace: its last lines, and a checksum of all.
#[derive(Debug, Default)]
pub struct Trace {
    checksum: u64,
    lines: VecDeque<String>,
    /// All lines, if they are wanted.
    whole: Option<String>,
}

impl Trace {
    pub(super) fn new(is_whole: bool) -> Trace {
        Trace { checksum: 0xcbf2_9ce4_8422_2325, lines: VecDeque::new(), whole: is_whole.then(String::new) }
    }

    pub(super) fn add(&mut self, now: Duration, what: fmt::Arguments<'_>) {
        let line = format!("{:>9.4} {what}", now.as_secs_f64());
        for byte in line.bytes().chain([b'\n']) {
            // FNV-1a.
            self.checksum = (self.checksum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(whole) = &mut self.whole {
            whole.push_str(&line);
            whole.push('\n');
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Returns a checksum of all lines.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Returns the last lines.
    pub fn last_lines(&self, count: usize) -> impl Iterator<Item = &str> {
        self.lines.iter().skip(self.lines.len().saturating_sub(count)).map(String::as_str)
    }

    /// Returns all lines, if they were kept.
    pub fn whole(&self) -> Option<&str> {
        self.whole.as_deref()
    }
}

/// How often each fault and each rare path happened.
#[derive(Debug, Clone, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

/// Everything that must happen in a long enough run, in the order of the table.
pub const EXPECTED: &[&str] = &[
    "fault: node killed",
    "fault: power cut",
    "fault: power cut within a disk operation",
    "fault: node killed within a disk operation",
    "fault: power cut in a new term",
    "fault: power cut while entries are replaced",
    "fault: power cut of all nodes",
    "fault: power cut that closes no connection",
    "fault: leader killed",
    "fault: node paused for several TTLs",
    "fault: node paused briefly",
    "fault: node suspended",
    "fault: node cut off",
    "fault: link cut in one direction",
    "fault: ring of links",
    "fault: cut while members get their votes",
    "fault: flapping link",
    "fault: client cut off from a node",
    "fault: client cut off with a node",
    "fault: message lost",
    "fault: message late",
    "fault: message repeated",
    "fault: connection reset",
    "fault: disk slow",
    "fault: disk full",
    "fault: flush failed",
    "fault: bit flipped",
    "fault: disk lost",
    "fault: disk lost in a power cut of all nodes",
    "fault: older copy of a disk",
    "fault: older copy of another machine's disk",
    "fault: clock of a node at another rate",
    "fault: clock of a client at another rate",
    "fault: clock of a client far off",
    "fault: client killed",
    "fault: client paused",
    "fault: client suspended",
    "fault: resource restarted",
    "fault: request to a resource lost",
    "fault: request to a resource repeated late",
    "operator: member added",
    "operator: member removed",
    "operator: leader transferred",
    "operator: member upgraded",
    "operator: lock taken away",
    "operator: semaphore resized",
    "operator: backup taken",
    "operator: command of a Redis client",
    "operator: lock of a Redis client extended at the last moment",
    "path: node told that messages were dropped",
    "path: deposed leader asked",
    "path: election",
    "path: grant during an election",
    "path: two nodes believe that they lead",
    "path: request repeated at the next leader",
    "path: snapshot made",
    "path: snapshot sent",
    "path: snapshot sent while a member joins",
    "path: log shorter after a restart",
    "path: uncommitted entries replaced",
    "path: node refuses a damaged disk",
    "path: node that lost its log is replaced",
    "path: node with another member's directory not spoken to",
    "path: node with another member's directory replaced",
    "path: joint membership",
    "path: message to a member that the log does not name",
    "path: leader removed",
    "path: connection relayed",
    "path: session expired",
    "path: session expired while a client waited",
    "path: jeopardy ended by a keep-alive",
    "path: holder lost its lock while paused",
    "path: holder told of its loss before the engine ended the session",
    "path: grant withheld by a lock-delay",
    "path: acquire cancelled",
    "path: acquire dropped",
    "path: acquire timed out",
    "path: orphaned grant released",
    "path: several locks at once",
    "path: shared lock granted to several",
    "path: semaphore granted to several",
    "path: value published",
    "path: fence refused a stale write",
    "path: fence refused a stale seal",
    "path: write repeated",
    "path: write of unknown outcome settled",
    "path: watch missed events",
    "path: release repeated",
];

impl Coverage {
    pub(super) fn count(&mut self, what: &'static str) {
        debug_assert!(EXPECTED.contains(&what), "{what} is not in the table");
        *self.0.entry(what).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Coverage) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    /// Returns how often something happened.
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Returns all counts, in the order of the table.
    pub fn table(&self) -> impl Iterator<Item = (&'static str, u64)> {
        EXPECTED.iter().map(|what| (*what, self.of(what)))
    }

    /// Returns what never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        self.table().filter(|(_, count)| *count == 0).map(|(what, _)| what).collect()
    }
}
