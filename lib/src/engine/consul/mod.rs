//! `consul://` and `consuls://`: locks kept in an existing Consul.
//!
#![doc = include_str!("README.md")]

mod backend;
mod claiming;
mod config;
mod connection;
mod delayed;
mod error;
mod observer;
mod survey;
mod waiting;

pub use backend::{Consul, ConsulBackend};
pub use config::Config;
pub(crate) use config::URL;
pub use survey::{Agent, AgentState, Survey, survey};
