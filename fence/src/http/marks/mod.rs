//! Where the marks of a fenced service are kept.

mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod turns;

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use palisade_core::LockName;

use super::answer::Answer;
use crate::{Author, Gate, Mark};

pub use memory::MemoryMarks;
#[cfg(feature = "postgres")]
pub use postgres::PostgresMarks;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteMarks;

/// What is kept of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// How far it has come; `None` if nothing has ever sealed it.
    pub mark: Option<Mark>,
    /// Who made the last write.
    pub author: Author,
    /// What came of it.
    pub ending: Ending,
}

/// What came of the last write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ending {
    /// There is none yet, or its number was used up for nothing.
    #[default]
    Nothing,
    /// It was begun. Unless it is under way, nobody knows whether it was carried out.
    Begun,
    /// The service has answered.
    Answered(Arc<Answer>),
}

impl Kept {
    /// The rules, with what is kept.
    pub(super) fn gate(&self) -> Gate<Ending> {
        match self.mark {
            Some(mark) => Gate::of(mark, self.author, Some(self.ending.clone())),
            None => Gate::default(),
        }
    }
}

/// What becomes of something that the marks are asked.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, MarksError>> + Send + 'a>>;

/// Where marks are kept: [`MemoryMarks`], `SqliteMarks`, `PostgresMarks`, or a place of your own.
pub trait Marks: Send + Sync + 'static {
    /// The mark of a resource, without waiting for anybody's turn.
    fn peek<'a>(&'a self, resource: &'a LockName) -> Later<'a, Option<Mark>>;

    /// Waits for the turn to change what is kept of a resource. Nobody else has it at the same time, in whatever
    /// process; it ends when it is dropped.
    fn turn<'a>(&'a self, resource: &'a LockName) -> Later<'a, Box<dyn Turn>>;
}

/// The turn to change what is kept of one resource.
pub trait Turn: Send {
    /// What is kept.
    fn kept(&self) -> &Kept;

    /// Keeps this from now on; durably, once it is done, if the place is durable at all.
    fn keep(&mut self, kept: Kept) -> Later<'_, ()>;
}

/// Marks that could not be read or written.
#[derive(Debug)]
pub struct MarksError {
    what: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl MarksError {
    /// What failed, where, and what the place said.
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
