//! RESP, the protocol of Redis, so that any Redis client can talk to the service.

mod channels;
mod cluster;
mod command;
mod connection;
mod form;
pub mod frame;
mod info;
mod listener;
mod login;
mod redis;
pub(super) mod render;
mod reply;
mod reply_queue;
mod scripts;
mod simulated;
mod transport;
mod writer;

use std::collections::BTreeMap;

pub(super) use channels::Channels;
pub use channels::{Announcement, Subscription};
pub use command::{BadRequest, Command};
pub use form::{Form, Missing, Outcomes, Shown, Word};
pub(crate) use listener::{accept, serve_relayed};
pub use redis::{Call, CalledBy};
pub use reply::{Reply, Version};
pub(super) use scripts::SentScripts;
#[doc(hidden)]
pub use simulated::SimulatedConnection;
pub(super) use writer::ReplyWriter;

/// Counters of RESP connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct RespMetrics {
    /// Connections that are open now, and since the start.
    pub(crate) connections: u64,
    pub(crate) connections_total: u64,
    /// Replies.
    pub(crate) requests: u64,
    /// Errors, by code.
    pub(crate) refusals: BTreeMap<&'static str, u64>,
}

impl RespMetrics {
    pub(super) fn answered(&mut self, reply: &Reply) {
        self.requests += 1;
        if let Reply::Error(code, _) = reply {
            *self.refusals.entry(code).or_default() += 1;
        }
    }
}
