//! When a waiting acquire is polled next. Pure: the caller passes the time in.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest pause, and the longest one at the front of the queue and behind it.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST_AT_FRONT: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_millis(200);

/// The pause between two polls of a waiting acquire, which follows its way through the queue.
#[derive(Debug, Clone)]
pub struct PollBackoff {
    pub(super) due_at: Instant,
    pause: Duration,
    /// The number of waiters ahead, and when it last changed.
    pub(super) ahead: u64,
    ahead_since: Instant,
}

impl PollBackoff {
    /// The acquire was queued now, behind this many others.
    pub(super) fn new(now: Instant, ahead: u64) -> PollBackoff {
        let pause = shortest(ahead);
        PollBackoff { due_at: now + pause, pause, ahead, ahead_since: now }
    }

    /// A poll found the acquire waiting. At the front of the queue it is polled often, as the lock may become free at any
    /// time. Behind the front it is polled before it can get there while the queue moves, and ever less often while it does not.
    pub(super) fn still_waits(&mut self, now: Instant, ahead: u64) {
        let longest = if ahead == 0 { LONGEST_AT_FRONT } else { LONGEST };
        self.pause = if self.ahead > 0 && ahead == 0 {
            SHORTEST
        } else if self.ahead > ahead {
            let each = now.duration_since(self.ahead_since) / saturated(self.ahead - ahead);
            // A quarter of the estimate: a waiter that polls late delays all behind it, which then take the queue for a slow one.
            each * saturated(ahead).min(1000) / 4
        } else {
            self.pause * 5 / 4
        };
        self.pause = self.pause.clamp(shortest(ahead), longest);
        if self.ahead != ahead {
            (self.ahead, self.ahead_since) = (ahead, now);
        }
        self.due_at = now + self.pause;
    }

    /// The poll failed.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.due_at = now + LONGEST;
    }
}

/// The shortest time in which this many waiters ahead can be served, as each of them has to poll.
fn shortest(ahead: u64) -> Duration {
    (SHORTEST * saturated(ahead.saturating_add(1)).min(1000)).min(LONGEST)
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_front_of_the_queue_is_polled_often_and_the_rest_seldom() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let (mut next, mut last) = (PollBackoff::new(start, 0), PollBackoff::new(start, 50));
        assert_eq!((next.due_at, last.due_at), (start + SHORTEST, start + ms(102)));
        for _ in 0..40 {
            next.still_waits(next.due_at, 0);
            last.still_waits(last.due_at, 50);
        }
        assert_eq!((next.pause, last.pause), (LONGEST_AT_FRONT, LONGEST));
        // Ten were served in 100 ms: the other forty will take about 400 ms.
        let at = start + ms(20_000);
        (last.ahead, last.ahead_since) = (50, at);
        last.still_waits(at + ms(100), 40);
        assert_eq!(last.pause, ms(100));
        last.still_waits(at + ms(200), 0);
        assert_eq!(last.pause, SHORTEST);
    }
}
