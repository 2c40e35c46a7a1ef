//! Why a signed token, or a set of keys, is not accepted, and what to do.

use std::fmt;

use palisade_core::Scope;

/// Why a signed token is refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotGenuine {
    /// The text is not a signed token of Palisade.
    Garbage {
        /// What is wrong with it.
        what: &'static str,
    },
    /// It names another algorithm, or none.
    OtherAlgorithm {
        /// The algorithm.
        alg: String,
    },
    /// It is signed by a key that is not trusted: forged, or newer than the keys that were fetched.
    UnknownKey {
        /// The key's id.
        kid: String,
    },
    /// The signature does not match: the token was altered or forged.
    Altered,
    /// It was given by another cluster.
    OtherCluster {
        /// Which one.
        cluster: String,
    },
    /// It is for another lock.
    OtherLock {
        /// Which one.
        lock: String,
    },
    /// It was given to another user than the one that presents it.
    Borrowed {
        /// The user that it was given to, if it names one.
        principal: Option<String>,
    },
    /// The lock is not held exclusively. Sealed with this token, a resource would refuse the other holders.
    NotExclusive {
        /// How it is held.
        scope: Scope,
    },
}

/// Shortens an untrusted text for a message.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

impl fmt::Display for NotGenuine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the signed token is refused: ")?;
        match self {
            NotGenuine::Garbage { what } => write!(f, "{what}; show what signed_token() or LOCK SIGN has answered"),
            NotGenuine::OtherAlgorithm { alg } => {
                write!(f, "its algorithm is '{}', and only EdDSA with Ed25519 is accepted", alg.escape_debug())
            }
            NotGenuine::UnknownKey { kid } => write!(
                f,
                "its key '{}' is not trusted; either it is forged, or the service has a new key: fetch /v1/keys again",
                kid.escape_debug()
            ),
            NotGenuine::Altered => f.write_str("its signature does not match: it was altered or forged"),
            NotGenuine::OtherCluster { cluster } => {
                write!(f, "it was given by another cluster, '{}'", cluster.escape_debug())
            }
            NotGenuine::OtherLock { lock } => {
                write!(f, "it is for another lock, '{}'; acquire the lock of this resource", lock.escape_debug())
            }
            NotGenuine::Borrowed { principal: Some(principal) } => write!(
                f,
                "it was given to '{}', and another user presents it; have one signed for yourself",
                principal.escape_debug()
            ),
            NotGenuine::Borrowed { principal: None } => {
                f.write_str("it does not name its user; configure users in the service")
            }
            NotGenuine::NotExclusive { scope } => {
                write!(f, "the lock is held {}, and this resource needs it exclusively", how(*scope))
            }
        }
    }
}

fn how(scope: Scope) -> String {
    match scope {
        Scope::Exclusive => "exclusively".to_owned(),
        Scope::Shared => "shared".to_owned(),
        Scope::Permits { count, of } => format!("by {count} of {of} permits"),
    }
}

impl std::error::Error for NotGenuine {}

/// Why keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadKeys {
    /// It is no JWK Set.
    NotKeys {
        /// What is wrong with it.
        what: String,
    },
    /// There is no Ed25519 key among them.
    NoKeys,
    /// They say that they are another cluster's.
    OtherCluster {
        /// Which one.
        cluster: String,
    },
}

impl fmt::Display for BadKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadKeys::NotKeys { what } => write!(f, "this is no JWK Set, as /v1/keys answers it: {what}"),
            BadKeys::NoKeys => f.write_str("there is no Ed25519 key with a name among these keys"),
            BadKeys::OtherCluster { cluster } => {
                write!(f, "these are the keys of another cluster, '{}'", cluster.escape_debug())
            }
        }
    }
}

impl std::error::Error for BadKeys {}
