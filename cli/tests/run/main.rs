//! `palisade run`, `acquire`, `renew`, `release` and `elect`, as scripts and people use them: the real binary, in real
//! processes that contend, are stopped and are killed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;
mod contending;
mod every;
mod fixture;
mod killed;
mod leases;
mod lost;
mod partitions;
mod passing;
mod refused;
mod signals;
mod terminal;
