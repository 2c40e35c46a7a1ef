//! The service: a replicated log around the rules of `core`, its storage, its protocols. Imports `core` alone.
#![forbid(unsafe_code)]

pub mod access;
mod http;
pub mod replica;
pub mod resp;
mod service;
pub mod sign;
pub mod storage;
pub mod tls;

pub use http::{Bounds as HttpBounds, Http};
pub use palisade_core::{Limits, LockName, Token};
pub use service::{Bounds, Config, Listeners, ServiceError, serve, serve_on, serve_until};
