//! `embedded:`: locks in one SQLite file, shared by the processes of one host.
//!
#![doc = include_str!("README.md")]

mod access;
mod batch;
mod binding;
mod commit;
mod config;
mod database_lock;
mod engine;
mod error;
mod expiry;
mod lease;
mod log;
mod log_lock;
mod open_count;
mod paths;
#[cfg(target_os = "linux")]
mod readable;
mod replica;
mod reply;
mod startup;
mod state;
mod task;
#[cfg(test)]
mod tests;
mod wake_file;

pub use config::Config;
pub use engine::Embedded;
pub use error::BadPath;

/// Returns a number that differs after each boot of the host, or why it cannot be read.
pub(crate) fn boot() -> Result<u64, String> {
    paths::boot(None).map_err(|error| error.to_string())
}
