//! Limits on bytes that clients have not read yet: in total, and for each user.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One user has at most this part of a total: a quarter.
pub(crate) const SHARE: usize = 4;
/// The smallest fair share, in bytes: a client with fewer unread bytes is never disconnected because of the total.
const LEAST: usize = 4 << 10;

/// The unread bytes of all clients, over both protocols.
#[derive(Debug)]
pub(crate) struct Unread {
    most: usize,
    /// The fair share of one client: the limit divided by the number of clients.
    fair: usize,
    total: Arc<AtomicUsize>,
    users: Mutex<HashMap<Arc<str>, Arc<AtomicUsize>>>,
}

/// The unread bytes of one client, and of its user.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    unread: Arc<Unread>,
    user: Option<Arc<AtomicUsize>>,
}

/// Bytes on an account, until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Account,
    bytes: usize,
}

impl Unread {
    pub(crate) fn new(most: usize, clients: usize) -> Arc<Unread> {
        let fair = (most / clients.max(1)).max(LEAST);
        Arc::new(Unread { most, fair, total: Arc::default(), users: Mutex::default() })
    }

    /// Returns an account of this user, or of a client without a user.
    pub(crate) fn account(self: &Arc<Self>, user: Option<&str>) -> Account {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() > 64 {
            users.retain(|_, sum| Arc::strong_count(sum) > 1);
        }
        let user = user.map(|user| users.entry(user.into()).or_default().clone());
        Account { unread: self.clone(), user }
    }
}

impl Account {
    /// Returns the fair share, up to which bytes need not be charged.
    pub(crate) fn fair(&self) -> usize {
        self.unread.fair
    }

    /// Returns whether a client with this many unread bytes exceeds its fair share while the total, or its user's part
    /// of it, exceeds the limit.
    pub(crate) fn is_over(&self, bytes: usize) -> bool {
        let Unread { most, fair, total, .. } = &*self.unread;
        let sum = |sum: &AtomicUsize| sum.load(Ordering::Relaxed);
        bytes > *fair && (sum(total) > *most || self.user.as_ref().is_some_and(|user| sum(user) > *most / SHARE))
    }

    pub(crate) fn charge(&self, bytes: usize) -> Charge {
        let mut charge = Charge { account: self.clone(), bytes: 0 };
        charge.set(bytes);
        charge
    }
}

impl Charge {
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        for sum in [Some(&self.account.unread.total), self.account.user.as_ref()].into_iter().flatten() {
            // The difference wraps as the sum does.
            sum.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_exceeds_its_share_only_when_the_total_is_exceeded() {
        let unread = Unread::new(1 << 20, 100);
        let (alice, bob, other) = (unread.account(Some("alice")), unread.account(Some("bob")), unread.account(None));
        let mut charge = alice.charge(200 << 10);
        assert!(!alice.is_over(200 << 10));
        charge.set(300 << 10);
        assert!(alice.is_over(300 << 10), "more than a quarter");
        assert!(!alice.is_over(5 << 10), "a small backlog is no offence");
        assert!(!bob.is_over(300 << 10), "another user has its own share");
        let more = other.charge(800 << 10);
        assert!(bob.is_over(20 << 10), "all together have too much");
        drop((charge, more));
        assert!(!alice.is_over(usize::MAX) && !bob.is_over(usize::MAX));
    }
}
