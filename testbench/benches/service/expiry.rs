//! Very many sessions that end at once: what other clients notice.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use palisade_testbench::servers::Service;
use tokio::task::LocalSet;

use crate::ours::Palisade;
use crate::percentile;
use crate::resp::{Client, Reply};
use crate::sessions::{Crowd, SESSIONS, TTL};
use crate::table::verdict;

const P99_MS: f64 = 100.0;
/// How many others there are, each with a lock of its own.
const OTHERS: usize = 16;
/// Between two questions how many are left.
const PAUSE: Duration = Duration::from_millis(5);

/// When a cycle began and ended.
type Cycle = (Instant, Instant);

/// Keeps all alive once more, as nearly at one moment as can be, and then no longer.
pub(crate) async fn all_at_once(service: &Service, mut crowd: Crowd) {
    let address = service.address.to_string();
    let (tasks, is_over) = (LocalSet::new(), Rc::new(Cell::new(false)));
    let mut others = Vec::new();
    for number in 0..OTHERS {
        let other = Palisade::connect(&address, &format!("other-{number}"), false).await;
        others.push(tasks.spawn_local(go_on(other, is_over.clone())));
    }
    let began_at = Instant::now();
    crowd.renew_all().await;
    let spread = began_at.elapsed();
    let end = tasks.run_until(watch(&address)).await;
    is_over.set(true);
    let mut cycles = Vec::new();
    for other in others {
        cycles.extend(tasks.run_until(other).await.unwrap());
    }
    assert!(end.first_at - began_at >= TTL, "a session has ended before its time");
    let times = |during: bool| {
        let is_during = |(began, ended): &&Cycle| *ended >= end.whole_at && *began <= end.last_at;
        let chosen = cycles.iter().filter(|cycle| is_during(cycle) == during);
        let mut times: Vec<f64> = chosen.map(|(began, ended)| (*ended - *began).as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (before, during) = (times(false), times(true));
    println!(
        "  all expire within {:.0} ms of each other: all gone in {:.2} s",
        spread.as_secs_f64() * 1e3,
        (end.last_at - end.whole_at).as_secs_f64()
    );
    println!(
        "  {OTHERS} other clients meanwhile: {} cycles, p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms (before: p99 {:.2} ms; target: p99 below {P99_MS} ms): {}",
        during.len(),
        percentile(&during, 50),
        percentile(&during, 99),
        percentile(&during, 100),
        percentile(&before, 99),
        verdict(percentile(&during, 99) < P99_MS)
    );
}

/// Acquires and releases, until it is over.
async fn go_on(mut other: Palisade, is_over: Rc<Cell<bool>>) -> Vec<Cycle> {
    let mut cycles = Vec::new();
    while !is_over.get() {
        let began_at = Instant::now();
        other.acquire().await;
        other.release().await;
        cycles.push((began_at, Instant::now()));
    }
    cycles
}

/// How the crowd has ended.
struct End {
    /// When all of it was seen alive for the last time.
    whole_at: Instant,
    /// When some of it was seen to be gone.
    first_at: Instant,
    /// When all of it was.
    last_at: Instant,
}

/// Looks until it has.
async fn watch(address: &str) -> End {
    let mut client = Client::connect(address).await;
    let (mut whole_at, mut first_at) = (Instant::now(), None);
    loop {
        let Reply::Text(info) = client.ask(&["INFO"]).await else { panic!("no text") };
        let left = info.lines().find_map(|line| line.strip_prefix("sessions:")).unwrap();
        let (left, now) = (left.parse::<usize>().unwrap(), Instant::now());
        if left == SESSIONS + OTHERS {
            whole_at = now;
        } else {
            let first_at = *first_at.get_or_insert(now);
            if left == OTHERS {
                return End { whole_at, first_at, last_at: now };
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
