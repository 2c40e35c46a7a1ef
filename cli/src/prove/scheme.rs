//! What is compared: no fence, the ratchet, the seal.

use serde::{Deserialize, Serialize};

/// How the resource is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scheme {
    /// Not at all: whoever believes to hold the lock writes.
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
