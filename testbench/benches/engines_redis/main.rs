//! Locks in Redis beside what is used there otherwise, on the same server, turn about: `scripts/bench engines_redis`.
//!
//! - palisade: this engine, through the library; W1 with one client for all tasks, W2 with a client for each contender.
//! - SET NX: `SET NX PX`, a script that compares before it deletes, and a poll every 10 to 100 ms where the lock is not
//!   free; through the same driver.
//! - redis-py: its `Lock`, in threads, as its users have it.
//!
//! W1: acquire and release on distinct locks. W2: one hot lock; a hand-over counts only when another one gets it, and how
//! long it was waited for is shown of hand-overs, and of all waits: who polls mostly gets back what it has just released.
//! `PALISADE_BENCH_SECONDS` is how long a sample takes.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod redis_py;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use palisade::Palisade;
use palisade_testbench::servers;
use redis::aio::MultiplexedConnection;

const ROUNDS: usize = 3;
const RELEASE: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";

struct Workload {
    title: &'static str,
    tasks: usize,
    is_hot: bool,
}

const WORKLOADS: [Workload; 3] = [
    Workload { title: "W1, 1 task", tasks: 1, is_hot: false },
    Workload { title: "W1, 64 tasks on distinct locks", tasks: 64, is_hot: false },
    Workload { title: "W2, one hot lock, 64 contenders", tasks: 64, is_hot: true },
];

#[derive(Clone, Copy, PartialEq)]
enum Peer {
    Ours,
    SetNx,
    RedisPy,
}

const PEERS: [(Peer, &str); 3] = [(Peer::Ours, "palisade"), (Peer::SetNx, "SET NX"), (Peer::RedisPy, "redis-py")];

/// A client that wants a lock again and again.
enum Contender {
    Ours { palisade: Palisade, lock: String },
    SetNx { connection: MultiplexedConnection, lock: String, owner: String, script: String, chance: u64 },
}

/// What was waited for.
enum Held {
    Ours(palisade::EfficiencyGuard),
    SetNx,
}

impl Contender {
    async fn acquire(&mut self) -> Held {
        match self {
            Contender::Ours { palisade, lock } => {
                Held::Ours(palisade.lock(&*lock).efficiency().acquire().await.unwrap())
            }
            Contender::SetNx { connection, lock, owner, chance, .. } => loop {
                let mut set = redis::cmd("SET");
                set.arg(&*lock).arg(&*owner).arg("NX").arg("PX").arg(60_000);
                if set.query_async::<Option<String>>(connection).await.unwrap().is_some() {
                    return Held::SetNx;
                }
                *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                tokio::time::sleep(Duration::from_micros(10_000 + (*chance >> 33) % 90_000)).await;
            },
        }
    }

    async fn release(&mut self, held: Held) {
        match (self, held) {
            (_, Held::Ours(guard)) => guard.release().await.unwrap(),
            (Contender::SetNx { connection, lock, owner, script, .. }, Held::SetNx) => {
                let mut release = redis::cmd("EVALSHA");
                release.arg(&*script).arg(1).arg(&*lock).arg(&*owner);
                assert_eq!(release.query_async::<u32>(connection).await.unwrap(), 1);
            }
            (Contender::Ours { .. }, Held::SetNx) => unreachable!("a guard is what it gets"),
        }
    }
}

/// What a sample has shown. Times are of a cycle; on a hot lock, of the wait for a hand-over.
#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// The same of all waits.
    p99_all_ms: f64,
    max_ms: f64,
    /// How evenly they came to it: 1 is perfect.
    jain: f64,
    /// The server's time for each of them.
    cpu_us: f64,
}

impl Sample {
    /// `others_ms` are waits that were no hand-overs.
    fn of(times_ms: Vec<f64>, others_ms: Vec<f64>, counts: &[usize], elapsed: Duration, cpu: Duration) -> Sample {
        let sorted = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times
        };
        let part = |times: &[f64], part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
        let (times_ms, all_ms) = (sorted(times_ms.clone()), sorted([times_ms, others_ms].concat()));
        let sum: usize = counts.iter().sum();
        let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
        Sample {
            per_second: sum as f64 / elapsed.as_secs_f64(),
            p50_ms: part(&times_ms, 50),
            p99_ms: part(&times_ms, 99),
            p99_all_ms: part(&all_ms, 99),
            max_ms: part(&all_ms, 100),
            jain: (sum as f64).powi(2) / (counts.len() as f64 * squares),
            cpu_us: cpu.as_secs_f64() * 1e6 / sum as f64,
        }
    }
}

fn main() -> ExitCode {
    let seconds = std::env::var("PALISADE_BENCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3);
    let folder = tempfile::tempdir().unwrap();
    let server = match servers::Redis::start(folder.path(), "no") {
        Ok(server) => server,
        Err(absent) => {
            eprintln!("engines_redis: {absent}");
            return ExitCode::FAILURE;
        }
    };
    println!("Redis without persistence, samples of {seconds} s, medians of {ROUNDS} rounds\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for workload in &WORKLOADS {
        let rounds: Vec<Vec<Option<Sample>>> = (0..ROUNDS)
            .map(|_| {
                PEERS.iter().map(|(peer, _)| runtime.block_on(workload.sample(*peer, &server, seconds))).collect()
            })
            .collect();
        workload.print(&rounds);
    }
    ExitCode::SUCCESS
}

impl Workload {
    async fn sample(&self, peer: Peer, server: &servers::Redis, seconds: u64) -> Option<Sample> {
        if peer == Peer::RedisPy {
            return self.sample_python(server, seconds);
        }
        let mut contenders = Vec::new();
        for number in 0..self.tasks {
            let lock = if self.is_hot { "hot".to_owned() } else { format!("lock-{number}") };
            let contender = match (contenders.first(), peer) {
                // In one process all tasks share a client. Contenders are in many processes.
                (Some(first), _) if !self.is_hot => again(first, lock, number),
                (_, peer) => connect(peer, server, lock, number).await,
            };
            contenders.push(contender);
        }
        let (last, cpu, began_at) = (Arc::new(AtomicUsize::new(usize::MAX)), cpu_of(server.pid()), Instant::now());
        let until = began_at + Duration::from_secs(seconds);
        let is_hot = self.is_hot;
        let tasks: Vec<_> = contenders
            .into_iter()
            .enumerate()
            .map(|(number, contender)| tokio::spawn(contend(contender, number, last.clone(), until, is_hot)))
            .collect();
        let (mut times, mut others, mut counts, mut leaving) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for task in tasks {
            let (contender, own, own_others) = task.await.unwrap();
            counts.push(own.len());
            times.extend(own);
            others.extend(own_others);
            leaving.push(contender);
        }
        let (elapsed, cpu) = (began_at.elapsed(), cpu_of(server.pid()) - cpu);
        drop(leaving);
        Some(Sample::of(times, others, &counts, elapsed, cpu))
    }

    /// redis-py, if it is installed.
    fn sample_python(&self, server: &servers::Redis, seconds: u64) -> Option<Sample> {
        let (cpu, began_at) = (cpu_of(server.pid()), Instant::now());
        let (counts, times, others) = redis_py::measure(server.address.port(), self.tasks, self.is_hot, seconds)?;
        let elapsed = began_at.elapsed().min(Duration::from_secs(seconds));
        Some(Sample::of(times, others, &counts, elapsed, cpu_of(server.pid()) - cpu))
    }

    fn print(&self, rounds: &[Vec<Option<Sample>>]) {
        println!("{}", self.title);
        println!(
            "  {:10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8}   ours is",
            "", "per s", "p50 ms", "p99 ms", "p99 all", "max ms", "Jain", "CPU us"
        );
        for (index, (peer, name)) in PEERS.iter().enumerate() {
            let samples: Vec<_> = rounds.iter().filter_map(|round| round[index]).collect();
            if samples.is_empty() {
                println!("  {name:10} not installed: scripts/setup --bench");
                continue;
            }
            let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
            let ratio = |value: fn(&Sample) -> f64| {
                median(rounds.iter().filter_map(|round| Some(value(&round[0]?) / value(&round[index]?))))
            };
            let beside = match (peer, self.is_hot) {
                (Peer::Ours, _) => String::new(),
                (_, false) => format!("{:.2} times as long", ratio(|sample| 1.0 / sample.per_second)),
                (_, true) => format!(
                    "{:.1} times as many hand-overs, {:.3} of its p99 wait for one, {:.3} of its p99 of all waits",
                    ratio(|sample| sample.per_second),
                    ratio(|sample| sample.p99_ms),
                    ratio(|sample| sample.p99_all_ms)
                ),
            };
            println!(
                "  {name:10} {:10.0} {:9.3} {:9.3} {:9.3} {:9.3} {:6.3} {:8.1}   {beside}",
                of(|sample| sample.per_second),
                of(|sample| sample.p50_ms),
                of(|sample| sample.p99_ms),
                of(|sample| sample.p99_all_ms),
                of(|sample| sample.max_ms),
                of(|sample| sample.jain),
                of(|sample| sample.cpu_us),
            );
        }
        println!();
    }
}

async fn connect(peer: Peer, server: &servers::Redis, lock: String, number: usize) -> Contender {
    match peer {
        Peer::Ours => Contender::Ours { palisade: palisade::connect(&server.url()).await.unwrap(), lock },
        Peer::SetNx | Peer::RedisPy => {
            let client = redis::Client::open(server.url()).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let script = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut connection).await.unwrap();
            Contender::SetNx { connection, lock, owner: number.to_string(), script, chance: number as u64 }
        }
    }
}

/// Another task of the same process.
fn again(first: &Contender, lock: String, number: usize) -> Contender {
    match first {
        Contender::Ours { palisade, .. } => Contender::Ours { palisade: palisade.clone(), lock },
        Contender::SetNx { connection, script, .. } => Contender::SetNx {
            connection: connection.clone(),
            lock,
            owner: number.to_string(),
            script: script.clone(),
            chance: number as u64,
        },
    }
}

/// The times that count, and the others.
async fn contend(
    mut contender: Contender,
    number: usize,
    last: Arc<AtomicUsize>,
    until: Instant,
    is_hot: bool,
) -> (Contender, Vec<f64>, Vec<f64>) {
    let (mut times, mut others) = (Vec::new(), Vec::new());
    while Instant::now() < until {
        let began_at = Instant::now();
        let held = contender.acquire().await;
        let held_at = Instant::now();
        let is_counted = last.swap(number, Ordering::Relaxed) != number || !is_hot;
        contender.release(held).await;
        let time = if is_hot { held_at - began_at } else { began_at.elapsed() };
        (if is_counted { &mut times } else { &mut others }).push(time.as_secs_f64() * 1e3);
    }
    (contender, times, others)
}

fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
