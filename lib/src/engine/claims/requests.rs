//! The acquires of a session that are under way or granted.

#[cfg(feature = "etcd")]
use std::collections::BTreeSet;
use std::collections::HashMap;

use palisade_core::{Acquire, LockName, RequestNo};

/// The acquires of a session whose outcome may still be asked for.
#[derive(Default)]
pub struct Requests {
    requests: HashMap<RequestNo, Request>,
    /// The places of each lock that may be in use.
    #[cfg(feature = "etcd")]
    places: HashMap<LockName, BTreeSet<u64>>,
}

/// An acquire.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) locks: Vec<LockName>,
    /// The place in the keys of its claim.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "in Consul it is the number"))]
    pub(crate) place: u64,
    /// How many transactions that create its claim are under way.
    under_way: u32,
    /// Whether one of them was not answered.
    is_one_lost: bool,
    /// The revision that created its claim, as far as it is known.
    pub(crate) revision: i64,
}

impl Request {
    /// Whether a copy of it may still arrive and create a claim.
    pub(crate) fn may_arrive_late(&self) -> bool {
        self.is_one_lost || self.under_way > 0
    }
}

impl Requests {
    /// Begins an acquire whose place is its number: its keys are used once.
    #[cfg(feature = "consul")]
    pub(crate) fn begin(&mut self, number: RequestNo, acquire: &Acquire) {
        let locks = locks(acquire);
        self.requests.entry(number).or_insert(Request { locks, place: number.get(), ..Request::default() });
    }

    /// Begins an acquire in the lowest place that is free at all its locks, so that the keys of earlier claims are used again.
    #[cfg(feature = "etcd")]
    pub(crate) fn begin_in_free_place(&mut self, number: RequestNo, acquire: &Acquire) {
        if self.requests.contains_key(&number) {
            return;
        }
        let locks = locks(acquire);
        let is_free =
            |place: &u64| !locks.iter().any(|lock| self.places.get(lock).is_some_and(|used| used.contains(place)));
        let place = (0..).find(is_free).unwrap_or(u64::MAX);
        for lock in &locks {
            self.places.entry(lock.clone()).or_default().insert(place);
        }
        self.requests.insert(number, Request { locks, place, ..Request::default() });
    }

    /// Frees the place of an acquire that was refused, unless a copy of it may still arrive.
    #[cfg(feature = "etcd")]
    pub(crate) fn free_place_of(&mut self, number: RequestNo) {
        if let Some(request) = self.get(number).filter(|request| !request.may_arrive_late()) {
            self.free_place(&request);
        }
    }

    /// Frees the place of an acquire whose claim is deleted and cannot be created any more.
    #[cfg(feature = "etcd")]
    pub(crate) fn free_place(&mut self, request: &Request) {
        for lock in &request.locks {
            if let Some(places) = self.places.get_mut(lock) {
                places.remove(&request.place);
                if places.is_empty() {
                    self.places.remove(lock);
                }
            }
        }
    }

    pub(crate) fn end(&mut self, number: RequestNo) {
        self.requests.remove(&number);
    }

    pub(crate) fn get(&self, number: RequestNo) -> Option<Request> {
        self.requests.get(&number).cloned()
    }

    /// Returns the place of an acquire.
    #[cfg(feature = "etcd")]
    pub(crate) fn place(&self, number: RequestNo) -> u64 {
        self.requests.get(&number).map_or(number.get(), |request| request.place)
    }

    pub(crate) fn is_under_way(&self, number: RequestNo) -> bool {
        self.requests.get(&number).is_some_and(|request| request.under_way > 0)
    }

    pub(crate) fn note_sent(&mut self, number: RequestNo) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.under_way += 1;
        }
    }

    pub(crate) fn note_end(&mut self, number: RequestNo, is_answered: bool) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.under_way -= 1;
            request.is_one_lost |= !is_answered;
        }
    }

    pub(crate) fn note_claim(&mut self, number: RequestNo, revision: i64) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.revision = revision;
        }
    }
}

impl Request {
    /// The acquire of a grant that another client made.
    pub(crate) fn of(claim: &super::stored::Claim) -> Request {
        let mut locks: Vec<_> = claim.locks().into_iter().collect();
        locks.sort_unstable();
        Request { locks, place: claim.place, revision: claim.revision, ..Request::default() }
    }
}

fn locks(acquire: &Acquire) -> Vec<LockName> {
    let mut locks: Vec<_> = acquire.wants.iter().map(|want| want.lock.clone()).collect();
    locks.sort_unstable();
    locks
}
