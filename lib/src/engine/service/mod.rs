//! `palisade://` and `palisades://`: locks kept by the Palisade service.
//!
#![doc = include_str!("README.md")]

mod backend;
mod cluster;
mod config;
mod connection;
mod error;
mod hello;
mod nodes;
mod probe;
mod survey;
#[cfg(test)]
mod tests;
mod wire;

pub use backend::{Service, ServiceBackend};
pub use cluster::{
    ClusterError, ClusterStatus, MemberState, MemberStatus, cluster_add, cluster_backup, cluster_remove,
    cluster_status, cluster_transfer,
};
pub use config::Config;
pub(crate) use config::URL;
pub use survey::{NodeState, survey};
