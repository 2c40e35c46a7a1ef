//! When a request that waits is asked for next. Pure: told the time.

use std::time::Duration;

use tokio::time::Instant;

/// Nobody asks more often than that, nor less often: when it is next, and when others are before it.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST_AS_NEXT: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_millis(200);

/// A wait's way through its queue, as far as it was seen.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    due: Instant,
    pause: Duration,
    /// When it was seen how many were before it.
    seen: (Instant, u64),
}

impl Pace {
    /// It was queued just now, behind so many.
    pub(super) fn new(now: Instant, ahead: u64) -> Pace {
        let pause = shortest(ahead);
        Pace { due: now + pause, pause, seen: (now, ahead) }
    }

    /// When to ask.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// How many were before it when it was seen last.
    pub(super) fn ahead(&self) -> u64 {
        self.seen.1
    }

    /// It still waits, with so many before it. Who is next asks often, as the lock may be its own at any time. If the queue
    /// moves, others ask before they can be next; while it does not, less and less often.
    pub(super) fn saw(&mut self, now: Instant, ahead: u64) {
        let longest = if ahead == 0 { LONGEST_AS_NEXT } else { LONGEST };
        self.pause = match self.seen {
            (_, before) if before > 0 && ahead == 0 => SHORTEST,
            (since, before) if before > ahead => {
                let each = now.duration_since(since) / u32::try_from(before - ahead).unwrap_or(u32::MAX).max(1);
                // Much less than that: if one is late, all behind it are, and take the queue for a slow one.
                each * u32::try_from(ahead).unwrap_or(u32::MAX).min(1000) / 4
            }
            _ => self.pause * 5 / 4,
        };
        self.pause = self.pause.clamp(shortest(ahead), longest);
        if self.ahead() != ahead {
            self.seen = (now, ahead);
        }
        self.due = now + self.pause;
    }

    /// It could not be asked.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.due = now + LONGEST;
    }
}

/// No sooner can it be the turn of one who has so many before it, as each of them has to ask.
fn shortest(ahead: u64) -> Duration {
    (SHORTEST * u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX).min(1000)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_next_asks_often_and_who_is_not_asks_seldom() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let (mut next, mut last) = (Pace::new(start, 0), Pace::new(start, 50));
        assert_eq!((next.due(), last.due()), (start + SHORTEST, start + ms(102)));
        for _ in 0..40 {
            let due = next.due();
            next.saw(due, 0);
            let due = last.due();
            last.saw(due, 50);
        }
        assert_eq!((next.pause, last.pause), (LONGEST_AS_NEXT, LONGEST));
        // Ten were served in 100 ms: the other forty will take about 400 ms.
        let at = start + ms(20_000);
        last.seen = (at, 50);
        last.saw(at + ms(100), 40);
        assert_eq!(last.pause, ms(100));
        last.saw(at + ms(200), 0);
        assert_eq!(last.pause, SHORTEST);
    }
}
