//! Very many sessions that end at once: what another client notices.

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
/// Between two questions how many are left.
const PAUSE: Duration = Duration::from_millis(5);

/// Keeps all alive once more, as nearly at one moment as can be, and then no longer.
pub(crate) async fn all_at_once(service: &Service, mut crowd: Crowd) {
    let address = service.address.to_string();
    let mut other = Palisade::connect(&address, "other", false).await;
    let began_at = Instant::now();
    crowd.renew_all().await;
    let spread = began_at.elapsed();
    let is_over = Rc::new(Cell::new(false));
    let until = is_over.clone();
    let tasks = LocalSet::new();
    let cycles = tasks.spawn_local(async move {
        let mut cycles = Vec::new();
        while !until.get() {
            let began_at = Instant::now();
            other.acquire().await;
            other.release().await;
            cycles.push((began_at, Instant::now()));
        }
        cycles
    });
    let (first_at, last_at) = tasks.run_until(ends(&address)).await;
    is_over.set(true);
    let cycles = tasks.run_until(cycles).await.unwrap();
    assert!(first_at - began_at >= TTL, "a session has ended before its time");
    let times = |during: bool| {
        let is_during = |(began, ended): &&(Instant, Instant)| *ended >= first_at && *began <= last_at;
        let chosen = cycles.iter().filter(|cycle| is_during(cycle) == during);
        let mut times: Vec<f64> = chosen.map(|(began, ended)| (*ended - *began).as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (before, during) = (times(false), times(true));
    println!(
        "  all expire within {:.0} ms of each other: gone {:.2} s after the first",
        spread.as_secs_f64() * 1e3,
        (last_at - first_at).as_secs_f64()
    );
    println!(
        "  another client meanwhile: {} cycles, p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms (before: p99 {:.2} ms; target: p99 below {P99_MS} ms): {}",
        during.len(),
        percentile(&during, 50),
        percentile(&during, 99),
        percentile(&during, 100),
        percentile(&before, 99),
        verdict(percentile(&during, 99) < P99_MS)
    );
}

/// When the first session had ended, and when all had but one.
async fn ends(address: &str) -> (Instant, Instant) {
    let mut client = Client::connect(address).await;
    let mut first_at = None;
    loop {
        let Reply::Text(info) = client.ask(&["INFO"]).await else { panic!("no text") };
        let left = info.lines().find_map(|line| line.strip_prefix("sessions:")).unwrap();
        let left: usize = left.parse().unwrap();
        if left <= SESSIONS {
            let now = Instant::now();
            let first_at = *first_at.get_or_insert(now);
            if left == 1 {
                return (first_at, now);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
