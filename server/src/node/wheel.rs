//! A timer wheel for very many deadlines. Moving a deadline back only changes the map: the entry is found, and put into
//! its new slot, when its old slot comes round.

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
    deadlines: HashMap<K, Moment>,
    slots: Vec<Vec<K>>,
    /// The next slot to look at, counted from the start.
    next: u64,
}

impl<K: Copy + Eq + Hash> Wheel<K> {
    pub(super) fn new() -> Wheel<K> {
        Wheel { deadlines: HashMap::new(), slots: (0..SLOTS).map(|_| Vec::new()).collect(), next: 0 }
    }

    /// Sets or moves a deadline.
    pub(super) fn set(&mut self, key: K, at: Moment) {
        if self.deadlines.insert(key, at).is_none_or(|before| at < before) {
            self.put(key, at);
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
        self.deadlines.get(&key).copied()
    }

    pub(super) fn remove(&mut self, key: K) {
        self.deadlines.remove(&key);
    }

    pub(super) fn clear(&mut self) {
        self.deadlines.clear();
        self.slots.iter_mut().for_each(Vec::clear);
    }

    fn put(&mut self, key: K, at: Moment) {
        // Rounded up, so that nothing is due before its time.
        let tick = u64::try_from(at.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX).max(self.next);
        self.slots[(tick % SLOTS as u64) as usize].push(key);
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
        let mut due = Vec::new();
        // One turn visits every slot, however long the last call is ago.
        for _ in 0..SLOTS.min((last + 1).saturating_sub(self.next) as usize) {
            let slot = std::mem::take(&mut self.slots[(self.next % SLOTS as u64) as usize]);
            self.next += 1;
            for key in slot {
                match self.deadlines.get(&key).copied() {
                    Some(at) if at <= now => {
                        self.deadlines.remove(&key);
                        due.push(key);
                    }
                    Some(at) => self.put(key, at),
                    None => {}
                }
            }
        }
        self.next = self.next.max(last + 1);
        due
    }
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
}
