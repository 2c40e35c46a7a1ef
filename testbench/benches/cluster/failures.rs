//! The longest time without a grant while the leader fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palisade_testbench::servers::Absent;
use tokio::runtime::Runtime;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::driver::{Contender, median};

/// Clients that work during a failure, each with its own lock.
const CLIENTS: usize = 8;
/// A client works again after this many grants. Replies that were on their way when the node failed are fewer.
const GRANTS: usize = 10;
/// A client that does not work after this long counts as one that took this long.
const OBSERVED: Duration = Duration::from_secs(20);
/// The pause after a failed call.
const RETRY: Duration = Duration::from_millis(10);

/// What happens to the leader.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    Killed,
    Stopped,
    Transferred,
}

impl Fault {
    fn title(self) -> &'static str {
        match self {
            Fault::Killed => "the leader is killed (SIGKILL)",
            Fault::Stopped => "the leader is stopped (SIGSTOP)",
            Fault::Transferred => "the leader hands over (CLUSTER TRANSFER)",
        }
    }

    /// The longest gap of ours that is wanted, in seconds, and whether it has to be shorter than that of the others.
    fn target(self) -> (f64, bool) {
        match self {
            Fault::Killed => (0.3, false),
            Fault::Stopped => (1.5, true),
            Fault::Transferred => (0.1, false),
        }
    }
}

/// Returns how many failures of each kind are measured.
pub(crate) fn count() -> usize {
    std::env::var("PALISADE_BENCH_FAILURES").ok().and_then(|count| count.parse().ok()).unwrap_or(5).max(1)
}

/// Times without a grant.
struct Gap {
    /// The longest time in which no client was granted its lock.
    of_all: f64,
    /// The longest time of the client that fared worst.
    of_slowest: f64,
}

/// When each client was granted its lock.
type Grants = Arc<Mutex<Vec<Vec<Instant>>>>;

/// Measures the gaps of all clusters in turn. Returns the targets that are missed.
pub(crate) fn measure(
    runtime: &Runtime,
    clusters: &mut [Cluster],
    fault: Fault,
    count: usize,
) -> Result<Vec<String>, Absent> {
    println!("\n{}, {CLIENTS} clients with their own locks, {count} times", fault.title());
    println!("  {:<12} {:>14} {:>22} {:>22}  ours is", "", "longest gap", "least to most", "of the slowest client");
    let (mut missed, mut ours) = (Vec::new(), None);
    for cluster in clusters {
        if fault == Fault::Transferred && !matches!(cluster, Cluster::Palisade(_)) {
            continue;
        }
        let mut gaps = Vec::new();
        for number in 0..count {
            gaps.push(measure_once(runtime, cluster, fault, number)?);
        }
        let all = || gaps.iter().map(|gap| gap.of_all);
        let (gap, name) = (median(all()), cluster.name());
        let ours = *ours.get_or_insert(gap);
        println!(
            "  {name:<12} {gap:>12.3} s {:>22} {:>20.3} s  {:.2} times",
            format!("{:.3} to {:.3} s", all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max)),
            median(gaps.iter().map(|gap| gap.of_slowest)),
            ours / gap,
        );
        let is_ours = matches!(cluster, Cluster::Palisade(_));
        let (wanted, is_race) = fault.target();
        if is_ours && gap > wanted {
            missed.push(format!("{}: {gap:.3} s, wanted {wanted}", fault.title()));
        } else if is_race && !is_ours && ours >= gap {
            missed.push(format!("{}: {ours:.3} s, {name} {gap:.3} s", fault.title()));
        }
    }
    Ok(missed)
}

fn measure_once(runtime: &Runtime, cluster: &mut Cluster, fault: Fault, number: usize) -> Result<Gap, Absent> {
    let grants: Grants = Arc::new(Mutex::new(vec![Vec::new(); CLIENTS]));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for at in 0..CLIENTS {
        let lock = format!("failure-{}-{number}-{at}", fault as u8);
        let client = runtime.block_on(cluster.connect_to_all(&lock));
        tasks.push(runtime.spawn(work(client, at, lock, grants.clone(), is_over.clone())));
    }
    let began_at = Instant::now();
    assert!(all_work(&grants, began_at), "{}: the clients do not work before the failure", cluster.name());
    let leader = cluster.leader();
    let failed_at = Instant::now();
    match fault {
        Fault::Killed => cluster.kill(leader),
        Fault::Stopped => cluster.stop(leader),
        Fault::Transferred => assert!(cluster.transfer(leader), "the leader does not hand over"),
    }
    all_work(&grants, failed_at);
    let gap = Gap::of(&grants.lock().unwrap(), failed_at, Instant::now());
    is_over.store(true, Ordering::Relaxed);
    match fault {
        Fault::Killed => cluster.restart(leader)?,
        Fault::Stopped => cluster.go_on(leader),
        Fault::Transferred => {}
    }
    for task in tasks {
        runtime.block_on(async {
            // The session of a client that is still cut off ends by its TTL.
            drop(tokio::time::timeout(RETRY * 100, task.await.unwrap().leave()).await);
        });
    }
    Ok(gap)
}

async fn work(mut client: Client, at: usize, lock: String, grants: Grants, is_over: Arc<AtomicBool>) -> Client {
    let mut failures = 0;
    while !is_over.load(Ordering::Relaxed) {
        let acquired = client.acquire_in_time().await;
        let done = match acquired {
            Ok(()) => {
                grants.lock().unwrap()[at].push(Instant::now());
                client.release_in_time().await
            }
            failed => failed,
        };
        if done.is_err() {
            failures += 1;
            client.use_lock(&format!("{lock}-{failures}"));
            tokio::time::sleep(RETRY).await;
        }
    }
    client
}

/// Waits until all clients work again, or for the longest time that is observed. Returns whether they do.
fn all_work(grants: &Grants, since: Instant) -> bool {
    let works = |times: &Vec<Instant>| times.iter().rev().take_while(|at| **at > since).count() >= GRANTS;
    while since.elapsed() < OBSERVED {
        if grants.lock().unwrap().iter().all(works) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

impl Gap {
    fn of(grants: &[Vec<Instant>], failed_at: Instant, until: Instant) -> Gap {
        let longest = |times: &[Instant]| {
            let before = times.iter().rev().find(|at| **at <= failed_at).copied().unwrap_or(failed_at);
            let mut from = before;
            let mut longest = Duration::ZERO;
            for at in times.iter().filter(|at| **at > before).chain([&until]) {
                longest = longest.max(at.duration_since(from));
                from = *at;
            }
            longest.as_secs_f64()
        };
        let mut all = grants.concat();
        all.sort_unstable();
        Gap { of_all: longest(&all), of_slowest: grants.iter().map(|times| longest(times)).fold(0.0, f64::max) }
    }
}
