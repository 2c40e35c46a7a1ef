//! What the recipes cost beside doing without: `scripts/bench recipes`.
//!
//! On one PostgreSQL that flushes each commit, one Redis that flushes each write, and one `palisade serve`. `PALISADE_BENCH_SECONDS`
//! sets the length of a sample.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod cache;
mod once;
mod queue;
mod versioned;

use std::time::{Duration, Instant};

use palisade_testbench::servers::{Postgres, Redis, Service};

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let [postgres, redis, service] = ["postgres", "redis", "service"].map(|name| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    });
    let server = Postgres::start(&postgres).unwrap_or_else(|absent| panic!("{absent}"));
    let redis = Redis::start(&redis, "always").unwrap_or_else(|absent| panic!("{absent}"));
    let service = Service::start(env!("CARGO_BIN_EXE_serve"), &service).unwrap_or_else(|absent| panic!("{absent}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        once::measure(&server.url(), &service).await;
        cache::measure(&redis.url(), &service).await;
        versioned::measure(&server.url()).await;
        queue::measure(&server.url()).await;
    });
}

/// Returns how long a sample takes.
fn sample_length() -> Duration {
    let seconds = std::env::var("PALISADE_BENCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3);
    Duration::from_secs(u64::max(seconds, 1))
}

/// Repeats what each client does until the time has passed. Returns how often it was done per second, and the sum of what the calls
/// returned per call.
async fn sample<C: Client>(clients: Vec<C>) -> (f64, f64) {
    let began_at = Instant::now();
    let until = began_at + sample_length();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(async move {
                let (mut calls, mut sum) = (0_u32, 0_u32);
                while Instant::now() < until {
                    sum += client.call().await;
                    calls += 1;
                }
                (calls, sum)
            })
        })
        .collect();
    let (mut calls, mut sum) = (0.0, 0.0);
    for task in tasks {
        let (its_calls, its_sum) = task.await.unwrap();
        calls += f64::from(its_calls);
        sum += f64::from(its_sum);
    }
    (calls / began_at.elapsed().as_secs_f64(), sum / f64::max(calls, 1.0))
}

/// A client that does one thing over and over.
trait Client: Send + 'static {
    /// Does it once, and returns a number of interest.
    fn call(&mut self) -> impl Future<Output = u32> + Send;
}
