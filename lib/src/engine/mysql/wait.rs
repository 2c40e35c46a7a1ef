//! When a request that waits is asked for next. Pure: told the time.

use std::time::Duration;

use tokio::time::Instant;

/// Nobody asks more often than that, nor less often: when it is next, and when others are before it.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST_AS_NEXT: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_millis(100);

/// A wait's way through its queue, as far as it was seen.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    due: Instant,
    pause: Duration,
    /// When it was seen how many were before it.
    seen: Option<(Instant, u64)>,
}

impl Pace {
    /// It was queued just now.
    pub(super) fn new(now: Instant) -> Pace {
        Pace { due: now + SHORTEST, pause: SHORTEST, seen: None }
    }

    /// When to ask.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// How many were before it when it was seen last.
    pub(super) fn ahead(&self) -> Option<u64> {
        self.seen.map(|(_, ahead)| ahead)
    }

    /// It still waits, with so many before it. Who is next asks often, as the lock may be its own at any time. If the queue
    /// moves, others ask about when they can be next; while it does not, less and less often.
    pub(super) fn saw(&mut self, now: Instant, ahead: u64) {
        let longest = if ahead == 0 { LONGEST_AS_NEXT } else { LONGEST };
        self.pause = match self.seen {
            Some((_, before)) if before > 0 && ahead == 0 => SHORTEST,
            Some((since, before)) if before > ahead => {
                let each = now.duration_since(since) / u32::try_from(before - ahead).unwrap_or(u32::MAX).max(1);
                // Half of that, not to be late.
                each * u32::try_from(ahead).unwrap_or(u32::MAX).min(1000) / 2
            }
            _ => self.pause * 5 / 4,
        };
        self.pause = self.pause.clamp(SHORTEST, longest);
        if self.ahead() != Some(ahead) {
            self.seen = Some((now, ahead));
        }
        self.due = now + self.pause;
    }

    /// It could not be asked.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.due = now + LONGEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_next_asks_often_and_who_is_not_asks_seldom() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let (mut next, mut last) = (Pace::new(start), Pace::new(start));
        assert_eq!(next.due(), start + SHORTEST);
        for _ in 0..40 {
            let due = next.due();
            next.saw(due, 0);
            let due = last.due();
            last.saw(due, 50);
        }
        assert_eq!((next.pause, last.pause), (LONGEST_AS_NEXT, LONGEST));
        // Ten were served in 20 ms: the other forty will take about 80 ms.
        let at = start + ms(2000);
        last.seen = Some((at, 50));
        last.saw(at + ms(20), 40);
        assert_eq!(last.pause, ms(40));
        last.saw(at + ms(60), 0);
        assert_eq!(last.pause, SHORTEST);
    }
}
