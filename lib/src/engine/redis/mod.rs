//! `redis://` and `rediss://`: locks kept in an existing Redis.
//!
#![doc = include_str!("README.md")]

mod backend;
mod config;
mod connection;
mod error;
mod fast_path;
mod namespace;
mod numbers;
mod scripts;
mod survey;
mod tls;
mod url;
mod wire;

pub use backend::{Redis, RedisBackend};
pub use config::{Config, Node, Replicas, Topology};
pub use error::{BadAddress, DataLost};
pub use scripts::functions;
pub use survey::{Survey, check, survey};
pub use tls::{Identity, Tls};
pub use url::Secret;
pub(crate) use url::split_secret;
