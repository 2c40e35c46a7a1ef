//! The requests of a session that its client may repeat. Redis keeps the outcomes of these requests only.

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::{LockName, RequestNo};

/// How far a request may be behind the newest one and still be repeated.
const WINDOW: u64 = 4096;

#[derive(Debug)]
struct OpenRequest {
    /// The first of its locks.
    lock: LockName,
    sends: u32,
}

#[derive(Debug, Default)]
pub struct RequestNumbers {
    open: BTreeMap<u64, OpenRequest>,
    /// The locks of releases that may not have taken effect.
    unreleased: BTreeSet<LockName>,
    highest: u64,
}

impl RequestNumbers {
    pub(super) fn begin(&mut self, number: RequestNo, lock: &LockName) {
        self.highest = self.highest.max(number.get());
        self.open.entry(number.get()).or_insert_with(|| OpenRequest { lock: lock.clone(), sends: 0 });
    }

    /// Counts that a request is sent.
    pub(super) fn send(&mut self, number: RequestNo) {
        if let Some(request) = self.open.get_mut(&number.get()) {
            request.sends += 1;
        }
    }

    /// Ends a request that will not be repeated: its client knows the outcome.
    pub(super) fn settle(&mut self, number: RequestNo) {
        self.open.remove(&number.get());
    }

    /// The first lock of an open request.
    pub(super) fn lock(&self, number: RequestNo) -> Option<LockName> {
        self.open.get(&number.get()).map(|request| request.lock.clone())
    }

    /// Notes whether a release certainly took effect.
    pub(super) fn note_release(&mut self, lock: &LockName, is_certain: bool) {
        match is_certain {
            true => drop(self.unreleased.remove(lock)),
            false => drop(self.unreleased.insert(lock.clone())),
        }
    }

    /// The locks that the session may hold although this client has no grant of them.
    pub(super) fn locks(&self) -> Vec<LockName> {
        let open = self.open.values().map(|request| &request.lock);
        open.chain(&self.unreleased).cloned().collect()
    }

    /// Whether a request was sent once only, so that no copy of it can arrive later.
    pub(super) fn was_sent_once(&self, number: RequestNo) -> bool {
        self.open.get(&number.get()).is_some_and(|request| request.sends == 1)
    }

    /// The lowest number that may be repeated.
    pub(super) fn low(&self) -> u64 {
        let oldest = self.open.first_key_value().map_or(self.highest + 1, |(number, _)| *number);
        oldest.max((self.highest + 1).saturating_sub(WINDOW)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_request_keeps_later_outcomes_within_the_window() {
        let number = |number| RequestNo::new(number).expect("not 0");
        let lock = LockName::new("lock").expect("a name");
        let mut numbers = RequestNumbers::default();
        assert_eq!(numbers.low(), 1);
        numbers.begin(number(1), &lock);
        numbers.begin(number(2), &lock);
        numbers.settle(number(2));
        assert_eq!(numbers.low(), 1);
        numbers.settle(number(1));
        assert_eq!(numbers.low(), 3);
        numbers.begin(number(3), &lock);
        numbers.begin(number(WINDOW + 10), &lock);
        assert_eq!(numbers.low(), 11);
    }
}
