//! When to renew, and when to stop believing: the keeper's decisions, without a clock or a thread of their own.
//!
//! Time is told to it. Everything is counted from *before* a request was sent that the engine confirmed, because only
//! from then on is it certain that the engine had not yet begun to count.

use std::time::Duration;

use crate::BootInstant;

/// The rhythm of one session's renewals.
#[derive(Debug, Clone)]
pub(crate) struct Rhythm {
    ttl: Duration,
    /// The part of the TTL that is given away in case the engine's clock runs faster than ours.
    drift: Duration,
    /// When the last request was sent that the engine confirmed.
    confirmed_at: BootInstant,
    next_try_at: BootInstant,
    in_flight_since: Option<BootInstant>,
    is_lost: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a keep-alive; it counts as in flight.
    Renew,
    /// Nothing, until this moment.
    Wait(BootInstant),
    /// The session can have ended: stop believing in it.
    Lose,
}

impl Rhythm {
    /// For a session that was asked for at this moment, and then opened.
    pub(crate) fn new(ttl: Duration, drift: Duration, asked_at: BootInstant) -> Rhythm {
        let drift = drift.min(ttl / 2);
        let next_try_at = asked_at + ttl / 3;
        Rhythm { ttl, drift, confirmed_at: asked_at, next_try_at, in_flight_since: None, is_lost: false }
    }

    /// Until when the session certainly lives.
    pub(crate) fn safe_until(&self) -> BootInstant {
        self.confirmed_at + (self.ttl - self.drift)
    }

    /// From when on it is in jeopardy: two thirds of its time are gone without a confirmation.
    pub(crate) fn jeopardy_at(&self) -> BootInstant {
        self.confirmed_at + (self.ttl - self.drift) * 2 / 3
    }

    pub(crate) fn is_in_jeopardy(&self, now: BootInstant) -> bool {
        now >= self.jeopardy_at()
    }

    /// What to do now, and what to note about it.
    pub(crate) fn step(&mut self, now: BootInstant) -> Step {
        if self.is_lost || now >= self.safe_until() {
            self.is_lost = true;
            return Step::Lose;
        }
        if let Some(since) = self.in_flight_since {
            let gives_up_at = since + self.ttl / 3;
            if now < gives_up_at {
                return Step::Wait(gives_up_at.min(self.next_change(now)));
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

    /// A keep-alive that was sent at this moment was confirmed. Too late is too late: what is lost stays lost.
    pub(crate) fn confirmed(&mut self, sent_at: BootInstant, now: BootInstant) {
        if self.is_lost || now >= self.safe_until() {
            self.is_lost = true;
            return;
        }
        self.confirmed_at = self.confirmed_at.max(sent_at);
        self.next_try_at = self.confirmed_at + self.ttl / 3;
        self.in_flight_since = None;
    }

    /// A keep-alive failed, or was not answered in time: try again soon.
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
    fn rhythm() -> Rhythm {
        Rhythm::new(MS * 3000, MS * 30, at(0))
    }

    #[test]
    fn it_renews_after_a_third_of_the_ttl() {
        let mut rhythm = rhythm();
        assert_eq!(rhythm.step(at(0)), Step::Wait(at(1000)));
        assert_eq!(rhythm.step(at(999)), Step::Wait(at(1000)));
        assert_eq!(rhythm.step(at(1000)), Step::Renew);
        rhythm.confirmed(at(1000), at(1040));
        assert_eq!(rhythm.step(at(1040)), Step::Wait(at(2000)));
    }

    #[test]
    fn validity_is_counted_from_before_the_request_was_sent() {
        let mut rhythm = rhythm();
        assert_eq!(rhythm.step(at(1000)), Step::Renew);
        rhythm.confirmed(at(1000), at(1900));
        assert_eq!(rhythm.safe_until(), at(1000 + 2970));
    }

    #[test]
    fn a_failure_is_followed_by_a_sooner_attempt_and_no_loss() {
        let mut rhythm = rhythm();
        assert_eq!(rhythm.step(at(1000)), Step::Renew);
        rhythm.failed(at(1010));
        assert_eq!(rhythm.step(at(1010)), Step::Wait(at(1160)));
        assert_eq!(rhythm.step(at(1160)), Step::Renew);
        rhythm.confirmed(at(1160), at(1170));
        assert!(!rhythm.is_in_jeopardy(at(2000)));
        assert_eq!(rhythm.step(at(1170)), Step::Wait(at(2160)));
    }

    #[test]
    fn an_attempt_without_an_answer_is_given_up_and_repeated() {
        let mut rhythm = rhythm();
        assert_eq!(rhythm.step(at(1000)), Step::Renew);
        assert_eq!(rhythm.step(at(1001)), Step::Wait(at(1980)));
        assert_eq!(rhythm.step(at(1980)), Step::Wait(at(2000)));
        assert_eq!(rhythm.step(at(2000)), Step::Wait(at(2150)));
        assert_eq!(rhythm.step(at(2150)), Step::Renew);
    }

    #[test]
    fn jeopardy_comes_before_loss_and_loss_before_the_ttl() {
        let mut rhythm = rhythm();
        assert!(!rhythm.is_in_jeopardy(at(1979)));
        assert!(rhythm.is_in_jeopardy(at(1980)));
        assert_ne!(rhythm.step(at(2969)), Step::Lose);
        assert_eq!(rhythm.step(at(2970)), Step::Lose);
    }

    #[test]
    fn what_is_lost_stays_lost() {
        let mut rhythm = rhythm();
        assert_eq!(rhythm.step(at(1000)), Step::Renew);
        rhythm.confirmed(at(1000), at(5000));
        assert_eq!(rhythm.step(at(5000)), Step::Lose);
        rhythm.confirmed(at(5000), at(5001));
        assert_eq!(rhythm.step(at(5001)), Step::Lose);
    }

    #[test]
    fn a_suspended_host_finds_its_session_lost() {
        let mut rhythm = rhythm();
        assert_eq!(rhythm.step(at(3_600_000)), Step::Lose);
    }
}
