//! The proof: conformance suite, fault injection, simulation, history checker, benchmarks. Imports every other
//! room; nothing imports it.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod fenced_file;
pub mod servers;
pub mod staged;
pub mod tidy;
