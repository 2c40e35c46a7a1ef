//! The engine in Redis, on real servers.

mod conformance;
mod model;
