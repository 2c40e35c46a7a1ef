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

/// How often a server is killed: so many times, unless the environment says otherwise.
fn kills(usual: usize) -> usize {
    std::env::var("PALISADE_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}
