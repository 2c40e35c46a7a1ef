//! What the fence costs at a Redis: `scripts/bench fence_redis`.
//!
//! A SET under a mark beside a plain SET, one client that waits for each answer, through the same driver, in one run and
//! turn about. The Redis that keeps what it has answered (`appendfsync always`) is the one whose promise holds; the one
//! that keeps nothing shows the bare cost.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use palisade_fence::redis::{Command, Redis};
use palisade_fence::{Sealed, Token};
use palisade_testbench::servers;

const VALUE: [u8; 100] = [b'x'; 100];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("A SET of 100 bytes, one client, plain and fenced in turn");
    for (fsync, writes) in [("always", 2_000), ("no", 20_000)] {
        runtime.block_on(compare(fsync, writes));
    }
}

async fn compare(fsync: &str, writes: usize) {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = servers::Redis::start(place.path(), fsync).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut plain = client.get_multiplexed_async_connection().await.unwrap();
    let keys = Redis::install(&server.url()).await.unwrap().keys("fenced").unwrap();
    let mut fenced = Sealed::seal(keys, Token::new(1).unwrap()).await.unwrap();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..writes {
        let began = Instant::now();
        redis::cmd("SET").arg("plain").arg(&VALUE).exec_async(&mut plain).await.unwrap();
        without.push(began.elapsed());
        let began = Instant::now();
        fenced.write(Command::new("SET").arg(&VALUE)).await.unwrap();
        with.push(began.elapsed());
    }
    let (without, with) = (median(without), median(with));
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    println!("appendfsync {fsync:7} median: plain {without:>9.1?}   fenced {with:>9.1?}   {ratio:.2} times");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
