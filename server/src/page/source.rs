//! Where a board gets its data.

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use palisade_core::{Event, LockName, Token};
use serde::Serialize;
use std::sync::Arc;

use super::lock::Lock;
use super::numbers::Counters;

/// An item of a watch.
#[derive(Debug, Clone)]
pub enum WatchedItem {
    /// Something happened to locks.
    Event(Arc<Event>),
    /// Some events are missing.
    Missed,
}

/// The events of all locks, until the watch ends.
pub type Changes = BoxStream<'static, WatchedItem>;

/// A lock that was taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// How many grants ended.
    pub grants: u32,
    /// The resource is to be sealed with this token.
    pub moved_to: u64,
}

/// A member of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Its name.
    pub id: String,
    /// The address at which the others reach it.
    pub address: String,
    /// `leader`, `follower` or `learner`.
    pub role: &'static str,
    /// Entries of the log that it has not written yet.
    pub lag: Option<u64>,
    /// Whether it answers; `None` if it is not known.
    pub reachable: Option<bool>,
}

/// Where a board gets its data. An error is a sentence for people.
pub trait Source: Send + Sync + 'static {
    /// Lists all locks in use.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Lock>, String>>;

    /// Returns one lock; `None` if it is not in use and has no history.
    fn lock(&self, name: LockName) -> BoxFuture<'_, Result<Option<Lock>, String>>;

    /// Watches all locks.
    fn watch(&self) -> BoxFuture<'_, Result<Changes, String>>;

    /// Returns counters since the start. Without them the board counts events, and follows the engine all the time.
    fn counters(&self) -> BoxFuture<'_, Option<Counters>>;

    /// Returns the members of the cluster, if it is one.
    fn members(&self) -> BoxFuture<'_, Option<Vec<Member>>>;

    /// Takes a lock away from its holders, or from the one with this token.
    fn take_away(&self, name: LockName, only: Option<Token>, reason: String)
    -> BoxFuture<'_, Result<Broken, String>>;
}
