//! What the library costs on the engines that need no server: `scripts/bench library`.
//!
//! - `memory:`: cycles of acquire and release through the whole API.
//! - `embedded:`: the same beside raw SQLite commits (`synchronous=FULL`) on the same disk, in the same run.
//! - Wake-up: from the release in one process to the grant in another.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use palisade::engine::memory::{Config, Memory};
use palisade::engine::{Acquired, Engine};
use palisade::{BootInstant, LockName, Palisade};
use palisade_core::{Acquire, Caller, Label, RequestNo, Ttl};
use rusqlite::Connection;

/// Names the database for the process that releases what the other one waits for.
const CHILD: &str = "PALISADE_BENCH_CHILD";

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// So many tasks, each on a lock of its own: cycles a second.
async fn cycles(palisade: &Palisade, tasks: usize, each: usize, release: Release) -> f64 {
    let start = Instant::now();
    let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(cycle(palisade.clone(), task, each, release))).collect();
    for task in running {
        task.await.unwrap();
    }
    (tasks * each) as f64 / start.elapsed().as_secs_f64()
}

/// How a guard is given back.
#[derive(Clone, Copy)]
enum Release {
    /// `release().await`: until the engine has done it.
    Awaited,
    /// By dropping it.
    Dropped,
}

async fn cycle(palisade: Palisade, task: usize, each: usize, release: Release) {
    let lock = palisade.lock(format!("bench/{task}"));
    for _ in 0..each {
        let guard = lock.clone().acquire().await.unwrap();
        match release {
            Release::Awaited => guard.release().await.unwrap(),
            Release::Dropped => drop(guard),
        }
    }
}

/// The cycles of so many tasks through the whole API. Their CPU time also tells what they cost when others use the
/// same cores meanwhile.
fn memory(runtime: &tokio::runtime::Runtime, on: &str, tasks: &[usize]) {
    let palisade = runtime.block_on(palisade::connect("memory:")).unwrap();
    for tasks in tasks {
        for (release, how) in [(Release::Awaited, "released"), (Release::Dropped, "dropped")] {
            let (each, rounds, before) = (40_000 / tasks, 5, cpu_time());
            let sample = |_| runtime.block_on(cycles(&palisade, *tasks, each, release));
            let rate = median((0..rounds).map(sample).collect());
            let cpu = (cpu_time() - before).as_secs_f64() * 1e6 / (rounds * tasks * each) as f64;
            println!("  {tasks:>4} tasks  {rate:>9.0} cycles/s, {cpu:>5.2} us of CPU each, guards {how}{on}");
        }
    }
}

/// How much of the cores this process has used.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.try_into().unwrap()
}

/// Does it while this thread, and those that it starts meanwhile, are on one core.
#[cfg(target_os = "linux")]
fn on_one_core(work: impl FnOnce()) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let cores = sched_getaffinity(None).unwrap();
    let mut core = CpuSet::new();
    core.set((0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core)).unwrap());
    sched_setaffinity(None, &core).unwrap();
    work();
    sched_setaffinity(None, &cores).unwrap();
}

/// The engine `memory:` without the keeper: cycles a second on one thread.
fn engine_cycles(runtime: &tokio::runtime::Runtime, count: u32) -> f64 {
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async {
        let engine = Memory::connect(&Config { name: None });
        let opened = engine.open_session(Ttl::from_ms(60_000).unwrap(), Label::new("bench")).await.unwrap();
        let start = Instant::now();
        for number in 1..=count {
            let lock = LockName::new(&format!("bench/{}", number % 64)).unwrap();
            let caller = Caller { session: opened.session, number: RequestNo::new(number.into()).ok() };
            let acquired = engine.acquire(Acquire::exclusive(caller, lock.clone())).await.unwrap();
            let Acquired::Granted { token } = acquired else { panic!("nobody else is there") };
            engine.release(opened.session, lock, token).await.unwrap();
        }
        f64::from(count) / start.elapsed().as_secs_f64()
    }))
}

/// Raw commits of one row of 120 bytes, each in a transaction that excludes other writers from its beginning, as any
/// append to a shared log must be.
struct Raw(Connection);

impl Raw {
    fn open(file: &Path) -> Raw {
        let database = Connection::open(file).unwrap();
        database.pragma_update(None, "journal_mode", "WAL").unwrap();
        database.pragma_update(None, "synchronous", "FULL").unwrap();
        database.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, body BLOB)", []).unwrap();
        Raw(database)
    }

    /// Commits a second.
    fn commits(&self, count: u32) -> f64 {
        let start = Instant::now();
        for _ in 0..count {
            self.0.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
            let mut insert = self.0.prepare_cached("INSERT INTO log (body) VALUES (?1)").unwrap();
            insert.execute([[7u8; 120]]).unwrap();
            self.0.prepare_cached("COMMIT").unwrap().execute([]).unwrap();
        }
        f64::from(count) / start.elapsed().as_secs_f64()
    }
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("memory: acquire + release through the API");
    memory(&runtime, "", &[1, 64, 256]);
    #[cfg(target_os = "linux")]
    on_one_core(|| memory(&runtime, ", all on one core (target: 300,000 cycles/s)", &[64, 256]));
    println!("  engine alone, one thread  {:>9.0} cycles/s", engine_cycles(&runtime, 200_000));
    let temporary = tempfile::tempdir_in(".").unwrap();
    let folder = temporary.path().canonicalize().unwrap();
    let url = format!("embedded://{}", folder.join("locks.db").display());
    let raw = Raw::open(&folder.join("raw.db"));
    // Turn about, since what else happens on the disk changes from second to second.
    let (mut raws, mut ones, mut manys) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let palisade = palisade::connect(&url).await.unwrap();
        for _ in 0..15 {
            raws.push(raw.commits(200));
            ones.push(cycles(&palisade, 1, 200, Release::Awaited).await);
            manys.push(cycles(&palisade, 64, 40, Release::Awaited).await);
        }
    });
    let ratios = raws.iter().zip(&ones).map(|(raw, one)| raw / one).collect();
    let gains = manys.iter().zip(&ones).map(|(many, one)| many / one).collect();
    println!("embedded: turn about with raw SQLite commits on the same disk");
    println!("   raw commits  {:>9.0} commits/s", median(raws));
    println!("     1 task     {:>9.0} cycles/s", median(ones));
    println!("    64 tasks    {:>9.0} cycles/s", median(manys));
    println!("   one cycle of one task takes {:.2} raw commits (target: at most 2.5)", median(ratios));
    println!("   64 tasks do {:.1} times the cycles of one (target: at least 5)", median(gains));
    let mut latencies = wake_ups(&url, 300);
    latencies.sort_by(f64::total_cmp);
    let (p50, p99) = (latencies[latencies.len() / 2], latencies[latencies.len() * 99 / 100]);
    println!("wake-up of the next waiter in another process (target: p50 below 5,000 us)");
    println!("   p50 {p50:.0} us, p99 {p99:.0} us");
}
