//! `redlock://` on real Redis servers: what it promises, and that each correction of the algorithm is needed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod corrections;
mod errors;
mod outages;
mod servers;
