//! Every adapter keeps every promise of `testbench/src/fencing`.

mod acquiring;
mod files;
mod in_memory;
mod kills;
mod mysql;
mod pages;
mod redis;
mod sqlite;

/// How often a server is killed: so many times, unless the environment says otherwise.
fn kills(usual: usize) -> usize {
    std::env::var("PALISADE_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}
