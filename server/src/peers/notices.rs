//! Keeps what happens again and again from filling the log.

use std::time::{Duration, Instant};

/// How long a problem that goes on is not reported again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Decides which reports of a problem are logged: one that is new, and every half minute one that goes on.
#[derive(Debug, Default)]
pub(super) struct Notices {
    last: String,
    /// How often it was reported in a row.
    count: u32,
    logged_at: Option<Instant>,
}

impl Notices {
    /// Returns whether to log this problem, at the `first` report in a row or later.
    pub(super) fn is_due(&mut self, problem: &str, first: u32) -> bool {
        self.is_due_at(problem, first, Instant::now())
    }

    fn is_due_at(&mut self, problem: &str, first: u32, now: Instant) -> bool {
        if self.last != problem {
            *self = Notices { last: problem.to_owned(), ..Notices::default() };
        }
        self.count += 1;
        let is_due = match self.logged_at {
            None => self.count >= first,
            Some(at) => now.duration_since(at) >= AGAIN_AFTER,
        };
        if is_due {
            self.logged_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_logged_when_it_is_new_and_when_it_goes_on() {
        let (mut notices, now) = (Notices::default(), Instant::now());
        assert!(notices.is_due_at("no route", 1, now));
        assert!(!notices.is_due_at("no route", 1, now));
        assert!(notices.is_due_at("refused", 1, now));
        assert!(notices.is_due_at("refused", 1, now + AGAIN_AFTER));
        assert!(!notices.is_due_at("refused", 1, now + AGAIN_AFTER));
    }

    #[test]
    fn a_problem_that_passes_is_not_logged() {
        let (mut notices, now) = (Notices::default(), Instant::now());
        assert!(!notices.is_due_at("early end", 2, now));
        assert!(notices.is_due_at("early end", 2, now));
        assert!(!notices.is_due_at("refused", 2, now));
    }
}
