//! What the library costs on the engines that need no server: `scripts/bench library`.
//!
//! - `memory:`: cycles of acquire and release through the whole API.
//! - `embedded:`: the same beside raw SQLite commits (`synchronous=FULL`) on the same disk, in the same run.
//! - Wake-up: from the release in one process to the grant in another.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use palisade::{BootInstant, Palisade};
use rusqlite::Connection;

/// Names the database for the process that releases what the other one waits for.
const CHILD: &str = "PALISADE_BENCH_CHILD";

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Cycles a second of so many tasks, each on a lock of its own; the best of five samples, as others use the machine too.
fn cycles(url: &str, tasks: usize, each: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let palisade = palisade::connect(url).await.unwrap();
        let mut samples = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(cycle(palisade.clone(), task, each))).collect();
            for task in running {
                task.await.unwrap();
            }
            samples.push((tasks * each) as f64 / start.elapsed().as_secs_f64());
        }
        median(samples)
    })
}

async fn cycle(palisade: Palisade, task: usize, each: usize) {
    let lock = palisade.lock(format!("bench/{task}"));
    for _ in 0..each {
        let guard = lock.clone().acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

/// Raw commits a second of one row of 120 bytes.
fn raw_commits(file: &Path) -> f64 {
    let database = Connection::open(file).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    database.pragma_update(None, "synchronous", "FULL").unwrap();
    database.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, body BLOB)", []).unwrap();
    let mut samples = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..500 {
            database.execute("INSERT INTO log (body) VALUES (?1)", [[7u8; 120]]).unwrap();
        }
        samples.push(500.0 / start.elapsed().as_secs_f64());
    }
    median(samples)
}

/// Microseconds from the release in another process to the grant here.
fn wake_ups(url: &str, rounds: usize) -> Vec<f64> {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let mut child = child.env(CHILD, url).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut say, heard) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut heard = heard.lines();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let palisade = runtime.block_on(palisade::connect(url)).unwrap();
    let mut latencies = Vec::new();
    for _ in 0..rounds {
        writeln!(say, "acquire").unwrap();
        heard.next().unwrap().unwrap();
        let waiting = palisade.clone();
        let waiter = runtime.spawn(async move {
            let guard = waiting.lock("bench/hot").acquire().await.unwrap();
            let granted_at = BootInstant::now();
            guard.release().await.unwrap();
            granted_at
        });
        while runtime.block_on(palisade.inspect("bench/hot")).unwrap().unwrap().waiters.is_empty() {}
        let released_at = BootInstant::now();
        writeln!(say, "release").unwrap();
        latencies.push(runtime.block_on(waiter).unwrap().since(released_at).as_secs_f64() * 1e6);
        heard.next().unwrap().unwrap();
    }
    drop(say);
    child.wait().unwrap();
    latencies
}

/// The other process: acquires and releases as it is told.
fn child(url: &str) {
    let palisade = palisade::blocking::connect(url).unwrap();
    let mut held = None;
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "acquire" => held = Some(palisade.lock("bench/hot").acquire().unwrap()),
            _ => held.take().unwrap().release().unwrap(),
        }
        println!("done");
    }
}

fn main() {
    if let Ok(url) = std::env::var(CHILD) {
        return child(&url);
    }
    println!("memory: acquire + release through the API");
    for tasks in [1, 64, 256] {
        println!("  {tasks:>4} tasks  {:>9.0} cycles/s", cycles("memory:", tasks, 40_000 / tasks));
    }
    let temporary = tempfile::tempdir_in(".").unwrap();
    let folder = temporary.path().canonicalize().unwrap();
    let raw = raw_commits(&folder.join("raw.db"));
    println!("embedded: beside raw SQLite commits on the same disk");
    println!("   raw commits            {raw:>9.0} commits/s");
    let url = format!("embedded://{}", folder.join("locks.db").display());
    let single = cycles(&url, 1, 500);
    println!(
        "     1 task               {single:>9.0} cycles/s  {:.2} commits a cycle (target: at most 2.5)",
        raw / single
    );
    let many = cycles(&url, 64, 100);
    println!(
        "    64 tasks              {many:>9.0} cycles/s  {:.1} times one task (target: at least 5)",
        many / single
    );
    let mut latencies = wake_ups(&url, 300);
    latencies.sort_by(f64::total_cmp);
    let (p50, p99) = (latencies[latencies.len() / 2], latencies[latencies.len() * 99 / 100]);
    println!("wake-up of the next waiter in another process (target: p50 below 5,000 us)");
    println!("   p50 {p50:.0} us, p99 {p99:.0} us");
}
