//! What a writer is told when it begins, and what it says while it works: a line of JSON each.

use serde::{Deserialize, Serialize};

use super::scheme::Scheme;

/// What a writer is told, on its stdin, where nobody else can read it: there may be secrets in it. When its stdin ends,
/// it finishes what it has begun, and ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) engine: String,
    pub(super) lock: String,
    pub(super) ttl_ms: u64,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) scheme: Scheme,
    pub(super) seed: u64,
}

/// What a writer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Said {
    /// It holds the lock, has read this number, and thinks now.
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
