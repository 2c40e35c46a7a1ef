//! Local queues, for engines that serve whoever asks at the right moment: of all tasks here that wait for one lock,
//! one asks the engine, and the others wait for it in the order in which they came.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use palisade_core::LockName;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The queues of one client.
#[derive(Clone, Default)]
pub(super) struct Gates {
    queues: Rc<RefCell<HashMap<LockName, Arc<Mutex<()>>>>>,
}

/// The turn to ask the engine for some locks. Dropping it lets the next one ask.
pub(super) struct Turn {
    _turns: Vec<(OwnedMutexGuard<()>, Place)>,
}

impl Gates {
    /// Waits for the turn to ask for these locks.
    ///
    /// # Cancellation
    ///
    /// Gives up the place in the queues.
    pub(super) async fn turn(&self, locks: impl IntoIterator<Item = LockName>) -> Turn {
        let mut locks: Vec<_> = locks.into_iter().collect();
        // In one order for all, so that no two wait for each other.
        locks.sort_unstable();
        locks.dedup();
        let mut turns = Vec::new();
        for lock in locks {
            let place = self.place(lock);
            turns.push((place.queue.clone().lock_owned().await, place));
        }
        Turn { _turns: turns }
    }

    fn place(&self, lock: LockName) -> Place {
        let queue = self.queues.borrow_mut().entry(lock.clone()).or_default().clone();
        Place { gates: self.clone(), lock, queue }
    }
}

/// A place in a queue, or at its front. The last one to leave takes the queue away.
struct Place {
    gates: Gates,
    lock: LockName,
    queue: Arc<Mutex<()>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // One is the map's, one is ours.
        if Arc::strong_count(&self.queue) <= 2 {
            self.gates.queues.borrow_mut().remove(&self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn turns_come_in_order_and_leave_nothing_behind() {
        let gates = Gates::default();
        let first = gates.turn([name("a"), name("b")]).now_or_never().expect("nobody is before it");
        let mut second = Box::pin(gates.turn([name("b")]));
        let mut third = Box::pin(gates.turn([name("b"), name("a")]));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(gates.turn([name("c")]).now_or_never().is_some());
        drop(first);
        let second = second.now_or_never().expect("its turn has come");
        assert!(third.as_mut().now_or_never().is_none());
        drop(third);
        drop(second);
        assert!(gates.queues.borrow().is_empty());
    }
}
