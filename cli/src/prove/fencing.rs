//! The three ways to protect a resource that `palisade prove` compares.

use serde::{Deserialize, Serialize};

/// How the resource is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fencing {
    /// No check: every process that believes it holds the lock can write.
    None,
    /// The resource keeps the highest token of all writes, and refuses lower ones. A write of an older holder that arrives
    /// before the first write of the new one gets through.
    Ratchet,
    /// The real fence: each holder seals the resource before its first read, and numbers its writes.
    Strict,
}

impl Fencing {
    /// All, in the order of the report.
    pub(super) const ALL: [Fencing; 3] = [Fencing::None, Fencing::Ratchet, Fencing::Strict];

    pub(super) fn name(self) -> &'static str {
        match self {
            Fencing::None => "no fence",
            Fencing::Ratchet => "ratchet",
            Fencing::Strict => "strictly fenced",
        }
    }
}
