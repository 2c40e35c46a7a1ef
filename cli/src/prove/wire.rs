//! The messages to and from a writer: one line of JSON each.

use serde::{Deserialize, Serialize};

use super::fencing::Fencing;

/// A writer's configuration. It goes to stdin, which other users cannot read, because URLs may have secrets. When stdin
/// is closed, the writer finishes its update and exits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WriterConfig {
    pub(super) engine: String,
    pub(super) lock: String,
    pub(super) ttl_ms: u64,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) fencing: Fencing,
    pub(super) seed: u64,
}

/// An event that a writer reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WriterEvent {
    /// The writer holds the lock, has read this number, and waits before it writes.
    Read(u64),
    /// The resource acknowledged the write of this number.
    Wrote(u64),
    /// The fence refused the write.
    Refused,
    /// The write may have taken effect, or may still do so.
    UnknownOutcome(String),
    /// The attempt failed and certainly changed nothing. The writer goes on.
    Failed(String),
}
