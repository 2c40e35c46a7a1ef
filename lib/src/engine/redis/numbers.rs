//! Which of a session's requests may be asked about again. The rules keep what became of those, and of no other.

use std::collections::BTreeMap;

use palisade_core::{LockName, RequestNo};

/// How far behind the newest request one may be that is still asked about.
const WINDOW: u64 = 4096;

/// A request whose fate its client may ask about.
#[derive(Debug)]
struct Open {
    /// The first lock that it is for.
    lock: LockName,
    /// Whether it was sent more than once, so that a copy of it may arrive at any time.
    is_repeated: bool,
}

#[derive(Debug, Default)]
pub(super) struct Numbers {
    open: BTreeMap<u64, Open>,
    highest: u64,
}

impl Numbers {
    pub(super) fn begin(&mut self, number: RequestNo, lock: LockName) {
        self.highest = self.highest.max(number.get());
        let is_repeated = self.open.contains_key(&number.get());
        self.open.insert(number.get(), Open { lock, is_repeated });
    }

    /// Its client knows what became of it, and will not ask again.
    pub(super) fn settle(&mut self, number: RequestNo) {
        self.open.remove(&number.get());
    }

    /// The lock that a request is for, as long as it may be asked about.
    pub(super) fn lock(&self, number: RequestNo) -> Option<LockName> {
        self.open.get(&number.get()).map(|open| open.lock.clone())
    }

    /// The locks of all requests whose outcome is unknown.
    pub(super) fn unsettled_locks(&self) -> Vec<LockName> {
        self.open.values().map(|open| open.lock.clone()).collect()
    }

    /// It is sent again.
    pub(super) fn repeat(&mut self, number: RequestNo) {
        if let Some(open) = self.open.get_mut(&number.get()) {
            open.is_repeated = true;
        }
    }

    /// Whether it was certainly sent once only.
    pub(super) fn is_once(&self, number: RequestNo) -> bool {
        self.open.get(&number.get()).is_some_and(|open| !open.is_repeated)
    }

    /// Nothing below it is asked about again.
    pub(super) fn low(&self) -> u64 {
        let oldest = self.open.first_key_value().map_or(self.highest + 1, |(number, _)| *number);
        oldest.max((self.highest + 1).saturating_sub(WINDOW)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_asked_again_holds_up_what_is_forgotten_but_not_for_ever() {
        let number = |number| RequestNo::new(number).expect("not 0");
        let lock = || LockName::new("lock").expect("a name");
        let mut numbers = Numbers::default();
        assert_eq!(numbers.low(), 1);
        numbers.begin(number(1), lock());
        numbers.begin(number(2), lock());
        numbers.settle(number(2));
        assert_eq!(numbers.low(), 1);
        numbers.settle(number(1));
        assert_eq!(numbers.low(), 3);
        numbers.begin(number(3), lock());
        numbers.begin(number(WINDOW + 10), lock());
        assert_eq!(numbers.low(), 11);
    }
}
