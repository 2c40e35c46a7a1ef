//! The record of a run: the times of grants, leaders, faults, and refused and lost updates.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::fault::{Fault, FaultKind};
use super::nodes::Seen;
use super::system::node_name;
use crate::prove::fencing::Fencing;
use crate::prove::workload::Step;

/// A time without a grant that counts as a gap in service.
pub(super) const GAP: Duration = Duration::from_millis(500);

/// The record of a run. Times are milliseconds since its begin.
pub(super) struct Record {
    began: Instant,
    pub(super) end_ms: u64,
    /// All grants, in order.
    pub(super) grants: Vec<u64>,
    pub(super) leaders: Vec<LeaderSpan>,
    pub(super) faults: Vec<FaultSpan>,
    /// Updates that the fence refused.
    pub(super) refused: Vec<u64>,
    /// Updates without a fence that wrote the same number as another one.
    pub(super) lost: Vec<u64>,
    pub(super) unexpected_ends: Vec<UnexpectedEnd>,
    /// When each node last knew a leader.
    answered: Vec<Option<Instant>>,
    last_leader: usize,
}

/// The time of one leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LeaderSpan {
    #[serde(serialize_with = "as_name")]
    pub(super) node: usize,
    pub(super) term: u64,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// The time of one fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct FaultSpan {
    pub(super) kind: FaultKind,
    #[serde(serialize_with = "as_names")]
    pub(super) nodes: Vec<usize>,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// A node that ended without a reason that the experiment knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct UnexpectedEnd {
    #[serde(serialize_with = "as_name")]
    pub(super) node: usize,
    pub(super) at_ms: u64,
    pub(super) output: String,
}

/// The times without a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Gaps {
    /// The shortest time that counts.
    pub(super) over_ms: u64,
    pub(super) count: usize,
    /// How long they are together.
    pub(super) total_ms: u64,
    pub(super) longest_ms: u64,
    /// Of 100 times between one grant and the next, 99 are not longer.
    pub(super) p99_ms: u64,
}

fn as_name<S: serde::Serializer>(node: &usize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&node_name(*node))
}

fn as_names<S: serde::Serializer>(nodes: &[usize], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter().map(|node| node_name(*node)))
}

impl Record {
    pub(super) fn new(nodes: usize) -> Record {
        Record {
            began: Instant::now(),
            end_ms: 0,
            grants: Vec::new(),
            leaders: Vec::new(),
            faults: Vec::new(),
            refused: Vec::new(),
            lost: Vec::new(),
            unexpected_ends: Vec::new(),
            answered: vec![None; nodes],
            last_leader: 0,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    fn now_ms(&self) -> u64 {
        self.ms(Instant::now())
    }

    pub(super) fn grant(&mut self) {
        self.grants.push(self.now_ms());
    }

    /// Notes what a workload did.
    pub(super) fn step(&mut self, fencing: Fencing, step: Step) {
        match step {
            Step::Granted => self.grant(),
            Step::Refused => self.refused.push(self.now_ms()),
            Step::Acknowledged { is_repeated: true } if fencing == Fencing::None => self.lost.push(self.now_ms()),
            Step::Acknowledged { .. } | Step::Other => {}
        }
    }

    /// Notes a node's answer.
    pub(super) fn seen(&mut self, seen: Seen) {
        let Some(leadership) = seen.leadership else { return };
        self.answered[seen.node] = Some(seen.at);
        if !leadership.is_leader {
            return;
        }
        let (node, term, at_ms) = (seen.node, leadership.term, self.ms(seen.at));
        match self.leaders.iter_mut().rfind(|span| span.node == node && span.term == term) {
            Some(span) => span.to_ms = at_ms,
            None => {
                self.leaders.push(LeaderSpan { node, term, from_ms: at_ms, to_ms: at_ms });
                self.last_leader = node;
            }
        }
    }

    /// Returns the node that was last seen to become the leader.
    pub(super) fn leader(&self) -> usize {
        self.last_leader
    }

    /// Returns what is missing, unless every node has known a leader, and a lock was granted, since this time.
    pub(super) fn missing_since(&self, since: Instant) -> Option<String> {
        if self.grants.last().is_none_or(|at| *at <= self.ms(since)) {
            return Some("no lock was granted".to_owned());
        }
        let is_silent = |at: &Option<Instant>| at.is_none_or(|at| at <= since);
        let node = self.answered.iter().position(is_silent)?;
        Some(format!("{} does not know a leader", node_name(node)))
    }

    /// Notes that a fault begins. Returns its number.
    pub(super) fn fault_began(&mut self, fault: &Fault) -> usize {
        let now_ms = self.now_ms();
        self.faults.push(FaultSpan { kind: fault.kind, nodes: fault.nodes.clone(), from_ms: now_ms, to_ms: now_ms });
        self.faults.len() - 1
    }

    pub(super) fn fault_ended(&mut self, number: usize) {
        self.faults[number].to_ms = self.now_ms();
    }

    pub(super) fn ended_unexpectedly(&mut self, node: usize, output: String) {
        let at_ms = self.now_ms();
        self.unexpected_ends.push(UnexpectedEnd { node, at_ms, output });
    }

    pub(super) fn end(&mut self) {
        self.end_ms = self.now_ms();
    }

    /// Counts the faults of each kind.
    pub(super) fn fault_counts(&self) -> BTreeMap<FaultKind, usize> {
        let mut counts = BTreeMap::new();
        for fault in &self.faults {
            *counts.entry(fault.kind).or_default() += 1;
        }
        counts
    }

    pub(super) fn gaps(&self) -> Gaps {
        let over_ms = GAP.as_millis() as u64;
        let mut between: Vec<_> = self.grants.windows(2).map(|pair| pair[1] - pair[0]).collect();
        between.sort_unstable();
        let p99 = (between.len() * 99).div_ceil(100).saturating_sub(1);
        Gaps {
            over_ms,
            count: between.iter().filter(|ms| **ms > over_ms).count(),
            total_ms: between.iter().filter(|ms| **ms > over_ms).sum(),
            longest_ms: between.last().copied().unwrap_or_default(),
            p99_ms: between.get(p99).copied().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use palisade_cli::harness::Leadership;

    use super::*;

    pub(in crate::prove::cluster) fn record() -> Record {
        let mut record = Record::new(3);
        record.grants = (0..=100).map(|number| number * 20).chain([5000, 5020]).collect();
        record.leaders = vec![
            LeaderSpan { node: 0, term: 1, from_ms: 0, to_ms: 1900 },
            LeaderSpan { node: 1, term: 2, from_ms: 4000, to_ms: 6000 },
        ];
        let kill = FaultSpan { kind: FaultKind::KillLeader, nodes: vec![0], from_ms: 2000, to_ms: 5500 };
        let ring = FaultSpan { kind: FaultKind::Ring, nodes: vec![0, 1, 2], from_ms: 5500, to_ms: 5800 };
        record.faults = vec![kill, ring];
        (record.refused, record.lost, record.end_ms) = (vec![5100], vec![1500, 5200], 6000);
        record
    }

    #[test]
    fn a_time_without_a_grant_is_a_gap() {
        let gaps = record().gaps();
        assert_eq!((gaps.count, gaps.total_ms, gaps.longest_ms, gaps.p99_ms), (1, 3000, 3000, 20));
        let empty = Record::new(3).gaps();
        assert_eq!((empty.count, empty.total_ms, empty.longest_ms, empty.p99_ms), (0, 0, 0, 0));
    }

    #[test]
    fn a_leader_is_a_node_in_a_term() {
        let mut record = Record::new(3);
        let mut see = |node, is_leader, term| {
            record.seen(Seen { node, at: Instant::now(), leadership: Some(Leadership { is_leader, term }) });
        };
        for (node, is_leader, term) in
            [(0, true, 1), (1, false, 1), (0, true, 1), (1, true, 2), (0, false, 2), (1, true, 3)]
        {
            see(node, is_leader, term);
        }
        let leaders: Vec<_> = record.leaders.iter().map(|span| (span.node, span.term)).collect();
        assert_eq!((leaders, record.leader()), (vec![(0, 1), (1, 2), (1, 3)], 1));
    }

    #[test]
    fn service_has_recovered_when_every_node_knows_a_leader_and_a_lock_was_granted() {
        let mut record = Record::new(2);
        let since = record.began;
        let at = since + Duration::from_millis(10);
        assert_eq!(record.missing_since(since).as_deref(), Some("no lock was granted"));
        record.grants.push(20);
        for (node, name) in [(0, "node1"), (1, "node2")] {
            assert_eq!(record.missing_since(since), Some(format!("{name} does not know a leader")));
            record.seen(Seen { node, at, leadership: Some(Leadership { is_leader: false, term: 1 }) });
        }
        assert_eq!(record.missing_since(since), None);
        assert!(record.missing_since(at + Duration::from_millis(50)).is_some());
    }
}
