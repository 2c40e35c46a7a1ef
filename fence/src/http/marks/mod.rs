//! Stores for the marks of a fenced service.

mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod resource_locks;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use palisade_core::LockName;

use super::answer::Answer;
use crate::{Author, FenceState, Mark};

pub use memory::MemoryMarks;
#[cfg(feature = "postgres")]
pub use postgres::PostgresMarks;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteMarks;

/// The stored state of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarkRecord {
    /// Its mark; `None` if it was never sealed.
    pub mark: Option<Mark>,
    /// The author of the last write.
    pub author: Author,
    /// The state of the last write.
    pub last_write: WriteState,
}

/// The state of the last write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WriteState {
    /// There is none yet, or its number was used up without a write.
    #[default]
    Nothing,
    /// It was begun. Unless it is running, it is unknown whether it was carried out.
    Begun,
    /// The service has answered.
    Answered(Arc<Answer>),
}

impl MarkRecord {
    /// Returns the state with this state.
    pub(super) fn state(&self) -> FenceState<WriteState> {
        match self.mark {
            Some(mark) => FenceState::of(mark, self.author, Some(self.last_write.clone())),
            None => FenceState::default(),
        }
    }
}

/// The future of an operation on marks.
pub type MarksFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, MarksError>> + Send + 'a>>;

/// A store for marks: [`MemoryMarks`], `SqliteMarks`, `PostgresMarks`, or your own.
pub trait Marks: Send + Sync + 'static {
    /// Reads the mark of a resource without taking its lock.
    fn peek<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Option<Mark>>;

    /// Waits for the lock of a resource, which excludes all other processes that share the store. Dropping it releases it.
    fn lock<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Box<dyn MarkLock>>;
}

/// The lock of one resource, with its stored state.
pub trait MarkLock: Send {
    /// Returns the stored state.
    fn record(&self) -> &MarkRecord;

    /// Replaces the stored state. In a durable store it is durable when the future is done.
    fn save(&mut self, record: MarkRecord) -> MarksFuture<'_, ()>;
}

/// Marks that could not be read or written.
#[derive(Debug)]
pub struct MarksError {
    what: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl MarksError {
    /// Returns an error: what failed and where, and its cause.
    pub fn new(what: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> MarksError {
        MarksError { what: what.into(), source: source.into() }
    }
}

impl fmt::Display for MarksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl StdError for MarksError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}
