//! The arithmetic of a majority, without a clock or a connection.

use std::time::Duration;

/// A node's reply, without the reason why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    Yes,
    No,
    Absent,
}

/// The result of a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A majority voted yes.
    Yes,
    /// A majority has answered, and no majority voted yes.
    No,
    /// Too few nodes have answered.
    Unknown,
}

/// Returns how many nodes are a majority.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns the number of yes votes, of no votes, and of nodes.
fn count(votes: impl IntoIterator<Item = Vote>) -> (usize, usize, usize) {
    votes.into_iter().fold((0, 0, 0), |(yes, no, all), vote| match vote {
        Vote::Yes => (yes + 1, no, all + 1),
        Vote::No => (yes, no + 1, all + 1),
        Vote::Absent => (yes, no, all + 1),
    })
}

/// Counts the votes on a new grant.
pub(super) fn verdict(votes: impl IntoIterator<Item = Vote>) -> Verdict {
    let (yes, no, all) = count(votes);
    match majority(all) {
        needed if yes >= needed => Verdict::Yes,
        needed if yes + no >= needed => Verdict::No,
        _ => Verdict::Unknown,
    }
}

/// Counts the votes on an existing grant. It is lost only if no majority is possible, even if all absent nodes voted yes.
pub(super) fn verdict_on_grant(votes: impl IntoIterator<Item = Vote>) -> Verdict {
    let (yes, no, all) = count(votes);
    match majority(all) {
        needed if yes >= needed => Verdict::Yes,
        needed if all - no < needed => Verdict::No,
        _ => Verdict::Unknown,
    }
}

/// The part of a TTL that is not used, because the nodes' clocks may run faster and expire keys in whole milliseconds.
pub(super) fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Returns how long a majority certainly keeps a key that was requested this long ago; `None` if no time is left.
pub(super) fn validity(ttl: Duration, elapsed: Duration) -> Option<Duration> {
    ttl.checked_sub(elapsed)?.checked_sub(drift(ttl)).filter(|left| !left.is_zero())
}

/// Returns the time-out of a call to one node: a small part of the TTL, so that absent nodes cost little of it.
pub(super) fn call_timeout(ttl: Duration) -> Duration {
    (ttl / 10).min(LONGEST_TIMEOUT)
}

/// The longest time-out of a call to one node. A healthy node answers within milliseconds.
pub(super) const LONGEST_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns a random pause before the next attempt, so that clients that split the nodes among them do not collide again.
pub(super) fn pause(random: u64) -> Duration {
    const SHORTEST_US: u64 = 5_000;
    const LONGEST_US: u64 = 75_000;
    Duration::from_micros(SHORTEST_US + random % (LONGEST_US - SHORTEST_US))
}

#[cfg(test)]
mod tests {
    use super::Vote::{Absent, No, Yes};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_majority_is_more_than_half() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(majority), [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn contention_and_outage_have_different_verdicts() {
        assert_eq!(verdict([Yes, Yes, Yes, Absent, Absent]), Verdict::Yes);
        assert_eq!(verdict([Yes, Yes, No, No, No]), Verdict::No);
        assert_eq!(verdict([Yes, Yes, No, Absent, Absent]), Verdict::No);
        assert_eq!(verdict([Yes, Yes, Absent, Absent, Absent]), Verdict::Unknown);
        assert_eq!(verdict([Yes, No, Absent, Absent, Absent]), Verdict::Unknown);
        // Half of the nodes is not a majority.
        assert_eq!(verdict([Yes, Yes, Absent, Absent]), Verdict::Unknown);
        assert_eq!(verdict([Yes, Yes, No, No]), Verdict::No);
    }

    #[test]
    fn a_grant_is_lost_only_when_no_majority_is_possible() {
        assert_eq!(verdict_on_grant([Yes, Yes, Yes, No, No]), Verdict::Yes);
        assert_eq!(verdict_on_grant([Yes, Yes, No, No, Absent]), Verdict::Unknown);
        assert_eq!(verdict_on_grant([Yes, Yes, No, No, No]), Verdict::No);
        assert_eq!(verdict_on_grant([No, No, No, Absent, Absent]), Verdict::No);
        assert_eq!(verdict_on_grant([Yes, Absent, Absent, No, No]), Verdict::Unknown);
    }

    #[test]
    fn validity_is_the_ttl_minus_elapsed_time_and_drift() {
        assert_eq!(validity(MS * 10_000, MS * 100), Some(MS * 9_798));
        assert_eq!(validity(MS * 1_000, MS * 987), Some(MS));
        assert_eq!(validity(MS * 1_000, MS * 988), None);
        assert_eq!(validity(MS * 1_000, MS * 999), None);
        assert_eq!(validity(MS * 1_000, MS * 5_000), None);
        assert_eq!(validity(MS, Duration::ZERO), None);
    }

    #[test]
    fn a_call_times_out_within_a_tenth_of_the_ttl() {
        assert_eq!(call_timeout(MS * 600), MS * 60);
        assert_eq!(call_timeout(MS * 60_000), LONGEST_TIMEOUT);
    }

    #[test]
    fn pauses_differ_and_are_bounded() {
        let pauses: Vec<_> = (0..100).map(|number| pause(number * 7_919_777)).collect();
        assert!(pauses.iter().all(|pause| (MS * 5..MS * 75).contains(pause)));
        let mut different = pauses.clone();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 90, "{pauses:?}");
    }
}
