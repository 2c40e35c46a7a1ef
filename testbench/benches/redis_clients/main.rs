//! Clients of Redis on the service beside Redis with `appendfsync always`, turn about: `scripts/bench redis_clients`. Both make a
//! change durable before they answer.
//!
//! - redis-py: its `Lock`, in threads.
//! - multiplexed: 64 tasks on one connection of the `redis` crate, a lock each.
//! - pipelined: 64 locks acquired in one pipeline and released in the next, on one connection.
//!
//! `SET NX` is `SET NX PX` and a script that compares before it deletes. `LOCK` is the service's own command, in
//! tasks with `WAIT`. No task waits, since each has a lock of its own.
//! `PALISADE_BENCH_SECONDS` is how long a sample takes.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

#[path = "../engines_redis/redis_py.rs"]
mod redis_py;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use palisade_testbench::servers::{Absent, Redis, Service, processor_time};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;

const ROUNDS: usize = 3;
const LOCKS: usize = 64;
const RELEASE: &str =
    "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end";
/// No lock of a benchmark expires.
const TTL_MS: u64 = 60_000;
/// Between a request and its reply, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
enum Client {
    RedisPy { threads: usize },
    Multiplexed(Words),
    Pipelined(Words),
}

/// The commands that it locks with.
#[derive(Clone, Copy)]
enum Words {
    SetNx,
    Lock,
}

struct Workload {
    title: &'static str,
    /// On Redis and on the service.
    client: Client,
    /// What the service has beside it.
    own: Option<Client>,
}

const WORKLOADS: [Workload; 4] = [
    Workload { title: "redis-py Lock, 1 thread", client: Client::RedisPy { threads: 1 }, own: None },
    Workload { title: "redis-py Lock, 16 threads", client: Client::RedisPy { threads: 16 }, own: None },
    Workload {
        title: "multiplexed, 64 tasks on one connection",
        client: Client::Multiplexed(Words::SetNx),
        own: Some(Client::Multiplexed(Words::Lock)),
    },
    Workload {
        title: "pipelined, 64 locks at a time",
        client: Client::Pipelined(Words::SetNx),
        own: Some(Client::Pipelined(Words::Lock)),
    },
];

/// What a sample has shown.
#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    /// The server's processor time for each cycle.
    cpu_us: f64,
}

struct Server {
    address: SocketAddr,
    pid: u32,
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("redis_clients: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Absent> {
    let seconds =
        std::env::var("PALISADE_BENCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3).max(1);
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let folder = tempfile::tempdir_in(".")?;
    let folder = folder.path().canonicalize()?;
    let service = Service::start(env!("CARGO_BIN_EXE_serve"), &folder)?;
    let redis = Redis::start(&folder, "always")?;
    let ours = Server { address: service.address, pid: service.pid() };
    let theirs = Server { address: redis.address, pid: redis.pid() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("medians of {ROUNDS} rounds, samples of {seconds} s, cycles of acquire and release; CPU: the server's");
    for workload in &WORKLOADS {
        let rounds: Option<Vec<_>> = (0..ROUNDS).map(|_| workload.round(&runtime, &ours, &theirs, seconds)).collect();
        match rounds {
            Some(rounds) => workload.print(&rounds),
            None => println!("\n{}\n  not installed: scripts/setup --bench", workload.title),
        }
    }
    Ok(())
}

impl Workload {
    /// Samples in the order of [`Workload::names`], if the client is installed.
    fn round(&self, runtime: &Runtime, ours: &Server, theirs: &Server, seconds: u64) -> Option<Vec<Sample>> {
        let mut samples =
            vec![self.client.sample(runtime, theirs, seconds)?, self.client.sample(runtime, ours, seconds)?];
        if let Some(own) = self.own {
            samples.push(own.sample(runtime, ours, seconds)?);
        }
        Some(samples)
    }

    fn names(&self) -> &'static [&'static str] {
        match self.own {
            None => &["redis (fsync always)", "palisade"],
            Some(_) => &["redis (fsync always), SET NX", "palisade, SET NX", "palisade, LOCK"],
        }
    }

    fn print(&self, rounds: &[Vec<Sample>]) {
        println!("\n{}", self.title);
        println!("  {:<30} {:>10} {:>8}", "", "cycles/s", "CPU us");
        for (at, name) in self.names().iter().enumerate() {
            let of = |value: fn(&Sample) -> f64| median(rounds.iter().map(|round| value(&round[at])));
            let ratio = median(rounds.iter().map(|round| round[at].per_second / round[0].per_second));
            let beside = if at == 0 { String::new() } else { format!("{ratio:.2} times as many as Redis") };
            println!("  {name:<30} {:>10.0} {:>8.1}  {beside}", of(|it| it.per_second), of(|it| it.cpu_us));
        }
    }
}

impl Client {
    fn sample(self, runtime: &Runtime, server: &Server, seconds: u64) -> Option<Sample> {
        let (cpu, length) = (processor_time(server.pid), Duration::from_secs(seconds));
        let (cycles, elapsed) = match self {
            Client::RedisPy { threads } => {
                let (counts, ..) = redis_py::measure(server.address.port(), threads, false, seconds)?;
                (counts.iter().sum(), length)
            }
            Client::Multiplexed(words) => runtime.block_on(multiplexed(words, server.address, length)),
            Client::Pipelined(words) => runtime.block_on(pipelined(words, server.address, length)),
        };
        let cpu = processor_time(server.pid) - cpu;
        Some(Sample {
            per_second: cycles as f64 / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / cycles as f64,
        })
    }
}

/// Counts the cycles of tasks that share a connection.
async fn multiplexed(words: Words, address: SocketAddr, length: Duration) -> (usize, Duration) {
    let (connection, script) = connect(address, words).await;
    let began_at = Instant::now();
    let tasks = (0..LOCKS).map(|number| {
        let (connection, lock) = (connection.clone(), Lock::new(number, &script));
        tokio::spawn(async move { lock.cycles(words, connection, began_at + length).await })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut cycles = 0;
    for task in tasks {
        cycles += task.await.unwrap();
    }
    (cycles, began_at.elapsed())
}

/// Counts the cycles of one connection, which acquires all locks in one pipeline and releases them in the next.
async fn pipelined(words: Words, address: SocketAddr, length: Duration) -> (usize, Duration) {
    let (mut connection, script) = connect(address, words).await;
    let locks: Vec<_> = (0..LOCKS).map(|number| Lock::new(number, &script)).collect();
    let (began_at, mut cycles) = (Instant::now(), 0);
    while began_at.elapsed() < length {
        let mut acquire = redis::pipe();
        for lock in &locks {
            acquire.add_command(lock.acquire(words, None));
        }
        let mut release = redis::pipe();
        match words {
            Words::SetNx => {
                let replies: Vec<String> = acquire.query_async(&mut connection).await.unwrap();
                assert_eq!(replies.len(), LOCKS);
                locks.iter().for_each(|lock| _ = release.add_command(lock.release_script()));
            }
            Words::Lock => {
                let grants: Vec<HashMap<String, u64>> = acquire.query_async(&mut connection).await.unwrap();
                for (lock, grant) in locks.iter().zip(grants) {
                    release.add_command(lock.release(grant["token"]));
                }
            }
        }
        let released: Vec<u32> = release.query_async(&mut connection).await.unwrap();
        assert_eq!(released, [1; LOCKS]);
        cycles += LOCKS;
    }
    (cycles, began_at.elapsed())
}

/// A lock, and the value and script of its holder.
struct Lock {
    name: String,
    value: String,
    script: String,
}

impl Lock {
    fn new(number: usize, script: &str) -> Lock {
        Lock { name: format!("lock-{number}"), value: format!("holder-{number}"), script: script.to_owned() }
    }

    async fn cycles(&self, words: Words, mut connection: MultiplexedConnection, until: Instant) -> usize {
        let mut cycles = 0;
        while Instant::now() < until {
            let acquire = self.acquire(words, Some(PATIENCE));
            let release = match words {
                Words::SetNx => {
                    acquire.query_async::<String>(&mut connection).await.unwrap();
                    self.release_script()
                }
                Words::Lock => {
                    let grant: HashMap<String, u64> = acquire.query_async(&mut connection).await.unwrap();
                    self.release(grant["token"])
                }
            };
            assert_eq!(release.query_async::<u32>(&mut connection).await.unwrap(), 1);
            cycles += 1;
        }
        cycles
    }

    fn acquire(&self, words: Words, wait: Option<Duration>) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        match words {
            Words::SetNx => command.arg("SET").arg(&self.name).arg(&self.value).arg("NX").arg("PX").arg(TTL_MS),
            Words::Lock => command.arg("LOCK").arg("ACQUIRE").arg(&self.name).arg("TTL").arg(TTL_MS),
        };
        if let (Words::Lock, Some(wait)) = (words, wait) {
            command.arg("WAIT").arg(wait.as_millis() as u64);
        }
        command
    }

    fn release(&self, token: u64) -> redis::Cmd {
        let mut command = redis::cmd("LOCK");
        command.arg("RELEASE").arg(&self.name).arg(token);
        command
    }

    fn release_script(&self) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.script).arg(1).arg(&self.name).arg(&self.value);
        command
    }
}

/// Returns a connection, and the name of the script on it if these words need one.
async fn connect(address: SocketAddr, words: Words) -> (MultiplexedConnection, String) {
    let client = redis::Client::open(format!("redis://{address}")).unwrap();
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let script = match words {
        Words::SetNx => redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut connection).await.unwrap(),
        Words::Lock => String::new(),
    };
    (connection, script)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
