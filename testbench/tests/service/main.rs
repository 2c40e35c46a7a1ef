//! The service as real processes, and its parts in virtual time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crashes;
mod node;
mod redis_clients;
mod simulation;
mod single;
mod storage;
