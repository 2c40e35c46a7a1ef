//! `redis://` and `rediss://`: locks kept in an existing Redis.
//!
#![doc = include_str!("README.md")]

mod backend;
mod config;
pub(crate) mod connection;
pub(crate) mod error;
mod fast_path;
mod namespace;
mod numbers;
mod scripts;
mod survey;
mod wire;

pub use backend::{Redis, RedisBackend};
pub(crate) use config::URL;
pub use config::{Config, Replicas, Topology};
pub use error::DataLost;
pub use scripts::functions;
pub use survey::{Survey, check, survey};
