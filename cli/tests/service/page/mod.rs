//! The live page in a real browser: that of the service, and that of `palisade page`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod any_engine;
mod browser;
mod looks;
mod served;
mod service;
mod users;
