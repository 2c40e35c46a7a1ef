//! Locks by resource within one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use palisade_core::LockName;
use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

/// One mutex per resource that is in use.
#[derive(Debug, Default)]
pub(super) struct ResourceLocks {
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    by_name: HashMap<LockName, Weak<Queue<()>>>,
    /// The size at which unused mutexes are removed.
    prune_at: usize,
}

impl ResourceLocks {
    /// Waits for the lock of this resource, first come, first served.
    pub(super) async fn lock(&self, resource: &LockName) -> OwnedMutexGuard<()> {
        let queue = self.queue(resource);
        queue.lock_owned().await
    }

    fn queue(&self, resource: &LockName) -> Arc<Queue<()>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.by_name.get(resource).and_then(Weak::upgrade) {
            return queue;
        }
        if queues.by_name.len() >= queues.prune_at {
            queues.by_name.retain(|_, queue| queue.strong_count() > 0);
            queues.prune_at = queues.by_name.len() * 2 + 16;
        }
        let queue = Arc::new(Queue::new(()));
        queues.by_name.insert(resource.clone(), Arc::downgrade(&queue));
        queue
    }
}
