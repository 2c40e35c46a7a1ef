//! The network: RESP and HTTP, TLS, and the limits on connections. Both protocols translate to the node's requests.

mod audit;
mod bounds;
mod connection_limit;
mod handle;
mod hangup;
mod http;
mod login;
mod rate_limit;
pub mod resp;
mod server;
mod unread;
mod waiting;
pub(crate) mod words;

pub use bounds::Bounds;
pub(crate) use handle::ServiceHandle;
pub(crate) use hangup::enable_keepalive;
pub(crate) use http::page;
pub(crate) use http::start as start_http;
pub use http::{Bounds as HttpBounds, Http};
pub(crate) use server::Server;
pub(crate) use waiting::turn_away;
