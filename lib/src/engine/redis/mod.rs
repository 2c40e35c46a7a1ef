//! `redis://` and `rediss://`: locks kept in a Redis that is there already.
//!
#![doc = include_str!("README.md")]

mod answer;
mod config;
mod connector;
mod dial;
mod engine;
mod error;
mod known;
mod lasting;
mod line;
mod look;
mod numbers;
mod push;
mod question;
mod reply;
mod scripts;
mod survey;
mod tls;
mod url;
mod usual;

pub use config::{Config, Node, Replicas, Topology};
pub use engine::Redis;
pub use error::{BadAddress, DataLost};
pub use scripts::functions;
pub use survey::{Survey, check, survey};
pub use tls::{Identity, Tls};
pub use url::Secret;
pub(crate) use url::split_secret;
