//! The commands on real servers of others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod commands;
#[path = "../common/mod.rs"]
mod common;
mod coordination;
mod engine;
mod engine_redis;
mod fence_postgres;
mod redlock;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod secrets;
#[path = "../servers/mod.rs"]
mod servers;
