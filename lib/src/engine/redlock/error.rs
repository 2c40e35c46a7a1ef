//! Why there is no majority, node by node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::engine::{Failure, Unavailable};

/// Why a node does not count.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Absence {
    /// There is no line to it.
    #[error("cannot be reached ({0})")]
    NotReached(String),
    /// It has not answered in time.
    #[error("has not answered for {} ms", .0.as_millis())]
    Silent(Duration),
    /// It was restarted, and may have forgotten locks that are held. It counts again when none of them can be left.
    #[error("was started lately and may have forgotten locks; it counts in {:.1} s", .counts_in.as_secs_f64())]
    Restarted {
        /// For so long it does not count.
        counts_in: Duration,
    },
    /// It does not do what it is asked, for now.
    #[error("says: {0}")]
    Refuses(String),
    /// It does not let this client in.
    #[error("does not let this client in: {0}")]
    NotLetIn(String),
    /// It is a server of another kind than is needed here.
    #[error("{0}")]
    Unfit(&'static str),
}

impl Absence {
    /// Whether it stays until somebody does something about it.
    fn is_for_good(&self) -> bool {
        matches!(self, Absence::NotLetIn(_) | Absence::Unfit(_))
    }
}

/// A node that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Where it is: `host:port`.
    pub node: Arc<str>,
    /// Why it does not count.
    pub why: Absence,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.node, self.why)
    }
}

/// Too few nodes have answered: an outage, whoever holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoMajority {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many must answer.
    pub needed: usize,
    /// Those that do not count, and why.
    pub absent: Vec<Absent>,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered = self.nodes - self.absent.len();
        write!(f, "{answered} of {} nodes count, and {} are needed", self.nodes, self.needed)?;
        for (place, absent) in self.absent.iter().enumerate() {
            write!(f, "{} {absent}", if place == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl std::error::Error for NoMajority {}

impl NoMajority {
    /// As the caller sees it.
    pub(super) fn failure(self, may_have_taken_effect: bool) -> Failure {
        let for_good = self.absent.iter().filter(|absent| absent.why.is_for_good()).count();
        let is_retryable = self.nodes - for_good >= self.needed;
        Failure::Unavailable(Unavailable {
            what: self.to_string(),
            may_have_taken_effect,
            is_retryable,
            source: Some(Box::new(self)),
        })
    }
}

/// A majority has granted it, and nothing of its time is left.
pub(super) fn too_slow(ttl: Duration, elapsed: Duration) -> Failure {
    let what = format!(
        "a majority has granted it, but that took {} ms, and of a TTL of {} ms nothing is left; it was undone. \
         Give the session a longer TTL, or find out what is slow",
        elapsed.as_millis(),
        ttl.as_millis()
    );
    Unavailable::new(what).without_effect().into()
}

/// What is not an exclusive lock.
pub(super) fn not_offered(what: &str) -> Failure {
    Unavailable::new(format!("redlock has no {what}")).without_effect().permanent().into()
}

/// Nodes that are not what a majority can be made of.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotIndependent {
    /// Two addresses lead to one server, which would vote twice.
    #[error("{0} and {1} are the same server, which would vote twice; name each server once")]
    SameServer(Arc<str>, Arc<str>),
    /// A server is not one that decides for itself.
    #[error("{0} {1}; name independent primaries")]
    Unfit(Arc<str>, &'static str),
}

impl From<NotIndependent> for Failure {
    fn from(error: NotIndependent) -> Failure {
        Unavailable::new(error.to_string()).without_effect().permanent().because(error).into()
    }
}

/// What is wrong with a `redlock:` URL.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadUrl {
    /// There are too few nodes.
    #[error("a majority that outlives a node needs at least three of them, and there are {found}; {ACCEPTED}")]
    TooFew {
        /// How many it names.
        found: usize,
    },
    /// A node is named twice.
    #[error("'{0}' is named twice; {ACCEPTED}")]
    Twice(String),
    /// An address is none.
    #[error("'{}' is no address; {ACCEPTED}", .0.escape_debug())]
    Address(String),
    /// There is a secret and no user, or it is no text.
    #[error("what stands before the '@' is no user[:secret]; {ACCEPTED}")]
    Login,
    /// An option is not known, or its value is none.
    #[error(
        "'{}' is no option, or has no such value; there are max_ttl=TIME, timeout=TIME and \
         dangerous_count_restarted=yes, and a time looks like 500ms, 30s or 5m; {ACCEPTED}",
        .0.escape_debug()
    )]
    Option(String),
}

const ACCEPTED: &str = "say redlock://[user[:secret]@]host[:port],host[:port],host[:port][?option=value&…]";

impl From<BadUrl> for Failure {
    fn from(bad: BadUrl) -> Failure {
        Unavailable::new(format!("this URL names no nodes: {bad}")).without_effect().permanent().because(bad).into()
    }
}
