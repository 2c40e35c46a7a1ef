//! `postgres://…?mode=advisory`: session advisory locks of PostgreSQL.
//!
#![doc = include_str!("README.md")]

mod engine;
mod session;

pub use engine::Advisory;
