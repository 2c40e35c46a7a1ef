//! Clusters of the real binary, by hand and under the faults of `palisade prove cluster`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;
mod operators;
mod prove_cluster;
#[path = "../sandbox/mod.rs"]
mod sandbox;
#[path = "../servers/mod.rs"]
mod servers;
