//! The parts that serve others: `palisade serve`, `fence http`, the page, and the order of their flushes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;
mod fence_http;
mod flushes;
mod page;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod serve;
