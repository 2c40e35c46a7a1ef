//! `zookeeper://` and `zk://`: locks kept in an existing ZooKeeper.
//!
#![doc = include_str!("README.md")]

mod backend;
mod calls;
mod config;
mod error;
mod events;
mod session;
mod survey;
mod waiting;
mod wire;

pub use backend::{Zookeeper, ZookeeperBackend};
pub(crate) use config::URL;
pub use config::{Access, Config};
pub use survey::{ServerState, Survey, survey};
