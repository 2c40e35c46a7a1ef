//! `etcd://` and `etcds://`: locks kept in an existing etcd.
//!
#![doc = include_str!("README.md")]

mod backend;
mod claiming;
mod config;
mod connection;
mod error;
mod observer;
mod survey;

use super::claims::{requests, stored as wire};

pub use backend::{Etcd, EtcdBackend};
pub use config::Config;
pub(crate) use config::URL;
pub use survey::{Member, MemberState, Survey, survey};
