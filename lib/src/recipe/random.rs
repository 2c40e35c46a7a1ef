//! Randomness for pauses and ids. It is not random for secrecy.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns a random number.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// Returns a random time of up to this long, so that clients that failed together do not try again together.
pub(super) fn up_to(longest: Duration) -> Duration {
    let fraction = u32::try_from(random() % 1024).unwrap_or_default() + 1;
    longest * fraction / 1024
}

/// Returns the pause after this many failures: it doubles with each, up to the longest.
pub(super) fn doubled(first: Duration, failures: u32, longest: Duration) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_the_longest() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
        let pauses: Vec<u64> =
            [0, 1, 2, 3, 7, 32, 4000].map(|failures| doubled(first, failures, longest).as_secs()).into();
        assert_eq!(pauses, [1, 1, 2, 4, 60, 60, 60]);
    }

    #[test]
    fn a_random_pause_is_not_longer_than_asked_for() {
        let longest = Duration::from_millis(10);
        for _ in 0..1000 {
            let pause = up_to(longest);
            assert!(pause > Duration::ZERO && pause <= longest);
        }
    }
}
