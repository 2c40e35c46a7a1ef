//! The time of an acquire and a release.

use std::time::{Duration, Instant};

use palisade::{Error, Palisade};
use serde::Serialize;

use super::finding::Finding;

/// The number of acquires and releases: enough for a median, and quick.
const CYCLES: usize = 20;
/// How long to wait for the test lock.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// A median above this is worth a warning: even a fsync on a slow disk is faster.
const SLOW: Duration = Duration::from_millis(100);

/// The time of an acquire and a release together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Speed {
    cycles: usize,
    p50_us: u64,
    worst_us: u64,
}

/// Acquires and releases a lock a few times; `None` if another session holds it. Dropping the future releases it.
pub(super) async fn measure(palisade: &Palisade, name: &str) -> Result<Option<Speed>, Error> {
    let mut times = Vec::with_capacity(CYCLES);
    for _ in 0..CYCLES {
        let began = Instant::now();
        // An efficiency lock, so that engines without tokens can be measured too.
        let lock = palisade.lock(name).efficiency();
        let Some(guard) = lock.acquire_within(MAX_WAIT).await? else { return Ok(None) };
        guard.release().await?;
        times.push(began.elapsed());
    }
    Ok(Some(Speed::of(times)))
}

impl Speed {
    fn of(mut times: Vec<Duration>) -> Speed {
        times.sort();
        let us = |time: Option<&Duration>| time.map_or(0, |time| time.as_micros() as u64);
        Speed { cycles: times.len(), p50_us: us(times.get(times.len() / 2)), worst_us: us(times.last()) }
    }
}

/// Returns the finding for the measured speed and the TTL of sessions.
pub(super) fn judge(speed: &Speed, ttl: Duration) -> Finding {
    let Speed { cycles, p50_us, worst_us } = speed;
    let says = format!(
        "{cycles} times acquired and released: median {}, worst {}",
        milliseconds(*p50_us),
        milliseconds(*worst_us)
    );
    // The keeper has two thirds of the TTL for a keep-alive and its repetitions.
    if Duration::from_micros(*worst_us) > ttl / 3 {
        let says = format!(
            "{says}. A TTL of {} ms is too short for it: sessions end while their clients live",
            ttl.as_millis()
        );
        return Finding::warning("answers", says, "use a longer TTL (--ttl), or find out what makes the engine slow");
    }
    if Duration::from_micros(*p50_us) < SLOW {
        return Finding::ok("answers", says);
    }
    Finding::warning("answers", says, "that is slow: see what else keeps the engine, its disk or the network busy")
}

fn milliseconds(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = palisade::Options::TTL;

    #[test]
    fn the_median_and_the_worst_are_reported() {
        let times = [3, 1, 90, 2, 4].map(Duration::from_millis).to_vec();
        let speed = Speed::of(times);
        assert_eq!(speed, Speed { cycles: 5, p50_us: 3_000, worst_us: 90_000 });
        assert_eq!(
            judge(&speed, TTL),
            Finding::ok("answers", "5 times acquired and released: median 3.0 ms, worst 90.0 ms")
        );
    }

    #[test]
    fn a_slow_engine_is_usable_with_a_warning() {
        let slow = judge(&Speed { cycles: 5, p50_us: 120_000, worst_us: 120_000 }, TTL);
        assert_eq!(slow.status, super::super::finding::Status::Warning);
        assert!(!slow.is_failure());
    }

    #[test]
    fn an_engine_that_is_slow_for_the_ttl_is_reported() {
        let found = judge(&Speed { cycles: 5, p50_us: 3_000, worst_us: 800_000 }, Duration::from_secs(2));
        assert_eq!(found.status, super::super::finding::Status::Warning);
        assert!(found.says.contains("A TTL of 2000 ms is too short"), "{}", found.says);
    }
}
