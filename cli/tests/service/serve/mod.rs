//! `palisade serve` as a process: start and stop, logins, refusals, and the isolation of clients from each other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_input;
mod bounds;
pub(crate) mod client;
mod damaged;
mod deployed;
mod encrypted;
mod life;
mod refused;
mod reload;
pub(crate) mod service;
mod signing;
mod users;
pub(crate) mod web;
mod web_encrypted;
mod web_users;
