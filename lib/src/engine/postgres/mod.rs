//! `postgres://`: locks kept in an existing PostgreSQL.
//!
#![doc = include_str!("README.md")]

mod backend;
mod config;
pub(crate) mod connection;
pub(crate) mod error;
pub(super) mod pooler;
mod schema;
mod survey;
mod wire;

pub use backend::{Postgres, PostgresBackend};
pub(crate) use config::URL;
pub use config::{Config, Mode};
pub use schema::SCHEMA;
pub use survey::{Survey, survey};
