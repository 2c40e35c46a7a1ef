//! `embedded:`: locks in one SQLite file, shared by the processes of one host.
//!
#![doc = include_str!("README.md")]

mod access;
mod alive;
mod answer;
mod bell;
mod binding;
mod commit;
mod config;
mod draft;
mod engine;
mod error;
mod interest;
mod log;
mod log_lock;
mod place;
mod presence;
#[cfg(target_os = "linux")]
mod readable;
mod replica;
mod state;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use engine::Embedded;
pub use error::BadPath;
