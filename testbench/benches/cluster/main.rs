//! A cluster of three nodes beside etcd and ZooKeeper, three nodes each: `scripts/bench cluster`.
//!
//! - speed: acquire and release, one client with its own lock, 64 clients with their own locks, and 64 clients with one hot lock. The
//!   workloads are those of `scripts/bench engines`.
//! - failures: the leader is killed, or stopped, or hands over, while clients work. The figure is the longest time without a grant.
//! - size, of ours alone: 100,000 sessions whose leader is killed, and a snapshot of 1,000,000 locks that travels while clients work.
//!
//! All nodes are real processes on this machine, with the settings that their documentation starts with. The clusters are measured
//! in turn, since the load of the machine changes from second to second. One round that does not count warms them up.
//!
//! `PALISADE_BENCH_SECONDS` is the length of a sample, `PALISADE_BENCH_FAILURES` the number of failures of each kind,
//! `PALISADE_BENCH_STORE=palisade` (or `etcd`, `zookeeper`) leaves the other stores out, and `PALISADE_BENCH_QUICK=1` runs
//! speed and failures once, to see whether they work. With the argument `speed`, `failures` or `size` only that part runs.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod client;
mod cluster;
#[path = "../engines/driver.rs"]
mod driver;
mod failures;
#[path = "../service/resp.rs"]
mod resp;
mod size;

use std::process::ExitCode;
use std::time::Duration;

use palisade_testbench::servers::Absent;
use tokio::runtime::Runtime;

use cluster::Cluster;
use driver::{ROUNDS, Sample, WORKLOADS, Workload, sample, show};
use failures::Fault;

/// An absolute target of ours.
struct Target {
    of: fn(&Sample) -> f64,
    unit: &'static str,
    wanted: f64,
    is_at_least: bool,
}

/// The targets of each workload: an absolute one, and how many times as many cycles or hand-overs as the others.
const TARGETS: [(Target, Option<f64>); 3] = [
    (
        Target { of: |sample| sample.p50.as_secs_f64() * 1000.0, unit: "ms p50", wanted: 0.4, is_at_least: false },
        None,
    ),
    (Target { of: |sample| sample.per_second, unit: "cycles/s", wanted: 25_000.0, is_at_least: true }, Some(8.0)),
    (Target { of: |sample| sample.per_second, unit: "hand-overs/s", wanted: 4_500.0, is_at_least: true }, Some(4.0)),
];

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cluster: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Absent> {
    let part = std::env::args().nth(1);
    let wants = |name: &str| part.as_deref().is_none_or(|part| part == name || part.starts_with('-'));
    let is_quick = std::env::var_os("PALISADE_BENCH_QUICK").is_some();
    let length = if is_quick { Duration::from_secs(1) } else { driver::sample_length() };
    let rounds = if is_quick { 1 } else { ROUNDS };
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let folder = tempfile::tempdir_in(".")?;
    let mut clusters = Cluster::start_all(&folder.path().canonicalize()?)?;
    let runtime = Runtime::new()?;
    heading(rounds, length);
    let mut missed = Vec::new();
    if wants("speed") {
        for (workload, (target, times)) in WORKLOADS.iter().zip(&TARGETS) {
            missed.extend(measure_speed(&runtime, &clusters, workload, target, *times, (rounds, length)));
        }
    }
    if wants("failures") {
        let failures = if is_quick { 1 } else { failures::count() };
        for fault in [Fault::Killed, Fault::Stopped, Fault::Transferred] {
            missed.extend(failures::measure(&runtime, &mut clusters, fault, failures)?);
        }
    }
    if let (true, Cluster::Palisade(ours)) = (wants("size") && !is_quick, &mut clusters[0]) {
        missed.extend(size::measure_sessions(&runtime, ours)?);
        missed.extend(size::measure_snapshot(&runtime, ours)?);
    }
    driver::report(&missed);
    Ok(())
}

fn heading(rounds: usize, length: Duration) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "medians of {rounds} rounds of {} s; three nodes each and all clients on one machine of {cores} cores",
        length.as_secs()
    );
    println!("palisade: the library, one client with its own connection and session for each");
    println!("etcd: Lock API with one lease a client, in the samples of speed on the node that leads");
    println!("ZooKeeper: the lock of zookeeper-client with an awaited release, one session a client");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before this: {}", load.split(' ').next().unwrap_or_default());
}

fn measure_speed(
    runtime: &Runtime,
    clusters: &[Cluster],
    workload: &Workload,
    target: &Target,
    times: Option<f64>,
    (rounds, length): (usize, Duration),
) -> Vec<String> {
    let round = |_| clusters.iter().map(|cluster| measure_once(runtime, cluster, workload, length)).collect();
    let rounds: Vec<Vec<Sample>> = (0..=rounds).map(round).collect();
    let names: Vec<_> = clusters.iter().map(Cluster::name).collect();
    let wanted: Vec<_> = (0..clusters.len()).map(|at| times.filter(|_| at > 0)).collect();
    let mut missed = show("three nodes", workload, &names, &rounds[1..], &wanted);
    let ours = driver::median(rounds[1..].iter().map(|round| (target.of)(&round[0])));
    let is_met = if target.is_at_least { ours >= target.wanted } else { ours <= target.wanted };
    let line = format!("palisade: {ours:.2} {}, wanted {}", target.unit, target.wanted);
    println!("  {line}: {}", if is_met { "yes" } else { "NO" });
    if !is_met {
        missed.push(line);
    }
    missed
}

fn measure_once(runtime: &Runtime, cluster: &Cluster, workload: &Workload, length: Duration) -> Sample {
    runtime.block_on(async {
        let mut clients = Vec::new();
        for number in 0..workload.clients {
            let lock = if workload.is_hot { "hot".to_owned() } else { format!("lock-{number}") };
            clients.push(cluster.connect(&lock).await);
        }
        sample(clients, workload.is_hot, length).await
    })
}
