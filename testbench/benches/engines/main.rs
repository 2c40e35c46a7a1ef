//! The engines on stores beside what a user of that store would pick instead: `scripts/bench engines`.
//!
//! - W1: acquire and release on distinct locks, by 1 client and by 64.
//! - W2: one hot lock and 64 contenders; a hand-over counts only when another contender gets it.
//!
//! One server for all, closed loop, turn about, since what else happens on the machine changes from second to second.
//! Ratios are medians of what was measured in the same round. `PALISADE_BENCH_SECONDS` is how long a sample takes, and
//! `PALISADE_BENCH_STORE` names one store.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod mysql;
mod ours;
mod postgres;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

pub(crate) const ROUNDS: usize = 3;
pub(crate) const CROWD: usize = 64;

/// A client that acquires and releases a lock over and over.
pub(crate) trait Contender: Send + 'static {
    fn acquire(&mut self) -> impl Future<Output = ()> + Send;
    fn release(&mut self) -> impl Future<Output = ()> + Send;
}

/// What a sample has shown. Times are of a cycle; on a hot lock, of the wait.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Cycles, or hand-overs.
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Whose turn it is, as all contenders see it: the one that holds the lock notes it before it lets go.
#[derive(Default)]
struct Turn {
    last: AtomicUsize,
}

struct Cycle {
    waited: Duration,
    whole: Duration,
    is_handed_over: bool,
}

/// Lets all of them contend for so long.
pub(crate) async fn sample<C: Contender>(mut contenders: Vec<C>, is_hot: bool, length: Duration) -> Sample {
    // A server has to make ready what a connection asks for the first time: that is not what is measured.
    for contender in &mut contenders {
        contender.acquire().await;
        contender.release().await;
    }
    let (began_at, turn) = (Instant::now(), Arc::new(Turn::default()));
    let until = began_at + length;
    let contend = |(number, contender)| tokio::spawn(contend(contender, number + 1, turn.clone(), until));
    let tasks: Vec<_> = contenders.into_iter().enumerate().map(contend).collect();
    let (mut cycles, mut done) = (Vec::new(), Vec::new());
    for task in tasks {
        let (contender, its) = task.await.unwrap();
        cycles.extend(its);
        done.push(contender);
    }
    let elapsed = began_at.elapsed();
    // How long it takes to say goodbye is not what is measured.
    drop(done);
    let counted: Vec<_> = cycles.iter().filter(|cycle| cycle.is_handed_over || !is_hot).collect();
    let mut times: Vec<_> = counted.iter().map(|cycle| if is_hot { cycle.waited } else { cycle.whole }).collect();
    times.sort_unstable();
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or_default();
    Sample { per_second: counted.len() as f64 / elapsed.as_secs_f64(), p50: at(0.5), p99: at(0.99) }
}

async fn contend<C: Contender>(mut contender: C, number: usize, turn: Arc<Turn>, until: Instant) -> (C, Vec<Cycle>) {
    let mut cycles = Vec::new();
    while Instant::now() < until {
        let began_at = Instant::now();
        contender.acquire().await;
        let waited = began_at.elapsed();
        let is_handed_over = turn.last.swap(number, Ordering::Relaxed) != number;
        contender.release().await;
        cycles.push(Cycle { waited, whole: began_at.elapsed(), is_handed_over });
    }
    (contender, cycles)
}

/// One workload's rounds: ours first, then the others, by name. What is wanted is how many times as much ours should do.
pub(crate) fn show(title: &str, names: &[&str], rounds: &[Vec<Sample>], wanted: &[Option<f64>]) {
    println!("\n{title}");
    println!("  {:<38} {:>12} {:>10} {:>10}  ours is", "", "per second", "p50", "p99");
    for (at, name) in names.iter().enumerate() {
        let median = |of: &dyn Fn(&Sample) -> f64| {
            let mut all: Vec<_> = rounds.iter().map(|round| of(&round[at])).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let mut ratios: Vec<_> = rounds.iter().map(|round| round[0].per_second / round[at].per_second).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios[ratios.len() / 2];
        let verdict = match wanted[at] {
            Some(wanted) if ratio >= wanted => format!(", wanted {wanted}: yes"),
            Some(wanted) => format!(", wanted {wanted}: NO"),
            None => String::new(),
        };
        println!(
            "  {name:<38} {:>12.0} {:>7.2} ms {:>7.2} ms  {ratio:.2} times{verdict}",
            median(&|sample| sample.per_second),
            median(&|sample| sample.p50.as_secs_f64() * 1000.0),
            median(&|sample| sample.p99.as_secs_f64() * 1000.0),
        );
    }
}

fn main() {
    let seconds = std::env::var("PALISADE_BENCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3);
    let length = Duration::from_secs(u64::max(seconds, 1));
    let only = std::env::var("PALISADE_BENCH_STORE").ok();
    let is_wanted = |store: &str| only.as_deref().is_none_or(|only| only == store);
    let runtime = Runtime::new().unwrap();
    if is_wanted("mysql") {
        runtime.block_on(mysql::measure(length));
    }
    if is_wanted("postgres") {
        runtime.block_on(postgres::measure(length));
    }
}
