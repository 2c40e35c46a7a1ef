//! When to renew a session, and when to count it as lost. No clock and no thread: time is an input.
//!
//! Validity is counted from the moment *before* the confirmed request was sent. The engine cannot have begun to count the TTL
//! earlier.

use std::time::Duration;

use crate::BootInstant;

/// The renewals of one session.
#[derive(Debug, Clone)]
pub(crate) struct Renewal {
    ttl: Duration,
    /// The part of the TTL that is not used, in case the engine's clock runs faster than ours.
    drift: Duration,
    /// When the last confirmed request was sent.
    confirmed_at: BootInstant,
    next_try_at: BootInstant,
    in_flight_since: Option<BootInstant>,
    is_lost: bool,
}

/// What the keeper does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a keep-alive; it counts as in flight.
    Renew,
    /// Nothing, until this moment.
    Wait(BootInstant),
    /// Count the session as lost: it may have ended.
    Lose,
}

impl Renewal {
    /// The renewals of a session whose opening was requested at `requested_at`.
    pub(crate) fn new(ttl: Duration, drift: Duration, requested_at: BootInstant) -> Renewal {
        let drift = drift.min(ttl / 2);
        let next_try_at = requested_at + ttl / 3;
        Renewal { ttl, drift, confirmed_at: requested_at, next_try_at, in_flight_since: None, is_lost: false }
    }

    /// How long the session certainly lives after a confirmed request.
    pub(crate) fn lease(&self) -> Duration {
        self.ttl - self.drift
    }

    /// The moment until which the session certainly lives.
    pub(crate) fn safe_until(&self) -> BootInstant {
        self.confirmed_at + self.lease()
    }

    /// The moment from which the session is in jeopardy: two thirds of its lease have passed without a confirmation.
    pub(crate) fn jeopardy_at(&self) -> BootInstant {
        self.confirmed_at + self.lease() * 2 / 3
    }

    pub(crate) fn is_in_jeopardy(&self, now: BootInstant) -> bool {
        now >= self.jeopardy_at()
    }

    /// Decides what to do now.
    pub(crate) fn step(&mut self, now: BootInstant) -> Step {
        if self.is_lost || now >= self.safe_until() {
            self.is_lost = true;
            return Step::Lose;
        }
        if let Some(since) = self.in_flight_since {
            let times_out_at = since + self.ttl / 3;
            if now < times_out_at {
                return Step::Wait(times_out_at.min(self.next_change(now)));
            }
            self.failed(now);
        }
        if now >= self.next_try_at {
            self.in_flight_since = Some(now);
            return Step::Renew;
        }
        Step::Wait(self.next_try_at.min(self.next_change(now)))
    }

    /// The next moment at which jeopardy or loss begins.
    fn next_change(&self, now: BootInstant) -> BootInstant {
        if self.is_in_jeopardy(now) { self.safe_until() } else { self.jeopardy_at() }
    }

    /// Notes that a keep-alive was confirmed. A late confirmation does not revive a lost session.
    pub(crate) fn confirmed(&mut self, sent_at: BootInstant, now: BootInstant) {
        if self.is_lost || now >= self.safe_until() {
            self.is_lost = true;
            return;
        }
        self.confirmed_at = self.confirmed_at.max(sent_at);
        self.next_try_at = self.confirmed_at + self.ttl / 3;
        self.in_flight_since = None;
    }

    /// Notes that a keep-alive failed or timed out. The next one follows soon.
    pub(crate) fn failed(&mut self, now: BootInstant) {
        self.in_flight_since = None;
        self.next_try_at = now + (self.ttl / 20).max(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_ns(1_000_000_000) + MS * ms as u32
    }

    /// A session of 3 s with a drift of 30 ms, opened at 0.
    fn renewal() -> Renewal {
        Renewal::new(MS * 3000, MS * 30, at(0))
    }

    #[test]
    fn it_renews_after_a_third_of_the_ttl() {
        let mut renewal = renewal();
        assert_eq!(renewal.step(at(0)), Step::Wait(at(1000)));
        assert_eq!(renewal.step(at(999)), Step::Wait(at(1000)));
        assert_eq!(renewal.step(at(1000)), Step::Renew);
        renewal.confirmed(at(1000), at(1040));
        assert_eq!(renewal.step(at(1040)), Step::Wait(at(2000)));
    }

    #[test]
    fn validity_is_counted_from_before_the_request_was_sent() {
        let mut renewal = renewal();
        assert_eq!(renewal.step(at(1000)), Step::Renew);
        renewal.confirmed(at(1000), at(1900));
        assert_eq!(renewal.safe_until(), at(1000 + 2970));
    }

    #[test]
    fn a_failure_is_followed_by_a_sooner_attempt_and_no_loss() {
        let mut renewal = renewal();
        assert_eq!(renewal.step(at(1000)), Step::Renew);
        renewal.failed(at(1010));
        assert_eq!(renewal.step(at(1010)), Step::Wait(at(1160)));
        assert_eq!(renewal.step(at(1160)), Step::Renew);
        renewal.confirmed(at(1160), at(1170));
        assert!(!renewal.is_in_jeopardy(at(2000)));
        assert_eq!(renewal.step(at(1170)), Step::Wait(at(2160)));
    }

    #[test]
    fn a_keep_alive_without_a_reply_is_repeated() {
        let mut renewal = renewal();
        assert_eq!(renewal.step(at(1000)), Step::Renew);
        assert_eq!(renewal.step(at(1001)), Step::Wait(at(1980)));
        assert_eq!(renewal.step(at(1980)), Step::Wait(at(2000)));
        assert_eq!(renewal.step(at(2000)), Step::Wait(at(2150)));
        assert_eq!(renewal.step(at(2150)), Step::Renew);
    }

    #[test]
    fn jeopardy_comes_before_loss_and_loss_before_the_ttl() {
        let mut renewal = renewal();
        assert!(!renewal.is_in_jeopardy(at(1979)));
        assert!(renewal.is_in_jeopardy(at(1980)));
        assert_ne!(renewal.step(at(2969)), Step::Lose);
        assert_eq!(renewal.step(at(2970)), Step::Lose);
    }

    #[test]
    fn a_late_confirmation_does_not_revive_a_session() {
        let mut renewal = renewal();
        assert_eq!(renewal.step(at(1000)), Step::Renew);
        renewal.confirmed(at(1000), at(5000));
        assert_eq!(renewal.step(at(5000)), Step::Lose);
        renewal.confirmed(at(5000), at(5001));
        assert_eq!(renewal.step(at(5001)), Step::Lose);
    }

    #[test]
    fn a_suspended_host_finds_its_session_lost() {
        let mut renewal = renewal();
        assert_eq!(renewal.step(at(3_600_000)), Step::Lose);
    }
}
