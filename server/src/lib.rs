//! The service: a replicated log around the rules of `core`, its storage, its protocols. Imports `core` alone.
#![forbid(unsafe_code)]

mod http;
pub mod replica;
pub mod resp;
mod service;
pub mod storage;

pub use http::{Bounds, Http};
pub use service::{Config, Listeners, ServiceError, serve};
