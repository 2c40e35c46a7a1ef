//! The service: a replicated log around the lock machine of `core`, its storage, and its protocols. Imports only
//! `core`.
//!
//! `node` decides, without I/O; `net` talks to clients; `run` has the threads and the disk.
#![forbid(unsafe_code)]

pub mod access;
mod net;
pub mod node;
pub mod page;
mod peers;
pub mod replica;
pub mod request;
mod restore;
mod run;
pub mod sign;
pub mod storage;
pub mod tls;

pub use net::{Bounds, Http, HttpBounds, resp};
pub use palisade_core::{Limits, LockName, Token};
pub use peers::{Founding, PeerTls, PeerTlsFiles};
pub use restore::{RestoreFailed, Restored, Source, restore};
pub use run::{ClusterConfig, Config, Listeners, ServiceError, serve, serve_on, serve_until};
