//! Redis's errors: permanent or transient, and whether the call may have taken effect.

use redis::{ErrorKind, RedisError};
use thiserror::Error;

use crate::engine::Failure;
use crate::engine::remote::{ConnectError, Peer};

/// Why a URL does not name a Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadAddress {
    /// It names no host.
    #[error("it has no host; it looks like redis://user:password@host:6379/0")]
    NoHost,
    /// The port is not a number from 1 to 65535.
    #[error("its port is not a number from 1 to 65535; it looks like redis://host:6379")]
    NoPort,
    /// An IPv6 address without brackets.
    #[error("an IPv6 address needs brackets: redis://[::1]:6379")]
    NoBrackets,
    /// Several servers that are neither Sentinels nor a cluster.
    #[error(
        "several hosts are Sentinels or nodes of a cluster: redis://a,b,c/?sentinel=NAME or redis://a,b,c/?cluster; \
         independent servers are redlock://a,b,c"
    )]
    Several,
    /// The database is not a number, or is not 0 in a cluster.
    #[error("its path is the number of a database, which is 0 in a cluster: redis://host:6379/0")]
    NoDatabase,
    /// A character that must be percent-encoded.
    #[error("'{}' must be percent-encoded: redis://user:p%2Fw@host:6379", .found.escape_debug())]
    Unknown {
        /// The character.
        found: char,
    },
    /// A percent-encoded part is not UTF-8.
    #[error("a percent-encoded part is not UTF-8; it looks like redis://user:password@host:6379/0")]
    NotText,
    /// An unknown option.
    #[error(
        "the options are namespace, sentinel, cluster, replicas, replica_timeout, and for rediss://, ca, cert, \
         key; as in redis://host:6379?namespace=shop"
    )]
    UnknownOption,
    /// An option without a valid value, given twice, or in conflict with another one.
    #[error("each option is given once, with a valid value, as in redis://host?namespace=shop&replicas=1")]
    BadOption,
    /// A namespace with other characters, or too long.
    #[error("a namespace has at most 100 letters, digits, '-', '_' and '.': redis://host?namespace=shop")]
    BadNamespace,
    /// A certificate without a key, or a key without a certificate.
    #[error("a certificate and its key belong together: rediss://host?cert=FILE&key=FILE, not redis://")]
    HalfIdentity,
    /// Files for encryption in a URL without encryption.
    #[error("ca, cert and key need an encrypted connection: rediss:// instead of redis://")]
    NotEncrypted,
}

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
pub(super) fn classify(error: RedisError) -> ConnectError {
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
