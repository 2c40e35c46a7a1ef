//! The rules of a key, pure. Every store applies them under a lock on the key's row.

use std::time::Duration;

use palisade_core::Token;

use super::Policy;
use crate::recipe::random::doubled;

/// The row of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// The token of the key's last delivery; `None` before the first.
    pub token: Option<Token>,
    /// The job that this delivery was of; `None` once it was done or has failed.
    pub job: Option<JobId>,
}

/// The number of a job. Jobs of a key are delivered in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(super) i64);

impl JobId {
    /// Parses the number of a job, as lists show it.
    ///
    /// ```
    /// use palisade::recipe::queue::JobId;
    /// assert_eq!(JobId::parse("7").map(|id| id.to_string()).as_deref(), Some("7"));
    /// assert_eq!(JobId::parse("-7"), None);
    /// ```
    pub fn parse(text: &str) -> Option<JobId> {
        text.parse().ok().filter(|number| *number > 0).map(JobId)
    }
}

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One delivery of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The job.
    pub id: JobId,
    /// Its key.
    pub key: String,
    /// How often it was delivered, with this time.
    pub attempt: u32,
    /// The token of this delivery.
    pub token: Token,
}

/// Whether a delivery is still the last one of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was, and the change is made.
    Applied,
    /// This very delivery was settled before. A repeat of a call whose reply was lost finds this.
    Repeated,
    /// A later delivery has taken its place, or the key's row is gone. Nothing was changed.
    Stale {
        /// The token of the later delivery, if it is known.
        by: Option<Token>,
    },
}

impl KeyState {
    /// Decides whether a delivery may be settled.
    pub(super) fn settle(state: Option<KeyState>, delivery: &Delivery) -> Settled {
        match state {
            Some(KeyState { token: Some(token), job }) if token == delivery.token => match job {
                Some(job) if job == delivery.id => Settled::Applied,
                _ => Settled::Repeated,
            },
            Some(KeyState { token, .. }) => Settled::Stale { by: token },
            None => Settled::Stale { by: None },
        }
    }

    /// Returns the token of the next delivery: above the key's last one, and above those of keys whose rows were removed.
    /// `None` when the tokens are used up.
    pub(super) fn next_token(last: i64, floor: i64) -> Option<Token> {
        let next = u64::try_from(last.max(floor)).ok()?.checked_add(1)?;
        Token::new(next).ok()
    }
}

/// What becomes of a job that was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// It is delivered again after this time.
    Retry(Duration),
    /// It becomes a dead letter.
    Dead,
}

impl Failed {
    pub(super) fn after(attempt: u32, policy: &Policy) -> Failed {
        match attempt < policy.attempts {
            true => Failed::Retry(doubled(policy.first_delay, attempt, policy.longest_delay)),
            false => Failed::Dead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> Option<Token> {
        Token::new(number).ok()
    }

    #[test]
    fn only_the_last_delivery_of_a_key_is_settled() {
        let delivery = Delivery { id: JobId(7), key: "a".into(), attempt: 1, token: token(3).expect("a token") };
        let settle =
            |token, job: Option<i64>| KeyState::settle(Some(KeyState { token, job: job.map(JobId) }), &delivery);
        assert_eq!(settle(token(3), Some(7)), Settled::Applied);
        assert_eq!(settle(token(3), None), Settled::Repeated);
        assert_eq!(settle(token(4), Some(7)), Settled::Stale { by: token(4) });
        assert_eq!(settle(token(4), None), Settled::Stale { by: token(4) });
        assert_eq!(KeyState::settle(None, &delivery), Settled::Stale { by: None });
    }

    #[test]
    fn tokens_rise_above_those_of_the_key_and_of_removed_keys() {
        assert_eq!(KeyState::next_token(0, 0), token(1));
        assert_eq!(KeyState::next_token(5, 9), token(10));
        assert_eq!(KeyState::next_token(9, 5), token(10));
        assert_eq!(KeyState::next_token((1 << 53) - 1, 0), None);
        assert_eq!(KeyState::next_token(i64::MAX, 0), None);
    }

    #[test]
    fn a_job_is_retried_until_its_attempts_are_used_up() {
        let policy = Policy { attempts: 3, ..Policy::default() };
        assert_eq!(Failed::after(1, &policy), Failed::Retry(policy.first_delay));
        assert_eq!(Failed::after(2, &policy), Failed::Retry(policy.first_delay * 2));
        assert_eq!(Failed::after(3, &policy), Failed::Dead);
    }
}
