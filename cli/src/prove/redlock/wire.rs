//! The requests to a client and its replies: one line of JSON each.

use serde::{Deserialize, Serialize};

use crate::prove::scheme::Scheme;

/// A client's configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ClientConfig {
    pub(super) engine: String,
    pub(super) lock: String,
    pub(super) ttl_ms: u64,
    pub(super) resource: String,
    pub(super) name: String,
    /// Strictly fenced, on an engine that has tokens; or not at all.
    pub(super) scheme: Scheme,
}

/// A request to a client.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Take the lock, and seal the resource where the scheme says so.
    Acquire { within_ms: u64 },
    /// Read the number.
    Read,
    /// Look whether the lock is still held, as far as this process knows.
    Inspect,
    /// Write the number that was read, plus one.
    Write,
    /// Give the lock back.
    Release,
}

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// It is connected.
    Ready,
    /// With a token, where there is one.
    Granted {
        token: Option<u64>,
    },
    NotGranted,
    Read(u64),
    /// It still holds the lock, as far as it knows; whether it was warned.
    Holds {
        is_in_jeopardy: bool,
    },
    Lost(String),
    Wrote(u64),
    Refused(String),
    Released,
    Failed(String),
}
