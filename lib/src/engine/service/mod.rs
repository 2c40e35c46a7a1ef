//! `palisade://`: locks kept by the Palisade service.
//!
#![doc = include_str!("README.md")]

mod command;
mod config;
mod connector;
mod dial;
mod engine;
mod error;
mod lasting;
mod line;
mod look;
mod push;
mod reply;

pub use config::Config;
pub use engine::Service;
pub use error::BadAddress;
