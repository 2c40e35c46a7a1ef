//! Why there is no majority, node by node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::engine::{Failure, Unavailable};

/// Why a node does not count.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Absence {
    /// No connection could be opened.
    #[error("cannot be reached ({0})")]
    NotReached(String),
    /// It has not answered in time.
    #[error("has not answered for {} ms", .0.as_millis())]
    Silent(Duration),
    /// It was restarted, and may have lost locks that are held. It counts again when all of them have expired.
    #[error("was restarted recently and may have forgotten locks; it counts in {:.1} s", .counts_in.as_secs_f64())]
    Restarted {
        /// The time until it counts.
        counts_in: Duration,
    },
    /// It refuses the command, for now.
    #[error("says: {0}")]
    Refuses(String),
    /// It rejects this client's credentials or rights.
    #[error("does not let this client in: {0}")]
    NotLetIn(String),
    /// It is not an independent primary.
    #[error("{0}")]
    Unfit(&'static str),
}

impl Absence {
    /// Whether it stays until the operator changes something.
    fn is_permanent(&self) -> bool {
        matches!(self, Absence::NotLetIn(_) | Absence::Unfit(_))
    }
}

/// A node that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Its address: `host:port`.
    pub node: Arc<str>,
    /// Why it does not count.
    pub why: Absence,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.node, self.why)
    }
}

/// An outage: too few nodes count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoMajority {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of nodes that must count.
    pub needed: usize,
    /// The nodes that do not count, and why.
    pub absent: Vec<Absent>,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered = self.nodes - self.absent.len();
        write!(f, "{answered} of {} nodes count, and {} are needed", self.nodes, self.needed)?;
        for (index, absent) in self.absent.iter().enumerate() {
            write!(f, "{} {absent}", if index == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl std::error::Error for NoMajority {}

impl NoMajority {
    /// The failure of a call.
    pub(super) fn failure(self, may_have_taken_effect: bool) -> Failure {
        let permanent = self.absent.iter().filter(|absent| absent.why.is_permanent()).count();
        let is_retryable = self.nodes - permanent >= self.needed;
        Failure::Unavailable(Unavailable {
            what: self.to_string(),
            may_have_taken_effect,
            is_retryable,
            source: Some(Box::new(self)),
            if_undone: None,
        })
    }
}

/// The failure of an acquire that a majority granted too late.
pub(super) fn too_slow(ttl: Duration, elapsed: Duration) -> Failure {
    let what = format!(
        "a majority granted the lock, but that took {} ms, and nothing is left of the TTL of {} ms; the grant was undone. \
         Use a longer TTL, or find out which node is slow",
        elapsed.as_millis(),
        ttl.as_millis()
    );
    Unavailable::new(what).without_effect().into()
}

/// The failure of a call that this engine does not offer.
pub(super) fn not_offered(what: &str) -> Failure {
    Unavailable::new(format!("redlock has no {what}")).without_effect().permanent().into()
}

/// Nodes that cannot form a majority.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotIndependent {
    /// Two addresses are of one server, which would vote twice.
    #[error("{0} and {1} are the same server, which would vote twice; name each server once")]
    SameServer(Arc<str>, Arc<str>),
    /// A server is not an independent primary.
    #[error("{0} {1}; name independent primaries")]
    Unfit(Arc<str>, &'static str),
}

impl From<NotIndependent> for Failure {
    fn from(error: NotIndependent) -> Failure {
        Unavailable::new(error.to_string()).without_effect().permanent().because(error).into()
    }
}
