//! The commands that need no server, as processes of the real binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod advise;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod fence;
mod force;
mod leader;
mod manual;
mod once;
mod prove;
mod queue;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod tokens;
mod urls;
mod view;
