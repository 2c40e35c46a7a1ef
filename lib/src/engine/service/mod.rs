//! `palisade://` and `palisades://`: locks kept by the Palisade service.
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
mod login;
mod look;
mod obstacle;
mod push;
mod reply;
mod sending;
#[cfg(test)]
mod tests;
mod tls;
mod url;

pub use config::Config;
pub use engine::Service;
pub use error::BadAddress;
pub use login::{Login, Secret};
pub use obstacle::Obstacle;
pub use tls::{Identity, Tls};
pub(crate) use url::split_secret;
