//! The engines on coordination stores beside what a user of that store would pick instead: `scripts/bench coordination`.
//!
//! The workloads, the way they are measured and the settings are those of `scripts/bench engines`. A server is warmed up by
//! one round that does not count.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod consul;
#[path = "../engines/driver.rs"]
mod driver;
mod etcd;
#[path = "../service/etcd.rs"]
mod lock_api;
#[path = "../engines/ours.rs"]
mod ours;
mod zookeeper;

use tokio::runtime::Runtime;

fn main() {
    let length = driver::sample_length();
    let runtime = Runtime::new().unwrap();
    let mut missed = Vec::new();
    if driver::is_wanted("etcd") {
        missed.extend(runtime.block_on(etcd::measure(length)));
    }
    if driver::is_wanted("zookeeper") {
        missed.extend(runtime.block_on(zookeeper::measure(length)));
    }
    if driver::is_wanted("consul") {
        missed.extend(runtime.block_on(consul::measure(length)));
    }
    driver::report(&missed);
}
