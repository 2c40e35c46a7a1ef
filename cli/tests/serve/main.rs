//! `palisade serve` as a process: start and stop, logins, refusals, and the isolation of clients from each other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_input;
mod bounds;
mod client;
mod damaged;
mod deployed;
mod encrypted;
mod life;
mod refused;
mod reload;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod service;
mod signing;
mod users;
mod web;
mod web_encrypted;
mod web_users;
