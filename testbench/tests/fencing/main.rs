//! The fences, on real resources.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod postgres;
mod resources;
