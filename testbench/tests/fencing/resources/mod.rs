//! Every adapter keeps every promise of `testbench/src/fencing`.

mod acquiring;
mod files;
mod http;
mod http_shared;
mod in_memory;
mod kills;
mod mysql;
mod objects;
mod on_postgres;
mod pages;
mod redis;
mod sqlite;
mod sqlite_tables;
mod together;

use palisade_testbench::bounded;

/// Returns the number of kills that `PALISADE_KILLS` sets, or this default.
fn kills(default: u32) -> u32 {
    bounded::number_from_env("PALISADE_KILLS", default)
}

/// Checks a promise on a runtime with one thread.
fn check<T>(promise: impl Future<Output = T>) -> T {
    bounded::check(bounded::BOUND, promise)
}
