//! Clusters on this machine and their faults: free ports, a network that can be cut, wall clocks that jump, and what members of
//! Palisade, etcd and ZooKeeper need and say.

pub mod etcd;
pub mod network;
mod ports;
pub mod service;
pub mod wall_clock;
pub mod zookeeper;

pub use ports::free_port;

/// A member's answer to the question whether it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leadership {
    /// Whether it leads.
    pub is_leader: bool,
    /// The term of the leader that it knows: Raft's, or the epoch of ZooKeeper.
    pub term: u64,
}
