//! The request numbers of a session. Redis keeps the outcomes of those requests only that the client may repeat.

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::{LockName, RequestNo};

/// How many numbers below the newest one may still be repeated. It bounds the outcomes that Redis keeps for a session.
const WINDOW: u64 = 4096;

#[derive(Debug)]
struct OpenRequest {
    /// The first of its locks.
    lock: LockName,
    /// How often it was sent.
    sends: u32,
}

/// The open requests of a session, and the locks that it may hold without a grant here.
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

    /// Removes a request that will not be repeated, because its caller has the outcome.
    pub(super) fn settle(&mut self, number: RequestNo) {
        self.open.remove(&number.get());
    }

    /// The first lock of an open request.
    pub(super) fn lock(&self, number: RequestNo) -> Option<LockName> {
        self.open.get(&number.get()).map(|request| request.lock.clone())
    }

    /// Notes whether the outcome of a release is certain.
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

    /// Whether a request was sent only once, so that no late copy of it can arrive.
    pub(super) fn was_never_retried(&self, number: RequestNo) -> bool {
        self.open.get(&number.get()).is_some_and(|request| request.sends == 1)
    }

    /// The lowest number that may be repeated.
    pub(super) fn lowest_repeatable(&self) -> u64 {
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
        assert_eq!(numbers.lowest_repeatable(), 1);
        numbers.begin(number(1), &lock);
        numbers.begin(number(2), &lock);
        numbers.settle(number(2));
        assert_eq!(numbers.lowest_repeatable(), 1);
        numbers.settle(number(1));
        assert_eq!(numbers.lowest_repeatable(), 3);
        numbers.begin(number(3), &lock);
        numbers.begin(number(WINDOW + 10), &lock);
        assert_eq!(numbers.lowest_repeatable(), 11);
    }
}
