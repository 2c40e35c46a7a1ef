//! `palisade fence http`, as a separate process in front of a real service.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crashes;
mod encrypted;
mod limits;
mod passing;
mod proxy;
mod refused;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod signed;
mod upstream;
