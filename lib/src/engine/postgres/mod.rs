//! `postgres://`: locks kept in a PostgreSQL that is there already.
//!
#![doc = include_str!("README.md")]

mod advisory;
mod config;
mod connector;
mod dial;
mod engine;
mod error;
mod lasting;
mod line;
mod look;
mod pooler;
mod push;
mod schema;
mod survey;
mod tls;
mod url;

pub use advisory::Advisory;
pub use config::{Config, Encryption, Mode};
pub use engine::Postgres;
pub use schema::SCHEMA;
pub use survey::{Survey, survey};
pub(crate) use url::split_secret;
