//! The faults of a cluster, drawn from a seed.

use std::time::Duration;

use palisade_cli::harness::network::Way;
use serde::Serialize;

/// The length of a fault, in percent of the TTL: sessions on nodes that are gone end meanwhile.
const PERCENT_OF_TTL: std::ops::Range<u32> = 125..225;
/// The time between the end of a fault and the next one, in percent of the TTL.
const REST_PERCENT_OF_TTL: std::ops::Range<u32> = 25..100;
/// After the first round, one in this many faults begins while another one lasts.
const ONE_IN_TOGETHER: u32 = 4;
/// How far a wall clock jumps.
const OFFSETS: [&str; 6] = ["+3s", "+5h", "+100d", "-3s", "-5h", "-100d"];

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultKind {
    KillLeader,
    KillFollower,
    /// Two nodes at once: the majority of three.
    KillTwo,
    PauseLeader,
    PauseFollower,
    /// The leader reaches no other node, and no other node reaches it.
    CutOffLeader,
    /// The same for fewer than half of the nodes.
    CutOffMinority,
    /// A node is heard and hears nothing, or hears and is not heard.
    OneWay,
    /// Each node of five reaches only two others.
    Ring,
    /// The wall clocks of some nodes jump.
    Clock,
    /// A node can write no byte to its files.
    DiskFull,
}

impl FaultKind {
    pub(super) const ALL: [FaultKind; 11] = [
        FaultKind::KillLeader,
        FaultKind::KillFollower,
        FaultKind::KillTwo,
        FaultKind::PauseLeader,
        FaultKind::PauseFollower,
        FaultKind::CutOffLeader,
        FaultKind::CutOffMinority,
        FaultKind::OneWay,
        FaultKind::Ring,
        FaultKind::Clock,
        FaultKind::DiskFull,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            FaultKind::KillLeader => "leader killed",
            FaultKind::KillFollower => "follower killed",
            FaultKind::KillTwo => "two nodes killed",
            FaultKind::PauseLeader => "leader paused",
            FaultKind::PauseFollower => "follower paused",
            FaultKind::CutOffLeader => "leader cut off",
            FaultKind::CutOffMinority => "minority cut off",
            FaultKind::OneWay => "one direction cut",
            FaultKind::Ring => "cut to a ring",
            FaultKind::Clock => "clocks moved",
            FaultKind::DiskFull => "disk full",
        }
    }
}

/// How a fault disturbs its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGKILL, and a restart at the end.
    Kill,
    /// SIGSTOP, and SIGCONT at the end.
    Pause,
    /// The proxies hold back everything that nodes send on these ways.
    Cut(Vec<Way>),
    /// The wall clocks jump by this offset, and back at the end.
    MoveClocks(&'static str),
    /// The nodes cannot write to files. Those that have ended start again at the end.
    FillDisk,
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) nodes: Vec<usize>,
    pub(super) action: Action,
    pub(super) time: Duration,
}

/// Draws faults: first each kind once, in a random order, then any.
pub(super) struct Nemesis {
    rng: fastrand::Rng,
    size: usize,
    ttl: Duration,
    kinds: Vec<FaultKind>,
    /// The kinds that are left in the first round.
    first_round: Vec<FaultKind>,
}

impl Nemesis {
    pub(super) fn new(seed: u64, size: usize, ttl: Duration, kinds: Vec<FaultKind>) -> Nemesis {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut first_round = kinds.clone();
        rng.shuffle(&mut first_round);
        Nemesis { rng, size, ttl, kinds, first_round }
    }

    /// Whether each kind was drawn once.
    pub(super) fn is_first_round_over(&self) -> bool {
        self.first_round.is_empty()
    }

    /// Draws the next fault.
    pub(super) fn next(&mut self, leader: usize) -> Option<Fault> {
        let kind = match self.first_round.pop() {
            Some(kind) => kind,
            None => *self.rng.choice(&self.kinds)?,
        };
        Some(self.draw(kind, leader))
    }

    /// Draws whether another fault begins while one lasts that hits these nodes: the fault, and after what time. It hits other nodes.
    pub(super) fn next_beside(&mut self, lasting: &Fault, leader: usize) -> Option<(Duration, Fault)> {
        if !self.first_round.is_empty() || self.rng.u32(..ONE_IN_TOGETHER) > 0 {
            return None;
        }
        let fault = self.next(leader)?;
        let is_other = !fault.nodes.iter().any(|node| lasting.nodes.contains(node));
        let delay = lasting.time * self.rng.u32(10..80) / 100;
        is_other.then_some((delay, fault))
    }

    /// Draws the time until the next fault.
    pub(super) fn rest(&mut self) -> Duration {
        self.ttl * self.rng.u32(REST_PERCENT_OF_TTL) / 100
    }

    fn draw(&mut self, kind: FaultKind, leader: usize) -> Fault {
        let followers: Vec<_> = (0..self.size).filter(|node| *node != leader).collect();
        let nodes = match kind {
            FaultKind::KillLeader | FaultKind::PauseLeader | FaultKind::CutOffLeader => vec![leader],
            FaultKind::KillFollower | FaultKind::PauseFollower => self.some(&followers, 1),
            FaultKind::KillTwo => self.some(&(0..self.size).collect::<Vec<_>>(), 2),
            // A leader that is alone is a kind of its own.
            FaultKind::CutOffMinority if self.size == 3 => self.some(&followers, 1),
            FaultKind::CutOffMinority => self.some(&(0..self.size).collect::<Vec<_>>(), (self.size - 1) / 2),
            FaultKind::OneWay | FaultKind::DiskFull => match self.rng.bool() {
                true => vec![leader],
                false => self.some(&followers, 1),
            },
            FaultKind::Ring => (0..self.size).collect(),
            FaultKind::Clock => {
                let count = self.rng.usize(1..=self.size);
                self.some(&(0..self.size).collect::<Vec<_>>(), count)
            }
        };
        let action = match kind {
            FaultKind::KillLeader | FaultKind::KillFollower | FaultKind::KillTwo => Action::Kill,
            FaultKind::PauseLeader | FaultKind::PauseFollower => Action::Pause,
            FaultKind::CutOffLeader | FaultKind::CutOffMinority => {
                self.cut(|from, to| nodes.contains(&from) != nodes.contains(&to))
            }
            FaultKind::OneWay => match self.rng.bool() {
                true => self.cut(|from, _| nodes.contains(&from)),
                false => self.cut(|_, to| nodes.contains(&to)),
            },
            FaultKind::Ring => {
                // The neighbours of a node are the next ones, or those after them.
                let (distance, size) = (self.rng.usize(1..=2), self.size);
                self.cut(|from, to| ![distance, size - distance].contains(&((to + size - from) % size)))
            }
            FaultKind::Clock => Action::MoveClocks(OFFSETS[self.rng.usize(..OFFSETS.len())]),
            FaultKind::DiskFull => Action::FillDisk,
        };
        Fault { kind, nodes, action, time: self.ttl * self.rng.u32(PERCENT_OF_TTL) / 100 }
    }

    /// Draws some of these nodes, in order.
    fn some(&mut self, nodes: &[usize], count: usize) -> Vec<usize> {
        let mut drawn = self.rng.choose_multiple(nodes.iter().copied(), count);
        drawn.sort_unstable();
        drawn
    }

    fn cut(&self, is_lost: impl Fn(usize, usize) -> bool) -> Action {
        let ways = (0..self.size).flat_map(|from| (0..self.size).map(move |to| (from, to)));
        Action::Cut(ways.filter(|(from, to)| from != to && is_lost(*from, *to)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    fn nemesis(seed: u64, size: usize) -> Nemesis {
        Nemesis::new(seed, size, TTL, FaultKind::ALL.to_vec())
    }

    fn faults(seed: u64, size: usize) -> Vec<Fault> {
        let mut nemesis = nemesis(seed, size);
        (0..1000).filter_map(|_| nemesis.next(1)).collect()
    }

    #[test]
    fn a_seed_draws_the_same_faults_again() {
        assert_eq!(faults(7, 5), faults(7, 5));
        assert_ne!(faults(7, 5), faults(8, 5));
    }

    #[test]
    fn each_kind_comes_once_before_any_comes_twice() {
        let first: BTreeSet<_> = faults(7, 5)[..11].iter().map(|fault| fault.kind).collect();
        assert_eq!(first.len(), 11);
        let mut nemesis = nemesis(7, 5);
        for _ in 0..11 {
            assert!(!nemesis.is_first_round_over());
            assert!(nemesis.next(1).is_some());
        }
        assert!(nemesis.is_first_round_over());
    }

    #[test]
    fn a_fault_hits_the_nodes_that_its_kind_names() {
        for fault in faults(7, 3).into_iter().chain(faults(7, 5)) {
            let nodes = &fault.nodes;
            match fault.kind {
                FaultKind::KillLeader | FaultKind::PauseLeader | FaultKind::CutOffLeader => assert_eq!(*nodes, [1]),
                FaultKind::KillFollower | FaultKind::PauseFollower => assert!(nodes.len() == 1 && *nodes != [1]),
                FaultKind::KillTwo => assert_eq!(nodes.len(), 2),
                _ => assert!(!nodes.is_empty()),
            }
            assert!(fault.time > TTL && fault.time < TTL * 3);
        }
    }

    #[test]
    fn partitions_cut_what_their_kind_says() {
        for fault in faults(7, 5) {
            let Action::Cut(ways) = fault.action else { continue };
            assert!(ways.iter().all(|(from, to)| from != to));
            let count = match fault.kind {
                FaultKind::CutOffLeader => 8,
                FaultKind::CutOffMinority => 12,
                FaultKind::OneWay => 4,
                FaultKind::Ring => 10,
                kind => panic!("{kind:?} cuts"),
            };
            assert_eq!(ways.len(), count, "{:?}", fault.kind);
        }
    }

    #[test]
    fn two_faults_at_once_hit_different_nodes() {
        let mut nemesis = nemesis(7, 5);
        let lasting = loop {
            match nemesis.next(1) {
                Some(fault) if nemesis.is_first_round_over() && fault.nodes.len() < 3 => break fault,
                _ => {}
            }
        };
        let beside: Vec<_> = (0..1000).filter_map(|_| nemesis.next_beside(&lasting, 1)).collect();
        assert!(beside.len() > 50, "{}", beside.len());
        for (delay, fault) in beside {
            assert!(delay < lasting.time && fault.nodes.iter().all(|node| !lasting.nodes.contains(node)));
        }
    }
}
