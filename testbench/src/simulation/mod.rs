//! A deterministic world for the whole system.
//!
//! The production code runs here in one thread and in virtual time: the node with its replica and its storage, the library with its
//! keeper, its reconnect logic and its guards, and the rules of the fence. Everything else is simulated: disks that lose, tear,
//! flip, fill and fail; a network that loses, delays, repeats, reorders and cuts; clocks at different rates; machines that crash,
//! pause and sleep; operators who add, remove, damage and restore. Everything follows from a seed, so a failure can be repeated.
//!
//! The committed log is the order in which everything happened. The judge (`judge.rs`) applies it to a separate state machine, and
//! compares it with every node's state and with everything that a client was told.

mod application;
mod calls;
mod checks;
mod clients;
mod clock;
mod faults;
mod host;
mod judge;
mod nodes;
mod plan;
mod redis_client;
mod redis_judge;
mod resource;
mod shrink;
mod stream;
mod trace;
mod world;

use std::time::Duration;

pub use plan::Plan;
pub use shrink::shrink;
pub use trace::{Coverage, EXPECTED, Trace};

use world::World;

/// The outcome of a simulation.
#[derive(Debug)]
pub struct Outcome {
    /// The broken promise, if there is one.
    pub failure: Option<String>,
    /// What happened.
    pub trace: Trace,
    /// How often each fault and rare path happened.
    pub coverage: Coverage,
    /// How long it took in the simulated world.
    pub simulated: Duration,
    /// How many faults were injected.
    pub faults: usize,
    /// How many grants were committed.
    pub grants: usize,
}

/// Runs a simulation. With `is_whole`, the whole trace is kept.
pub fn run(plan: &Plan, is_whole: bool) -> Outcome {
    let mut world = World::new(plan.clone(), is_whole);
    world.run_until(plan.duration);
    if !world.has_failed() {
        world.finish();
    }
    world.into_outcome()
}
