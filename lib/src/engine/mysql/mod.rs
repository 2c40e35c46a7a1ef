//! `mysql://`: locks kept in an existing MySQL or MariaDB.
//!
#![doc = include_str!("README.md")]

mod backend;
mod config;
mod connection;
pub(crate) mod error;
mod fast_path;
mod poll;
mod poll_backoff;
mod schema;
mod survey;
mod wire;

pub use backend::{Mysql, MysqlBackend};
pub use config::Config;
pub(crate) use config::URL;
pub use schema::SCHEMA;
pub use survey::{Survey, survey};
