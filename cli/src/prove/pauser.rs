//! Who is stopped, and for how long: drawn by a seed.

use std::time::Duration;

/// One in so many holders is stopped.
const ONE_IN: u32 = 20;
/// One in so many, of those who have just overtaken somebody that is stopped: trouble seldom comes alone, and two that
/// are stopped one after the other are what a ratchet cannot handle.
const ONE_IN_OVERTAKING: u32 = 2;
/// One in so many pauses hits somebody else than the holder.
const ONE_IN_ELSEWHERE: u32 = 10;
/// How long, in hundredths of the TTL: long enough for the lock to be another's.
const PERCENT_OF_TTL: std::ops::Range<u32> = 125..225;

pub(super) struct Pauser {
    draw: fastrand::Rng,
    ttl: Duration,
}

impl Pauser {
    pub(super) fn new(seed: u64, ttl: Duration) -> Pauser {
        Pauser { draw: fastrand::Rng::with_seed(seed), ttl }
    }

    /// Whether somebody is stopped now that this writer holds the lock and has read. `running` are all who can be,
    /// the holder among them; at least one of them goes on.
    pub(super) fn decide(&mut self, holder: usize, running: &[usize], has_overtaken: bool) -> Option<Pause> {
        let one_in = if has_overtaken { ONE_IN_OVERTAKING } else { ONE_IN };
        if running.len() < 2 || self.draw.u32(..one_in) > 0 {
            return None;
        }
        let others: Vec<usize> = running.iter().copied().filter(|writer| *writer != holder).collect();
        let writer = match self.draw.u32(..ONE_IN_ELSEWHERE) {
            0 => others[self.draw.usize(..others.len())],
            _ => holder,
        };
        Some(Pause { writer, time: self.ttl * self.draw.u32(PERCENT_OF_TTL) / 100 })
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
    fn the_last_one_that_runs_is_not_stopped() {
        let mut pauser = Pauser::new(7, TTL);
        assert!((0..1000).all(|_| pauser.decide(3, &[3], true).is_none()));
    }
}
