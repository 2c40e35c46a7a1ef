//! Chooses the writer to pause and the length of the pause, at random from a seed.

use std::time::Duration;

/// One in this many holders is paused: often enough for some pauses in 20 s, and most updates still succeed.
const ONE_IN: u32 = 20;
/// The same for a holder that has just overtaken a paused writer: two pauses in a row are the schedule in which a
/// ratchet loses updates.
const ONE_IN_OVERTAKING: u32 = 2;
/// One in this many pauses hits a writer that does not hold the lock, to test that this does no harm.
const ONE_IN_ELSEWHERE: u32 = 10;
/// The length of a pause, in percent of the TTL: long enough for the lock to expire and to be granted to another writer.
const PERCENT_OF_TTL: std::ops::Range<u32> = 125..225;

pub(super) struct Pauser {
    rng: fastrand::Rng,
    ttl: Duration,
}

impl Pauser {
    pub(super) fn new(seed: u64, ttl: Duration) -> Pauser {
        Pauser { rng: fastrand::Rng::with_seed(seed), ttl }
    }

    /// Decides whether to pause a writer now that `holder` has read. `running` are the candidates, including the holder.
    /// At least one of them keeps running.
    pub(super) fn decide(&mut self, holder: usize, running: &[usize], has_overtaken: bool) -> Option<Pause> {
        let one_in = if has_overtaken { ONE_IN_OVERTAKING } else { ONE_IN };
        if running.len() < 2 || self.rng.u32(..one_in) > 0 {
            return None;
        }
        let others: Vec<usize> = running.iter().copied().filter(|writer| *writer != holder).collect();
        let writer = match self.rng.u32(..ONE_IN_ELSEWHERE) {
            0 => others[self.rng.usize(..others.len())],
            _ => holder,
        };
        Some(Pause { writer, time: self.ttl * self.rng.u32(PERCENT_OF_TTL) / 100 })
    }
}

/// One pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) writer: usize,
    pub(super) time: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    fn pauses(seed: u64, has_overtaken: bool) -> Vec<Pause> {
        let mut pauser = Pauser::new(seed, TTL);
        (0..1000).filter_map(|_| pauser.decide(3, &[0, 1, 3, 4], has_overtaken)).collect()
    }

    #[test]
    fn a_seed_draws_the_same_pauses_again() {
        assert_eq!(pauses(7, false), pauses(7, false));
        assert_ne!(pauses(7, false), pauses(8, false));
    }

    #[test]
    fn every_pause_outlasts_the_ttl_and_most_hit_the_holder() {
        let (pauses, while_overtaking) = (pauses(7, false), pauses(7, true));
        assert!((20..80).contains(&pauses.len()), "{} pauses", pauses.len());
        assert!(pauses.iter().all(|pause| pause.time > TTL && pause.time < TTL * 3));
        assert!(pauses.iter().all(|pause| [0, 1, 3, 4].contains(&pause.writer)));
        let others = pauses.iter().filter(|pause| pause.writer != 3).count();
        assert!(others > 0 && others < pauses.len() / 4, "{others} of {}", pauses.len());
        assert!(while_overtaking.len() > pauses.len() * 2);
    }

    #[test]
    fn the_last_running_writer_is_not_paused() {
        let mut pauser = Pauser::new(7, TTL);
        assert!((0..1000).all(|_| pauser.decide(3, &[3], true).is_none()));
    }
}
