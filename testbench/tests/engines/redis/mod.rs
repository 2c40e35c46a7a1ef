//! The engine in Redis, on real servers.

mod conformance;
mod counting;
mod crowds;
mod failovers;
mod faults;
mod fixture;
mod functions;
mod guarded;
mod losses;
mod model;
mod older_data;
mod restores;
mod shell;
