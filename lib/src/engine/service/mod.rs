//! `palisade://` and `palisades://`: locks kept by the Palisade service.
//!
#![doc = include_str!("README.md")]

mod backend;
mod config;
mod connection;
mod error;
mod login;
#[cfg(test)]
mod tests;
mod tls;
mod url;
mod wire;

pub use backend::{Service, ServiceBackend};
pub use config::Config;
pub use error::{BadAddress, SecurityError};
pub use login::{Login, Secret};
pub use tls::{Identity, Tls};
pub(crate) use url::split_secret;
