//! What sharing partitions costs: `scripts/bench partitions`.
//!
//! - 1,000 partitions and 100 members on one service: the time until all are owned and balanced, after the members have
//!   joined, and after one of them was killed (its TTL included).
//! - The cost of an ownership beside a plain lock, and of doing without: the processor time that the service and an idle member
//!   need in a second.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use palisade::Options;
use palisade::recipe::{Change, Member};
use palisade_testbench::bounded::number_from_env;
use palisade_testbench::servers::{Service, processor_time};
use palisade_testbench::worker_process::WorkerProcess;

const PARTITIONS: u32 = 1000;
const MEMBERS: usize = 100;
const KILLS: usize = 5;

/// The TTL of all sessions: 1 s, or `PALISADE_BENCH_TTL_MS`. On a busy machine a client may not get to renew that often.
fn ttl() -> Duration {
    Duration::from_millis(number_from_env("PALISADE_BENCH_TTL_MS", 1000).into())
}

/// The numbers of partitions that the members own.
type Loads = Arc<Vec<AtomicUsize>>;

/// Joins with a client of its own. A machine that is busy with so many clients may make a session end before it is used.
async fn join(service: &Service) -> Member {
    loop {
        let client = Options::new().ttl(ttl()).connect(&service.url()).await.unwrap();
        match client.partitions("orders", PARTITIONS).join(PARTITIONS).await {
            Ok(member) => return member,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Follows a member as an application does.
async fn follow(mut member: Member, at: usize, loads: Loads) {
    while let Ok(change) = member.next().await {
        if let Change::Losing { partition, .. } = change {
            drop(member.release(partition).await);
        }
        loads[at].store(member.owned().len(), Ordering::SeqCst);
    }
}

/// Waits until the members own this many partitions, and no two loads differ by more than one. Returns the time since then.
async fn settled(loads: &Loads, total: usize, since: Instant) -> Duration {
    loop {
        let now: Vec<_> = loads.iter().map(|load| load.load(Ordering::SeqCst)).collect();
        let (least, most) = (now.iter().min().unwrap(), now.iter().max().unwrap());
        if now.iter().sum::<usize>() == total && most - least <= 1 {
            return since.elapsed();
        }
        assert!(since.elapsed() < Duration::from_secs(120), "{now:?} instead of {total}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Starts a member in a process that can be killed, and waits until it owns its share.
fn victim(url: &str) -> WorkerProcess {
    let mut worker = WorkerProcess::spawn(&mut Command::new(env!("CARGO_BIN_EXE_worker"))).unwrap();
    assert_eq!(worker.ask(&format!("connect {url} {}", ttl().as_millis())), "connected");
    assert_eq!(worker.ask(&format!("join orders {PARTITIONS}")), "joined");
    for _ in 0..PARTITIONS as usize / MEMBERS {
        assert!(worker.ask("change").starts_with("gained"));
    }
    worker
}

async fn rebalancing(service: &Service) {
    let loads: Loads = Arc::new((1..MEMBERS).map(|_| AtomicUsize::new(0)).collect());
    let start = Instant::now();
    let members = (1..MEMBERS).map(|_| join(service));
    for (at, member) in futures_util::future::join_all(members).await.into_iter().enumerate() {
        tokio::spawn(follow(member, at, loads.clone()));
    }
    let joined = start.elapsed();
    let time = settled(&loads, PARTITIONS as usize, start).await;
    println!(
        "{} members joined in {:.2} s; {PARTITIONS} partitions were balanced {:.2} s after that",
        MEMBERS - 1,
        joined.as_secs_f64(),
        (time - joined).as_secs_f64()
    );
    let before = processor_time(service.pid());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let busy = (processor_time(service.pid()) - before).as_secs_f64() / 5.0;
    println!("at rest the service uses {:.1} % of a core, for keep-alives", busy * 100.0);
    let url = service.url();
    for _ in 0..KILLS {
        let victim = tokio::task::spawn_blocking({
            let url = url.clone();
            move || victim(&url)
        });
        let victim = victim.await.unwrap();
        settled(&loads, PARTITIONS as usize - PARTITIONS as usize / MEMBERS, Instant::now()).await;
        let killed = Instant::now();
        victim.kill();
        let time = settled(&loads, PARTITIONS as usize, killed).await;
        println!(
            "a member was killed: owned and balanced after {:.2} s, with a TTL of {:?}",
            time.as_secs_f64(),
            ttl()
        );
    }
}

/// The time to take and give back all partitions alone, beside the same number of plain locks.
async fn cost(service: &Service) {
    let client = Options::new().connect(&service.url()).await.unwrap();
    let start = Instant::now();
    let locks = (0..PARTITIONS).map(|number| client.lock(format!("plain/{number:04}")).acquire());
    let guards = futures_util::future::try_join_all(locks).await.unwrap();
    println!("{PARTITIONS} plain locks: acquired in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    drop(guards);
    let start = Instant::now();
    let mut member = client.partitions("alone", PARTITIONS).join(PARTITIONS).await.unwrap();
    for _ in 0..PARTITIONS {
        assert!(matches!(member.next().await.unwrap(), Change::Gained(_)));
    }
    println!("{PARTITIONS} partitions: owned in {:.0} ms after the join", start.elapsed().as_secs_f64() * 1e3);
    member.leave().await.unwrap();
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let service =
        Service::start(env!("CARGO_BIN_EXE_serve"), folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
    runtime.block_on(async {
        cost(&service).await;
        rebalancing(&service).await;
    });
    // The clients' threads need not end one by one.
    std::process::exit(0);
}
