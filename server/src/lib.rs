//! The service: a replicated log around the rules of `core`, its storage, its protocols. Imports `core` alone.
#![forbid(unsafe_code)]

pub mod replica;
pub mod resp;
mod service;
pub mod storage;

pub use service::{Config, ServiceError, serve};
