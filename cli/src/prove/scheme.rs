//! What is compared: no fence, the ratchet, the seal.

use serde::{Deserialize, Serialize};

/// How the resource is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scheme {
    /// No check: every process that believes it holds the lock can write.
    None,
    /// The resource keeps the highest token that it has seen, and refuses lower ones.
    Ratchet,
    /// Sealed before the first read, writes numbered.
    Strict,
}

impl Scheme {
    /// In the order in which they are tried.
    pub(super) const ALL: [Scheme; 3] = [Scheme::None, Scheme::Ratchet, Scheme::Strict];

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Scheme::None => "no fence",
            Scheme::Ratchet => "ratchet",
            Scheme::Strict => "strictly fenced",
        }
    }
}
