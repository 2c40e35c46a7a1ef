//! `postgres://`: locks kept in an existing PostgreSQL.
//!
#![doc = include_str!("README.md")]

mod advisory;
mod backend;
mod config;
mod connection;
mod error;
mod pooler;
mod schema;
mod survey;
mod tls;
mod url;
mod wire;

pub use advisory::Advisory;
pub use backend::{Postgres, PostgresBackend};
pub use config::{Config, Encryption, Mode};
pub use schema::SCHEMA;
pub use survey::{Survey, survey};
pub(crate) use url::split_secret;
