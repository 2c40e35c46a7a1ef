//! Recipes: what to use where a lock is not the best tool, each with the token that makes it safe.
//!
//! - [`cache`]: of all processes that miss a cached value, one rebuilds it.
//! - [`once`]: an operation that must happen once, however often it is attempted. The outcome of the first attempt is kept.
//! - [`partitions`]: members share a number of partitions, each with one owner and its own token.
//! - [`queue`]: jobs that are done one at a time per key, and in order.
//! - [`versioned`]: a value that is replaced only if no other writer was faster.
//!
//! [`store`] has the databases in which recipes keep their records. The page
//! [`docs/recipes`](https://github.com/palisade/palisade/blob/main/docs/recipes/README.md) helps to choose.

pub mod cache;
#[cfg(any(feature = "embedded", feature = "mysql", feature = "postgres", feature = "redis"))]
pub mod once;
pub mod partitions;
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub mod queue;
#[cfg(any(feature = "embedded", feature = "object-store", feature = "postgres", feature = "redis"))]
mod random;
pub mod store;
#[cfg(any(feature = "embedded", feature = "object-store", feature = "postgres", feature = "redis"))]
pub mod versioned;

pub use partitions::{Change, Member, Ownership, Partitions};
