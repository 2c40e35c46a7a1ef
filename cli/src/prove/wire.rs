//! The messages to and from a writer: one line of JSON each.

use serde::{Deserialize, Serialize};

use super::scheme::Scheme;

/// A writer's configuration. It goes to stdin, which other users cannot read, because URLs may have secrets. When stdin
/// is closed, the writer finishes its update and exits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WriterConfig {
    pub(super) engine: String,
    pub(super) lock: String,
    pub(super) ttl_ms: u64,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) scheme: Scheme,
    pub(super) seed: u64,
}

/// An event that a writer reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WriterEvent {
    /// It holds the lock, has read this number, and waits before it writes.
    Read(u64),
    /// The resource has told it that this number is written.
    Wrote(u64),
    /// The resource has refused it.
    Refused,
    /// It may have written this number, or may still.
    Unsure(String),
    /// It could not do it, and goes on.
    Failed(String),
}
