//! When a waiting acquire is polled next. It has no clock: the caller passes the time.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest pause: about one round trip and one short critical section.
const SHORTEST: Duration = Duration::from_millis(2);
/// The longest pause at the front of the queue. It is the longest time that a free lock stays unused.
const LONGEST_AT_FRONT: Duration = Duration::from_millis(25);
/// The longest pause behind the front.
const LONGEST: Duration = Duration::from_millis(200);

/// The pause between two polls of a waiting acquire. It depends on the position in the queue and on how fast the queue moves.
#[derive(Debug, Clone)]
pub struct PollBackoff {
    pub(super) due_at: Instant,
    pause: Duration,
    /// The number of waiters ahead, and when it last changed.
    pub(super) ahead: u64,
    ahead_since: Instant,
}

impl PollBackoff {
    /// Starts for an acquire that was queued now, behind this many others.
    pub(super) fn new(now: Instant, ahead: u64) -> PollBackoff {
        let pause = shortest(ahead);
        PollBackoff { due_at: now + pause, pause, ahead, ahead_since: now }
    }

    /// Notes that a poll found the acquire waiting. At the front of the queue the pause is short, since the lock may become free
    /// at any time. Behind the front, while the queue moves, it is a part of the time until the acquire gets to the front. While
    /// the queue does not move, it grows.
    pub(super) fn still_waits(&mut self, now: Instant, ahead: u64) {
        let longest = if ahead == 0 { LONGEST_AT_FRONT } else { LONGEST };
        self.pause = if self.ahead > 0 && ahead == 0 {
            SHORTEST
        } else if self.ahead > ahead {
            let per_waiter = now.duration_since(self.ahead_since) / saturated(self.ahead - ahead);
            // A quarter of the estimate: a waiter that polls late delays all waiters behind it, and they then estimate a slower
            // queue.
            per_waiter * saturated(ahead).min(1000) / 4
        } else {
            self.pause * 5 / 4
        };
        self.pause = self.pause.clamp(shortest(ahead), longest);
        if self.ahead != ahead {
            (self.ahead, self.ahead_since) = (ahead, now);
        }
        self.due_at = now + self.pause;
    }

    /// Postpones the next poll after one that failed.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.due_at = now + LONGEST;
    }
}

/// Returns the shortest time in which this many waiters ahead can be served: each of them polls once.
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
