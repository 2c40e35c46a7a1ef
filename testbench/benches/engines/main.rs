//! The engines on stores beside what a user of that store would pick instead: `scripts/bench engines`.
//!
//! - W1: acquire and release on distinct locks, by 1 client and by 64.
//! - W2: one hot lock and 64 contenders; a hand-over counts only when another contender gets it.
//!
//! One server for all, closed loop, turn about, since what else happens on the machine changes from second to second.
//! Ratios are medians of what was measured in the same round. `PALISADE_BENCH_SECONDS` is how long a sample takes, and
//! `PALISADE_BENCH_STORE` names one store.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod driver;
mod mysql;
mod ours;
mod postgres;

use tokio::runtime::Runtime;

fn main() {
    let length = driver::sample_length();
    let runtime = Runtime::new().unwrap();
    let mut missed = Vec::new();
    if driver::is_wanted("mysql") {
        missed.extend(runtime.block_on(mysql::measure(length)));
    }
    if driver::is_wanted("postgres") {
        missed.extend(runtime.block_on(postgres::measure(length)));
    }
    driver::report(&missed);
}
