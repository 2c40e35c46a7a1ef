//! What goes wrong on the way to Redis, and in it.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use thiserror::Error;

use crate::engine::{Failure, Unavailable};

/// Why a text is no address of a Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadAddress {
    /// Nobody is named.
    #[error("it has no host; it looks like redis://user:password@host:6379/0")]
    NoHost,
    /// The port is none.
    #[error("its port is none; it looks like redis://host:6379")]
    NoPort,
    /// An address of version 6 without brackets.
    #[error("an address of version 6 stands in brackets: redis://[::1]:6379")]
    NoBrackets,
    /// Several servers that nobody leads to.
    #[error(
        "several hosts are Sentinels or nodes of a cluster: redis://a,b,c/?sentinel=NAME or redis://a,b,c/?cluster; \
         independent servers are redlock://a,b,c"
    )]
    Several,
    /// The database is no number, or not the first one of a cluster.
    #[error("its path is the number of a database, and in a cluster there is only 0: redis://host:6379/0")]
    NoDatabase,
    /// A character that has no place there.
    #[error("'{}' has no place there; percent-encode it: redis://user:p%2Fw@host:6379", .found.escape_debug())]
    Unknown {
        /// Which.
        found: char,
    },
    /// Not text.
    #[error("what is percent-encoded in it is no text; it looks like redis://user:password@host:6379/0")]
    NotText,
    /// An option that there is not.
    #[error(
        "there are the options namespace, sentinel, cluster, replicas, replica_timeout, and for rediss://, ca, cert, \
         key; as in redis://host:6379?namespace=shop"
    )]
    UnknownOption,
    /// An option that says nothing, or twice, or against another one.
    #[error("each option is there once, with a value that makes sense, as in redis://host?namespace=shop&replicas=1")]
    BadOption,
    /// A namespace that would not be a good part of a key.
    #[error("a namespace has at most 100 letters, digits, '-', '_' and '.': redis://host?namespace=shop")]
    BadNamespace,
    /// Half of what is shown.
    #[error("a certificate and its key belong together: rediss://host?cert=FILE&key=FILE, not redis://")]
    HalfIdentity,
    /// Files for encryption on a line without.
    #[error("ca, cert and key are for encrypted lines: rediss:// instead of redis://")]
    NotEncrypted,
}

/// Redis has lost what it knew of locks: other clients may hold what this one held, and tokens may have gone back.
/// Nothing of it goes on: whoever connects anew has seen this.
///
/// It is the source of the errors that calls fail with from then on:
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
    /// The key is not there any more.
    #[error(
        "Redis has lost its data: the key '{key}' is gone (FLUSHALL or FLUSHDB, eviction, DEL, or a server that began \
         empty)"
    )]
    Gone {
        /// Which key.
        key: String,
    },
    /// There is another one in its place.
    #[error(
        "Redis has lost its data: the key '{key}' was made anew by another client (after FLUSHALL or FLUSHDB, \
         eviction, DEL, or on a server that began empty)"
    )]
    MadeAnew {
        /// Which key.
        key: String,
    },
    /// It is older than what this client has seen.
    #[error(
        "Redis has lost data: its token counter went back from {seen} to {found} (failover to a replica that had not \
         caught up, or a restart from older data)"
    )]
    WentBack {
        /// The highest token that this client has seen.
        seen: u64,
        /// The last token that Redis knows of those of that time.
        found: u64,
    },
    /// A token of this client is another session's.
    #[error(
        "Redis has lost data: token {token}, which this client was granted, is another session's (failover to a replica \
         that had not caught up, or a restart from older data)"
    )]
    Taken {
        /// The token.
        token: u64,
    },
}

impl DataLost {
    pub(super) fn failure(&self) -> Failure {
        let what = format!(
            "{self}. Others may hold what was held here: see to your data, then connect anew. To be safe from this, \
             use a fenced engine"
        );
        Unavailable::new(what).because(self.clone()).without_effect().permanent().into()
    }
}

/// Why there is no line, or no answer on it.
#[derive(Debug, Clone, Error)]
pub(super) enum Trouble {
    #[error("{address} cannot be reached: {source}")]
    NotReached { address: String, source: Arc<dyn std::error::Error + Send + Sync> },
    #[error("{address} has not answered for {} ms", .waited.as_millis())]
    Silent { address: String, waited: Duration },
    #[error("the connection to {address} broke: {why}")]
    Broken { address: String, why: String },
    #[error("{address} does not let this client in: {why}; give a user and a password that it accepts")]
    NotLetIn { address: String, why: String },
    #[error("a line to {address} cannot be encrypted: {why}")]
    NoTls { address: String, why: String },
    #[error("no Sentinel of {addresses} knows a primary called '{}': {why}", .name.escape_debug())]
    NoPrimary { addresses: String, name: String, why: String },
    #[error("{address} is not the primary any more")]
    NotPrimary { address: String },
    #[error("{address} is a node of a cluster, and the namespace is on another; add ?cluster to the URL")]
    IsCluster { address: String },
    #[error("{address} is not a node of a cluster; remove ?cluster from the URL")]
    IsNoCluster { address: String },
    #[error("{address} is too old: it needs Redis 6.2 or newer ({why})")]
    TooOld { address: String, why: String },
    #[error("{why}")]
    Unfit { why: String },
    #[error("{address} sends this namespace to {to}")]
    Moved { address: String, to: String },
    #[error("{0}")]
    DataLost(DataLost),
}

impl Trouble {
    pub(super) fn is_for_good(&self) -> bool {
        use Trouble::{DataLost, IsCluster, IsNoCluster, NoTls, NotLetIn, TooOld, Unfit};
        let is_set =
            matches!(self, NotLetIn { .. } | NoTls { .. } | IsCluster { .. } | IsNoCluster { .. } | TooOld { .. });
        is_set || matches!(self, Unfit { .. } | DataLost(_))
    }

    pub(super) fn failure(&self, may_have_taken_effect: bool) -> Failure {
        match self {
            Trouble::DataLost(lost) => lost.failure(),
            Trouble::NotLetIn { .. } => Failure::Denied(self.to_string()),
            trouble => {
                let failure = Unavailable::new(trouble.to_string()).because(trouble.clone());
                let failure = if may_have_taken_effect { failure } else { failure.without_effect() };
                (if self.is_for_good() { failure.permanent() } else { failure }).into()
            }
        }
    }
}

/// What the server's own errors mean. All are said before anything has changed: the rules write at their very end.
pub(super) fn refused(address: &str, error: RedisError) -> Failure {
    let code = error.code().unwrap_or_default().to_owned();
    let said = format!("{address} says: {error}");
    let not_done = |what: String| Unavailable::new(what).because(error).without_effect();
    match code.as_str() {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => Failure::Denied(format!(
            "{said}; the user needs the commands EVAL, EVALSHA, SCRIPT, SUBSCRIBE, HSCAN and those in the scripts, and \
             the keys and channels palisade:*"
        )),
        "WRONGTYPE" => not_done(format!(
            "{said}; the namespace's key is used by something else: choose another \
             with ?namespace=NAME"
        ))
        .permanent()
        .into(),
        "OOM" => not_done(format!("{said}; give it more memory")).into(),
        "MISCONF" => not_done(format!("{said}; it cannot write to its disk")).into(),
        _ => not_done(said).into(),
    }
}
