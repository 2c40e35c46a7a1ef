//! Seeds of tests with random input.

use std::thread;

/// The seed of one run. If the test fails while it has this value, the command is printed that repeats the run alone.
pub struct Seed {
    seed: u64,
    /// The variable that sets the number of runs.
    runs: &'static str,
}

impl Seed {
    /// Returns this seed, for a test of which the variable `runs` sets the number of runs.
    pub fn new(seed: u64, runs: &'static str) -> Seed {
        Seed { seed, runs }
    }

    /// Returns the seed of the first run: the one that `PALISADE_SEED` sets, or this one.
    pub fn first(default: u64) -> u64 {
        std::env::var("PALISADE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default)
    }
}

impl Drop for Seed {
    #[allow(clippy::print_stderr, reason = "a test that fails must show how to repeat it")]
    fn drop(&mut self) {
        if thread::panicking() {
            let (Seed { seed, runs }, thread) = (self, thread::current());
            // The thread of a test has its name, unless there is only one thread.
            let test = thread.name().filter(|name| *name != "main").unwrap_or("TEST");
            eprintln!(
                "PALISADE_SEED={seed} {runs}=1 cargo test -p palisade-testbench --all-features --test engines -- --include-ignored --exact {test}"
            );
        }
    }
}
