//! Local queues for engines without fair queues. Of all tasks of this client that wait for one lock, only the
//! first calls the engine. The others queue here in order of arrival.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use palisade_core::LockName;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The queues of one client.
#[derive(Clone, Default)]
pub(super) struct LocalQueues {
    queues: Rc<RefCell<HashMap<LockName, Arc<Mutex<()>>>>>,
}

/// The right to request some locks from the engine. Dropping it passes the right to the next task.
pub(super) struct Turn {
    _turns: Vec<(OwnedMutexGuard<()>, Member)>,
}

impl LocalQueues {
    /// Waits until this task is the first in the queues of all these locks.
    ///
    /// # Cancellation
    ///
    /// Leaves the queues.
    pub(super) async fn turn(&self, locks: impl IntoIterator<Item = LockName>) -> Turn {
        let mut locks: Vec<_> = locks.into_iter().collect();
        // One order for all tasks prevents deadlocks.
        locks.sort_unstable();
        locks.dedup();
        let mut turns = Vec::new();
        for lock in locks {
            let member = self.join(lock);
            turns.push((member.queue.clone().lock_owned().await, member));
        }
        Turn { _turns: turns }
    }

    fn join(&self, lock: LockName) -> Member {
        let queue = self.queues.borrow_mut().entry(lock.clone()).or_default().clone();
        Member { queues: self.clone(), lock, queue }
    }
}

/// A member of a queue. The last one to leave removes the queue.
struct Member {
    queues: LocalQueues,
    lock: LockName,
    queue: Arc<Mutex<()>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        // One reference is the map's, one is this member's.
        if Arc::strong_count(&self.queue) <= 2 {
            self.queues.queues.borrow_mut().remove(&self.lock);
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
    fn turns_come_in_order_and_the_last_one_removes_its_queue() {
        let queues = LocalQueues::default();
        let first = queues.turn([name("a"), name("b")]).now_or_never().expect("the queues are empty");
        let mut second = Box::pin(queues.turn([name("b")]));
        let mut third = Box::pin(queues.turn([name("b"), name("a")]));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(queues.turn([name("c")]).now_or_never().is_some());
        drop(first);
        let second = second.now_or_never().expect("it is next");
        assert!(third.as_mut().now_or_never().is_none());
        drop(third);
        drop(second);
        assert!(queues.queues.borrow().is_empty());
    }
}
