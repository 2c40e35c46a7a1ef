//! The requests to a client and its replies: one line of JSON each.

use serde::{Deserialize, Serialize};

use crate::prove::fencing::Fencing;

/// A client's configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ClientConfig {
    pub(super) engine: String,
    pub(super) lock: String,
    pub(super) ttl_ms: u64,
    pub(super) resource: String,
    pub(super) name: String,
    /// Strictly fenced, on an engine that has tokens; or not at all.
    pub(super) fencing: Fencing,
}

/// A request to a client.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Acquire the lock and, if strictly fenced, seal the resource.
    Acquire { within_ms: u64 },
    /// Read the number.
    Read,
    /// Check whether the lock is still held, as far as this process knows.
    Inspect,
    /// Write the number that was read, plus one.
    Write,
    /// Release the lock.
    Release,
}

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// The client is connected.
    Ready,
    /// The token is `None` on an engine without tokens.
    Granted {
        token: Option<u64>,
    },
    NotGranted,
    Read(u64),
    /// The client still holds the lock, as far as it knows.
    Holds {
        is_in_jeopardy: bool,
    },
    Lost(String),
    Wrote(u64),
    Refused(String),
    Released,
    Failed(String),
}
