//! `mysql://`: locks kept in a MySQL or MariaDB that is there already.
//!
#![doc = include_str!("README.md")]

mod config;
mod connector;
mod engine;
mod error;
mod lasting;
mod line;
mod look;
mod poll;
mod quick;
mod said;
mod schema;
mod sql;
mod survey;
mod tls;
mod url;
mod wait;

pub use config::{Config, Encryption};
pub use engine::Mysql;
pub use schema::SCHEMA;
pub use survey::{Survey, survey};
pub(crate) use url::split_secret;
