//! Redis's errors: permanent or transient, and whether the call may have taken effect.

use redis::{ErrorKind, RedisError};
use thiserror::Error;

use crate::engine::Failure;
use crate::engine::remote::{ConnectError, Peer};

/// Redis has lost locks: other clients may hold the locks that this client held, and tokens may have gone back. A client that
/// has seen this fails all later calls; connect again to continue.
///
/// It is the source of the errors of those calls:
///
/// ```
/// use std::error::Error;
/// use palisade::engine::redis::DataLost;
///
/// fn is_lost(error: &palisade::Error) -> bool {
///     error.source().is_some_and(|source| source.is::<DataLost>())
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DataLost {
    /// The key of the namespace is gone.
    #[error("the key '{key}' is gone (FLUSHALL or FLUSHDB, eviction, DEL, or a server that started empty)")]
    Gone {
        /// The key.
        key: String,
    },
    /// Another client has created the key again.
    #[error(
        "another client has created the key '{key}' again (after FLUSHALL or FLUSHDB, eviction, DEL, or on a server that \
         started empty)"
    )]
    Recreated {
        /// The key.
        key: String,
    },
    /// The data are older than a token of this client.
    #[error(
        "the token counter went back from {seen} to {found} (failover to a replica that had not caught up, or a restart \
         from older data)"
    )]
    WentBack {
        /// The highest token that this client has seen.
        seen: u64,
        /// The last token that the data contain from that time.
        found: u64,
    },
    /// Another session has a token of this client.
    #[error(
        "token {token}, which was granted to this client, belongs to another session (failover to a replica that had not \
         caught up, or a restart from older data)"
    )]
    Taken {
        /// The token.
        token: u64,
    },
}

impl DataLost {
    pub(super) fn connect_error(&self) -> ConnectError {
        let what = format!(
            "it has lost data: {self}. Other clients may hold the locks that this client held. Check the protected data, \
             then connect again. A fenced engine prevents this"
        );
        ConnectError::permanent(what).because(self.clone())
    }

    pub(super) fn call_error(&self, peer: &Peer) -> CallError {
        CallError { error: self.connect_error().at(peer), may_have_taken_effect: false }
    }
}

/// Why a call failed. Every request that shared the call gets a copy.
#[derive(Debug, Clone)]
pub(super) struct CallError {
    /// The error, with the store's name.
    pub(super) error: ConnectError,
    pub(super) may_have_taken_effect: bool,
}

impl From<CallError> for Failure {
    fn from(failed: CallError) -> Failure {
        failed.error.failure(failed.may_have_taken_effect)
    }
}

impl From<CallError> for ConnectError {
    fn from(failed: CallError) -> ConnectError {
        failed.error
    }
}

/// Classifies an error of the server or of the driver.
pub(crate) fn classify(error: RedisError) -> ConnectError {
    let classified = match (error.kind(), error.code().unwrap_or_default()) {
        (ErrorKind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => ConnectError::denied(format!(
            "it does not let this client in: {error}; connect with a user and a password that it accepts"
        )),
        (_, "NOPERM") => ConnectError::denied(format!(
            "{error}; the user needs the commands EVAL, EVALSHA, SCRIPT, SUBSCRIBE, HSCAN and those in the scripts, and the \
             keys and channels palisade:*"
        )),
        (ErrorKind::RESP3NotSupported, _) => {
            ConnectError::permanent(format!("it is too old; Redis 6.2 or newer is needed ({error})"))
        }
        (_, "WRONGTYPE") => ConnectError::permanent(format!(
            "{error}; another program uses the namespace's key: choose another namespace with ?namespace=NAME"
        )),
        (_, "READONLY" | "MASTERDOWN") => ConnectError::transient("it is not the primary any more"),
        (_, "OOM") => ConnectError::transient(format!("{error}; give it more memory")),
        (_, "MISCONF") => ConnectError::transient(format!("{error}; it cannot write to its disk")),
        (_, "") => ConnectError::transient(format!("the connection broke: {error}")),
        _ => ConnectError::transient(error.to_string()),
    };
    classified.because(error)
}
