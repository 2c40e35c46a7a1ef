//! `mysql://`: locks kept in an existing MySQL or MariaDB.
//!
#![doc = include_str!("README.md")]

mod backend;
mod config;
mod connection;
mod error;
mod fast_path;
mod poll;
mod poll_backoff;
mod schema;
mod survey;
mod tls;
mod url;
mod wire;

pub use backend::{Mysql, MysqlBackend};
pub use config::{Config, Encryption};
pub use schema::SCHEMA;
pub use survey::{Survey, survey};
pub(crate) use url::split_secret;
