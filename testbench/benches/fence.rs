//! What a fence costs beside the same write without one: `scripts/bench fence`.
//!
//! Real servers, durable. Plain and fenced take turns, since what else happens on the machine changes from second to
//! second, and the ratio is that of the medians.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod fences {
    pub(crate) mod postgres;
}

use std::time::Duration;

/// A pair that was measured in turns.
pub(crate) struct Pair {
    /// What was done.
    pub(crate) what: &'static str,
    /// Microseconds each.
    pub(crate) plain: Vec<Duration>,
    pub(crate) fenced: Vec<Duration>,
    /// How many times the plain one's time it may take.
    pub(crate) target: Option<f64>,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("{:<44} {:>10} {:>10} {:>8}  target", "median", "plain", "fenced", "ratio");
    for pair in runtime.block_on(fences::postgres::measure()) {
        show(pair);
    }
}

fn show(mut pair: Pair) {
    let [plain, fenced] = [&mut pair.plain, &mut pair.fenced].map(median);
    let ratio = fenced.as_secs_f64() / plain.as_secs_f64();
    let target = pair.target.map_or("-".to_owned(), |target| {
        format!("<= {target:.2}x {}", if ratio <= target { "met" } else { "MISSED" })
    });
    println!("{:<44} {:>10} {:>10} {ratio:>7.2}x  {target}", pair.what, micros(plain), micros(fenced));
}

fn median(times: &mut Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn micros(time: Duration) -> String {
    format!("{:.0} us", time.as_secs_f64() * 1e6)
}
