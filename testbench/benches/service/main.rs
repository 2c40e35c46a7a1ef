//! The service beside Redis, etcd and ZooKeeper: `scripts/bench service`.
//!
//! - W1: acquire and release on distinct locks, one connection a client. One client's cycles also beside what nobody can
//!   do faster, turn about: two round trips on loopback, and twice a few bytes made durable.
//! - W2: one hot lock and 64 contenders; a hand-over counts only when another client gets it.
//! - 200 open pages: how much they slow down W1 with 64 clients. With `PALISADE_BENCH_PAGES` nothing else is measured.
//! - 100,000 sessions with a lock each: what it costs to keep them alive, and what others notice when all end at once.
//!
//! Real processes of one node each, closed loop, turn about, since what else happens on the machine changes from second to
//! second. Ratios are medians of what was measured in the same round. `PALISADE_BENCH_SECONDS` is how long a sample
//! takes; 1 is enough to see whether it works. With `PALISADE_BENCH_CSV=FILE.csv` the rates are written to this file, and a
//! chart of them is drawn as `FILE.svg`.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod etcd;
mod expiry;
mod fifo;
mod floors;
mod ours;
mod pages;
mod redis;
mod resp;
mod sample;
mod server;
mod sessions;
mod table;
mod zookeeper;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use palisade_testbench::chart::Chart;
use palisade_testbench::servers::{Absent, Service};
use tokio::runtime::Runtime;

use sample::{Sample, Workload};
use server::Server;
use sessions::Crowd;

const ROUNDS: usize = 3;

// The servers' order: ours, Redis with and without persistence, etcd, ZooKeeper.
const WORKLOADS: [Workload; 3] = [
    Workload { title: "W1: 1 client", clients: 1, is_hot: false, wanted: [None; 5] },
    Workload {
        title: "W1: 64 clients on distinct locks",
        clients: 64,
        is_hot: false,
        wanted: [None, Some(1.0), None, Some(8.0), Some(3.0)],
    },
    Workload {
        title: "W2: one hot lock and 64 contenders",
        clients: 64,
        is_hot: true,
        wanted: [None, Some(2.0), None, Some(10.0), Some(4.0)],
    },
];

/// What was measured at about the same time, in the order of the servers.
type Round = Vec<Sample>;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("service: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Absent> {
    let seconds =
        std::env::var("PALISADE_BENCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3).max(1);
    let length = Duration::from_secs(seconds);
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let temporary = tempfile::tempdir_in(".")?;
    let folder = temporary.path().canonicalize()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    table::heading(seconds);
    let crowded = &WORKLOADS[1];
    if std::env::var_os("PALISADE_BENCH_PAGES").is_some() {
        return pages::measure(&runtime, &folder.join("pages"), crowded, length);
    }
    // While the others do not run: what they do when they have nothing to do is felt at this scale.
    let service = alone(&folder.join("alone"))?;
    table::print_floors(&floors::beside(&service, &folder, length * ROUNDS as u32));
    drop(service);
    let servers = Server::start_all(&folder)?;
    let mut chart = Chart { note: table::note(seconds), rows: Vec::new() };
    for workload in &WORKLOADS {
        let rounds = rounds(&runtime, &servers, workload, length);
        table::print(workload, &servers, &rounds);
        chart.rows.extend(table::rows(workload, &servers, &rounds));
    }
    drop(servers);
    if let Some(csv) = std::env::var_os("PALISADE_BENCH_CSV") {
        chart.save(Path::new(&csv))?;
    }
    pages::measure(&runtime, &folder.join("pages"), crowded, length)?;
    let service = alone(&folder.join("crowd"))?;
    runtime.block_on(async {
        let mut crowd = Crowd::gather(&service).await;
        crowd.keep_alive(&service, length * 7).await;
        crowd.weigh(&service, &folder.join("crowd/service"));
        expiry::all_at_once(&service, crowd).await;
    });
    Ok(())
}

/// Ours, in a folder of its own.
fn alone(folder: &Path) -> Result<Service, Absent> {
    std::fs::create_dir(folder)?;
    Service::start(env!("CARGO_BIN_EXE_serve"), folder)
}

fn rounds(runtime: &Runtime, servers: &[Server], workload: &Workload, length: Duration) -> Vec<Round> {
    // Once without looking: a server that was just started, Java's above all, has yet to get going.
    for server in servers {
        runtime.block_on(workload.sample(server, length));
    }
    let round = |_| servers.iter().map(|server| runtime.block_on(workload.sample(server, length))).collect();
    (0..ROUNDS).map(round).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The value that so many parts of a hundred are not above.
fn percentile(sorted: &[f64], part: usize) -> f64 {
    sorted[(sorted.len() * part / 100).min(sorted.len() - 1)]
}
