//! The engine in Redis, on real servers.

mod conformance;
mod counting;
mod failovers;
mod faults;
mod functions;
mod guarded;
mod losses;
mod model;
mod scene;
mod shell;
