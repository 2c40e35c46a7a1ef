//! `memory:`: locks of one process, for tests and as the reference that every other engine is compared with.
//!
#![doc = include_str!("README.md")]

mod config;
mod engine;

pub use config::Config;
pub use engine::Memory;
