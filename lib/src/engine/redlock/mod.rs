//! `redlock://`: locks kept by a majority of independent Redis servers.
//!
#![doc = include_str!("README.md")]

mod attempt;
mod config;
mod engine;
mod error;
mod inspect;
mod node;
mod owner;
mod quorum;
mod report;
mod session;
mod undo;

pub use config::Config;
pub(crate) use config::URL;
pub use engine::Redlock;
pub use error::{Absence, Absent, NoMajority, NotIndependent};
pub use report::{Found, NodeReport, examine};
