//! What a world is like: everything that a seed decides before the world begins, and that a search for a smaller failure changes.

use std::fmt;
use std::time::Duration;

use crate::faulty_disk::Rng;

/// Quiet worlds run for longer than this, the others for less than two minutes.
const QUIET: Duration = Duration::from_secs(3_600);

/// The plan of a simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Everything else follows from it.
    pub seed: u64,
    /// The nodes that found the cluster.
    pub nodes: usize,
    /// Machines that can be added.
    pub spares: usize,
    /// The clients.
    pub clients: usize,
    /// How long faults are injected.
    pub duration: Duration,
    /// The TTL of the clients' sessions.
    pub ttl: Duration,
    /// The longest pause of a client between two operations.
    pub think: Duration,
    /// Whether the clients log in, as one of two users.
    pub has_users: bool,
    /// The longest time that a message usually takes, in microseconds.
    pub latency_us: usize,
    /// The maximum number of faults.
    pub faults: usize,
    /// The usual time between two faults.
    pub fault_every: Duration,
    /// The size of the log's files, in bytes. Small, so that files are begun and removed in every run.
    pub segment_size: usize,
    /// The bytes of the log after which a node makes a snapshot. Small, so that snapshots are made and sent in every run.
    pub compact_after: usize,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, nodes, spares, clients, duration, ttl, think, latency_us, .. } = self;
        let Plan { has_users, faults, fault_every, segment_size, compact_after, .. } = self;
        write!(
            f,
            "seed {seed}: {nodes} nodes, {spares} that can be added, {clients} clients with a TTL of {ttl:?}, "
        )?;
        write!(f, "{}", if *has_users { "two users, " } else { "" })?;
        write!(f, "an operation every {:?}, messages take up to {latency_us} us, ", *think / 2)?;
        write!(f, "log files of {segment_size} bytes, a snapshot every {compact_after} bytes, ")?;
        match faults {
            0 => write!(f, "no fault for {duration:?}"),
            _ => write!(f, "a fault every {fault_every:?} for {duration:?}"),
        }?;
        match *faults {
            usize::MAX | 0 => Ok(()),
            most => write!(f, ", {most} at most"),
        }
    }
}

impl Plan {
    /// Whether it is one of the few that run for hours.
    pub fn is_quiet(&self) -> bool {
        self.duration >= QUIET
    }

    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Plan {
        // Not the rng of the world, which begin with the same seed.
        let mut rng = Rng::new(seed ^ 0x5eed_5eed);
        let (nodes, spares) = [(1, 0), (1, 2), (3, 0), (3, 0), (3, 2), (3, 2), (3, 1), (5, 0), (5, 2)][rng.below(9)];
        let clients = [1, 2, 3, 4, 5, 6, 8, 10, 15, 50][rng.below(10)];
        let ttl = Duration::from_millis([1_000, 2_000, 3_000, 5_000, 10_000][rng.below(5)]);
        let think = Duration::from_millis([200, 1_000, 3_000, 10_000][rng.below(4)]);
        let is_quiet = rng.below(16) == 0;
        let plan = Plan {
            seed,
            nodes,
            spares,
            clients,
            duration: Duration::from_secs(20 + rng.below(100) as u64),
            ttl,
            // Many clients are many operations.
            think: if clients > 15 { think * 10 } else { think },
            has_users: rng.below(2) == 0,
            latency_us: [500, 2_000, 10_000, 40_000][rng.below(4)],
            faults: usize::MAX,
            fault_every: Duration::from_millis([300, 1_000, 3_000, 10_000][rng.below(4)]),
            segment_size: [512, 1_024, 4_096, 4_096, 16_384][rng.below(5)],
            compact_after: [500, 1_000, 4_000, 4_000, 16_000][rng.below(5)],
        };
        match is_quiet {
            // Most clusters are quiet most of the time, and run for hours.
            true => Plan {
                clients: 1 + rng.below(4),
                duration: QUIET + Duration::from_secs(rng.below(19 * 3_600) as u64),
                ttl: Duration::from_secs(30),
                think: Duration::from_secs(30),
                fault_every: Duration::from_secs(20 + rng.below(60) as u64),
                ..plan
            },
            false => plan,
        }
    }

    /// Three nodes and ten clients, without faults: to measure the speed.
    pub fn for_speed(seed: u64) -> Plan {
        Plan {
            nodes: 3,
            spares: 0,
            clients: 10,
            duration: Duration::from_secs(600),
            ttl: Duration::from_secs(10),
            think: Duration::from_secs(3),
            latency_us: 2_000,
            faults: usize::MAX,
            fault_every: Duration::from_secs(3),
            ..Plan::of_seed(seed)
        }
    }
}
