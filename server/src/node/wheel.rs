//! A timer wheel for very many deadlines. Moving a deadline back only changes the map: the entry is found, and put into
//! its new slot, when its old slot comes round. Bringing a deadline forward puts a second entry into an earlier slot. The
//! map says which of the two counts; the wheel drops the other one when its slot comes round.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::TICK;

/// With ticks of 20 ms the wheel turns once in 20 s. Longer deadlines stay in their slot for several turns.
const SLOTS: usize = 1024;

/// A point in time, counted from the start of the node.
pub type Moment = Duration;

/// Deadlines by key.
pub(super) struct Wheel<K> {
    deadlines: HashMap<K, Deadline>,
    slots: Vec<Vec<K>>,
    /// The next slot to look at, counted from the start.
    next: u64,
}

struct Deadline {
    at: Moment,
    /// The tick that visits the entry that counts. It is less than one turn ahead. An entry that another tick visits is
    /// stale.
    visit: u64,
}

impl<K: Copy + Eq + Hash> Wheel<K> {
    pub(super) fn new() -> Wheel<K> {
        Wheel { deadlines: HashMap::new(), slots: (0..SLOTS).map(|_| Vec::new()).collect(), next: 0 }
    }

    /// Sets or moves a deadline.
    pub(super) fn set(&mut self, key: K, at: Moment) {
        match self.deadlines.get_mut(&key) {
            // The entry is visited in time, and then put into its new slot.
            Some(deadline) if deadline.visit <= tick_of(at).max(self.next) => deadline.at = at,
            _ => self.put(key, at),
        }
    }

    /// Moves a deadline; returns whether there was one.
    pub(super) fn renew(&mut self, key: K, at: Moment) -> bool {
        let is_there = self.deadlines.contains_key(&key);
        if is_there {
            self.set(key, at);
        }
        is_there
    }

    pub(super) fn get(&self, key: K) -> Option<Moment> {
        self.deadlines.get(&key).map(|deadline| deadline.at)
    }

    pub(super) fn remove(&mut self, key: K) {
        self.deadlines.remove(&key);
    }

    pub(super) fn clear(&mut self) {
        self.deadlines.clear();
        self.slots.iter_mut().for_each(Vec::clear);
    }

    fn put(&mut self, key: K, at: Moment) {
        let ahead = tick_of(at).saturating_sub(self.next) % SLOTS as u64;
        let visit = self.next + ahead;
        self.deadlines.insert(key, Deadline { at, visit });
        self.slots[(visit % SLOTS as u64) as usize].push(key);
    }

    /// Returns when to look for passed deadlines again, not later than so many ticks after the last look.
    pub(super) fn next_look(&self, ticks: u64) -> Moment {
        let is_used = |tick: &u64| !self.slots[(tick % SLOTS as u64) as usize].is_empty();
        let tick = (self.next..self.next + ticks).find(is_used).unwrap_or(self.next + ticks);
        Duration::from_nanos((TICK.as_nanos() as u64).saturating_mul(tick))
    }

    /// Removes and returns the keys whose deadlines have passed.
    pub(super) fn due(&mut self, now: Moment) -> Vec<K> {
        let last = u64::try_from(now.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX);
        let (mut due, mut later) = (Vec::new(), Vec::new());
        // One turn visits every slot, however long the last call is ago.
        let ticks = (last + 1).saturating_sub(self.next).min(SLOTS as u64);
        for tick in self.next..self.next + ticks {
            for key in std::mem::take(&mut self.slots[(tick % SLOTS as u64) as usize]) {
                let Some(deadline) = self.deadlines.get_mut(&key).filter(|deadline| deadline.visit == tick) else {
                    continue;
                };
                if deadline.at <= now {
                    self.deadlines.remove(&key);
                    due.push(key);
                } else {
                    // The same slot may have a stale entry of the key.
                    deadline.visit = u64::MAX;
                    later.push((key, deadline.at));
                }
            }
        }
        self.next = self.next.max(last + 1);
        // Only now: these entries are visited in the next turn.
        later.into_iter().for_each(|(key, at)| self.put(key, at));
        due
    }
}

/// Returns the tick of a deadline. Rounded up, so that nothing is due before its time.
fn tick_of(at: Moment) -> u64 {
    u64::try_from(at.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn nothing_is_due_before_its_time_and_all_is_soon_after() {
        let mut wheel = Wheel::new();
        // Shorter and much longer than the wheel.
        let deadlines = [0u32, 1, 19, 20, 21, 500, 20_480, 20_500, 90_000, 1_000_000];
        for at in deadlines {
            wheel.set(at, MS * at);
        }
        let mut now = 0;
        let mut seen = Vec::new();
        while seen.len() < deadlines.len() {
            for key in wheel.due(MS * now) {
                assert!(key <= now && now <= key + 20 + 7, "{key} was due at {now}");
                seen.push(key);
            }
            now += 7;
        }
    }

    #[test]
    fn a_renewed_deadline_is_due_later_and_a_removed_one_never() {
        let mut wheel = Wheel::new();
        wheel.set('a', MS * 100);
        wheel.set('b', MS * 100);
        assert!(wheel.renew('a', MS * 300));
        wheel.remove('b');
        assert!(!wheel.renew('b', MS * 300));
        assert_eq!(wheel.due(MS * 290), []);
        assert_eq!(wheel.due(MS * 330), ['a']);
        assert_eq!(wheel.due(MS * 9_000), []);
    }

    #[test]
    fn the_next_look_is_at_a_used_slot_or_after_so_many_ticks() {
        let mut wheel = Wheel::new();
        assert_eq!(wheel.next_look(5), MS * 100);
        wheel.set('a', MS * 50);
        assert_eq!([wheel.next_look(2), wheel.next_look(5)], [MS * 40, MS * 60]);
        assert_eq!(wheel.due(MS * 60), ['a']);
        assert_eq!(wheel.next_look(5), MS * 180);
    }

    #[test]
    fn a_deadline_can_be_brought_forward() {
        let mut wheel = Wheel::new();
        wheel.set('a', MS * 5_000);
        wheel.set('a', MS * 50);
        assert_eq!(wheel.due(MS * 80), ['a']);
        assert_eq!(wheel.due(MS * 6_000), []);
    }

    #[test]
    fn all_deadlines_are_found_after_a_long_pause() {
        let mut wheel = Wheel::new();
        for at in 0..2_000u32 {
            wheel.set(at, MS * at * 100);
        }
        let mut due = wheel.due(MS * 1_000_000);
        due.sort_unstable();
        assert_eq!(due.len(), 2_000);
    }

    fn entries<K>(wheel: &Wheel<K>) -> usize {
        wheel.slots.iter().map(Vec::len).sum()
    }

    #[test]
    fn moving_a_deadline_forward_and_back_adds_no_entry_for_good() {
        const TURN: u32 = 20 * SLOTS as u32;
        // Some are whole turns of the wheel apart.
        for (far, near) in [(5_000, 100), (90_000, 100), (TURN + 100, 100), (3 * TURN + 100, TURN + 100)] {
            for step in [0, 1, 40, 150] {
                let case = format!("far {far}, near {near}, step {step}");
                let mut wheel = Wheel::new();
                let mut now = 0;
                for _ in 0..10_000 {
                    now += step;
                    assert_eq!(wheel.due(MS * now), [], "{case}");
                    wheel.set('a', MS * (now + far));
                    wheel.set('a', MS * (now + near));
                    wheel.set('a', MS * (now + far));
                }
                // At most one stale entry for each time that the deadline was brought forward within a turn.
                assert!(entries(&wheel) <= 2 + (TURN / near) as usize, "{case}: {}", entries(&wheel));
                let end = now + far;
                while now + 20 < end {
                    now += 20;
                    assert_eq!(wheel.due(MS * now), [], "{case}");
                    if now + far >= end + TURN {
                        assert_eq!(entries(&wheel), 1, "{case}");
                    }
                }
                assert_eq!(wheel.due(MS * (end + 20)), ['a'], "{case}");
                wheel.due(MS * (end + 20 + TURN));
                assert_eq!(entries(&wheel), 0, "{case}");
            }
        }
    }

    #[test]
    fn random_deadlines_are_due_in_the_tick_after_their_time() {
        let mut random = crate::node::random::Random::new(1);
        let mut below = |bound: u64| random.draw() % bound;
        let mut wheel = Wheel::new();
        let mut deadlines = HashMap::new();
        let mut now = Moment::ZERO;
        for _ in 0..20_000 {
            for _ in 0..below(4) {
                let (key, at) = (below(20), now + Duration::from_millis(below(3) * below(50_000)));
                if below(5) == 0 {
                    wheel.remove(key);
                    deadlines.remove(&key);
                } else {
                    wheel.set(key, at);
                    deadlines.insert(key, at);
                }
            }
            // Sometimes several turns.
            now += Duration::from_millis(if below(500) == 0 { below(100_000) } else { below(60) });
            for key in wheel.due(now) {
                assert!(deadlines.remove(&key).is_some_and(|at| at <= now), "{key} is due too early");
            }
            assert!(deadlines.values().all(|at| now < *at + TICK), "a deadline is not found at {now:?}");
        }
    }
}
