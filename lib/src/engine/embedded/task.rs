//! Tasks that end with their owner.

use tokio::task::JoinHandle;

/// A task that is aborted when this is dropped.
pub(super) struct Task(JoinHandle<()>);

impl Task {
    pub(super) fn spawn(work: impl Future<Output = ()> + 'static) -> Task {
        Task(tokio::task::spawn_local(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
