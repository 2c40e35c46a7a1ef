//! The proof: conformance suite, fault injection, simulation, history checker, benchmarks. Imports every other
//! room; nothing imports it.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod faulty_disk;
pub mod fenced_file;
pub mod fencing;
pub mod history;
pub mod proxy;
pub mod servers;
pub mod staged;
pub mod tidy;
pub mod wall_clock;
