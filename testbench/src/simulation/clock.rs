//! Clocks that run at different rates, and stop while their host is suspended.

use std::time::Duration;

/// The monotonic clock of a host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// When its rate was set, in the time of the world, and what it showed then.
    set_at: Duration,
    shown: Duration,
    /// How much faster than the world it runs, in millionths. `None` while it stands still.
    rate: Option<i64>,
}

impl Clock {
    /// Starts at zero.
    pub(super) fn start(now: Duration, rate: i64) -> Clock {
        Clock { set_at: now, shown: Duration::ZERO, rate: Some(rate) }
    }

    /// Returns what it shows.
    pub(super) fn read(&self, now: Duration) -> Duration {
        let Some(rate) = self.rate else { return self.shown };
        let passed = now.saturating_sub(self.set_at).as_nanos() as i64;
        self.shown + Duration::from_nanos((passed + gain(passed, rate)) as u64)
    }

    /// Returns when it will show this; `None` if it stands still.
    pub(super) fn when(&self, shows: Duration) -> Option<Duration> {
        let left = shows.saturating_sub(self.shown).as_nanos() as i64;
        let rate = self.rate?;
        let mut passed = left - gain(left, rate);
        // The gain of the gain is left.
        while passed + gain(passed, rate) < left {
            passed += (left - passed - gain(passed, rate)).max(1_000);
        }
        Some(self.set_at + Duration::from_nanos(passed as u64))
    }

    /// Changes its rate, or stops it.
    pub(super) fn set_rate(&mut self, now: Duration, rate: Option<i64>) {
        *self = Clock { set_at: now, shown: self.read(now), rate };
    }

    pub(super) fn rate(&self) -> Option<i64> {
        self.rate
    }
}

/// Returns how much more than this many nanoseconds a clock with this rate counts, in a way that does not overflow.
fn gain(nanos: i64, rate: i64) -> i64 {
    nanos / 1_000_000 * rate + nanos % 1_000_000 * rate / 1_000_000
}
