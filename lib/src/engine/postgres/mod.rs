//! `postgres://`: locks kept in a PostgreSQL that is there already.
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
mod wire;

pub use advisory::Advisory;
pub use backend::{Postgres, PostgresBackend};
pub(crate) use config::URL;
pub use config::{Config, Mode};
pub use schema::SCHEMA;
pub use survey::{Survey, survey};
