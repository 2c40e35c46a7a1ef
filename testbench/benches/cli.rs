//! What a command costs that is run under a lock: `scripts/bench cli`.
//!
//! `palisade run x -- true` on `embedded:`, beside `flock file true` and `etcdctl lock x true` on a real etcd of one
//! node, measured by hyperfine in one run. `PALISADE_BENCH_BINARY` names another binary than the release build.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use palisade_testbench::servers::Etcd;
use serde_json::Value;

const OVER_FLOCK_MS: f64 = 15.0;
const ROUNDS: usize = 7;
const RUNS: usize = 30;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cli: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), String> {
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let temporary = tempfile::tempdir_in(".").map_err(|error| error.to_string())?;
    let folder = temporary.path().canonicalize().map_err(|error| error.to_string())?;
    let palisade = match std::env::var_os("PALISADE_BENCH_BINARY") {
        Some(binary) => PathBuf::from(binary),
        None => release_build()?,
    };
    let etcd = Etcd::start(&folder).map_err(|error| error.to_string())?;
    let contenders = [
        (
            "palisade run",
            format!("{} --url embedded://{}/locks.db run x -- true", palisade.display(), folder.display()),
        ),
        ("flock", format!("flock {}/file true", folder.display())),
        ("etcdctl lock", format!("etcdctl --endpoints={} lock x true", etcd.endpoint)),
        ("true", "true".to_owned()),
    ];
    // Turn about, since what else happens on the machine changes from second to second.
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(medians(&contenders, &folder)?);
    }
    tell(&contenders, &rounds);
    Ok(())
}

fn tell(contenders: &[(&str, String); 4], rounds: &[[f64; 4]]) {
    println!("a command under a lock, from start to end (medians of {ROUNDS} rounds of {RUNS} runs)");
    if let Some(busy) = busy() {
        println!("  the machine is busy ({busy}), so none of this can be relied on");
    }
    for (at, (name, _)) in contenders.iter().enumerate() {
        println!("  {name:<14} {:>7.2} ms", middle(rounds.iter().map(|round| round[at])));
    }
    let over = middle(rounds.iter().map(|[palisade, flock, ..]| palisade - flock));
    let ratio = middle(rounds.iter().map(|[palisade, _, etcdctl, _]| palisade / etcdctl));
    let (first, second) = (verdict(over <= OVER_FLOCK_MS), verdict(ratio < 1.0));
    println!("  palisade run takes {over:.2} ms more than flock (target: at most {OVER_FLOCK_MS} ms): {first}");
    println!("  and {ratio:.2} times as long as etcdctl lock (target: below 1): {second}");
}

fn middle(samples: impl Iterator<Item = f64>) -> f64 {
    let mut samples: Vec<f64> = samples.collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// What the machine does beside this, if that is more than it has cores for.
fn busy() -> Option<String> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split(' ').next()?.parse().ok()?;
    let cores = std::thread::available_parallelism().ok()?.get();
    (load > cores as f64).then(|| format!("load {load} on {cores} cores"))
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

/// Builds the binary beside this one, with the optimisations that users get.
fn release_build() -> Result<PathBuf, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let built = Command::new(cargo).args(["build", "--release", "--package", "palisade-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("palisade cannot be built".to_owned());
    }
    // This is target/release/deps/cli-….
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(this.ancestors().nth(2).unwrap_or(Path::new(".")).join("palisade"))
}

/// Milliseconds, by hyperfine.
fn medians<const N: usize>(contenders: &[(&str, String); N], folder: &Path) -> Result<[f64; N], String> {
    let results = folder.join("results.json");
    let mut hyperfine = Command::new("hyperfine");
    hyperfine.args(["-N", "--style", "none", "--warmup", "3", "--runs", &RUNS.to_string()]);
    hyperfine.arg("--export-json").arg(&results);
    for (name, command) in contenders {
        hyperfine.args(["--command-name", name, command]);
    }
    let output =
        hyperfine.output().map_err(|error| format!("hyperfine: {error}; scripts/setup --bench installs it"))?;
    if !output.status.success() {
        return Err(format!("hyperfine failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = std::fs::read_to_string(&results).map_err(|error| error.to_string())?;
    let json: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let median = |at: usize| json["results"][at]["median"].as_f64().ok_or(format!("no median: {text}"));
    let mut found = [0.0; N];
    for (at, slot) in found.iter_mut().enumerate() {
        *slot = median(at)? * 1000.0;
    }
    Ok(found)
}
