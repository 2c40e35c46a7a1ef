//! `palisade://` and `palisades://`: locks kept by the Palisade service.
//!
#![doc = include_str!("README.md")]

mod backend;
mod config;
mod connection;
mod error;
#[cfg(test)]
mod tests;
mod wire;

pub use backend::{Service, ServiceBackend};
pub use config::Config;
pub(crate) use config::URL;
