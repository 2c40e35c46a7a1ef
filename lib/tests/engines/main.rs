//! The embedded engine, and the recipe for partitions on engines that need no server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(feature = "embedded")]
mod embedded;
mod partitions;
