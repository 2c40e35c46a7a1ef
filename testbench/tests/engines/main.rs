//! The engines, each on real servers: the conformance suite, its own promises, and real faults.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::duplicate_mod, reason = "PostgreSQL and MySQL expand some suites each over its own fixture")]

mod conformance;
mod consul;
#[cfg(feature = "etcd")]
mod etcd;
// The page names all engines.
#[cfg(feature = "etcd")]
mod guarantees;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod zookeeper;
