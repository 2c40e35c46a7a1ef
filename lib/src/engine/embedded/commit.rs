//! Group commit: all requests that are queued become one row of the log, with one flush.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};

use super::batch::{BatchBuilder, LogRequest, PreparedBatch};
use super::error::StoreError;
use super::log::{Appended, Batch, Durability, Log, Sizes, Transaction};
use super::log_lock::LogLock;
use super::replica::Replica;
use super::reply::{CommitError, PendingRequest, Reply, fail};
use super::state::State;
use super::wake_file::WakeFiles;
use crate::engine::{Failure, Unavailable};

/// The requests that wait for the next commit.
#[derive(Default)]
pub(super) struct CommitQueue {
    pending: RefCell<Vec<PendingRequest>>,
    filled: Notify,
}

impl CommitQueue {
    /// Queues a request and waits for its reply.
    pub(super) async fn submit(&self, request: LogRequest) -> Result<Reply, Failure> {
        let (reply, replied) = oneshot::channel();
        self.pending.borrow_mut().push(PendingRequest { request, reply });
        self.filled.notify_one();
        replied.await.unwrap_or_else(|_| Err(Unavailable::new("the engine was closed meanwhile").into()))
    }

    /// Takes the requests whose callers still wait.
    fn take(&self) -> Vec<PendingRequest> {
        let mut pending = std::mem::take(&mut *self.pending.borrow_mut());
        pending.retain(|pending| !pending.reply.is_closed());
        pending
    }
}

/// The task that commits the queued requests.
pub(super) struct Committer {
    pub(super) queue: Rc<CommitQueue>,
    pub(super) log_lock: LogLock,
    pub(super) wake_files: Rc<WakeFiles>,
    pub(super) state: Rc<RefCell<State>>,
    /// Notified after every commit.
    pub(super) changed: Rc<Notify>,
}

impl Committer {
    pub(super) async fn run(self) {
        loop {
            self.queue.filled.notified().await;
            // Callers that are ready to run join this commit.
            tokio::task::yield_now().await;
            if self.queue.pending.borrow().is_empty() {
                continue;
            }
            match self.log_lock.acquire().await {
                Ok(guard) => {
                    let pending = self.queue.take();
                    let mut state = self.state.borrow_mut();
                    let written = state.write(&self.wake_files, pending.iter().map(|pending| &pending.request));
                    drop(guard);
                    state.reply(&self.wake_files, pending, written);
                }
                Err(error) => fail(self.queue.take(), &error.into()),
            }
            self.changed.notify_one();
        }
    }
}

impl State {
    /// Applies requests and makes the result durable. The caller has the log's lock.
    fn write<'r>(
        &mut self,
        wake_files: &WakeFiles,
        mut requests: impl Iterator<Item = &'r LogRequest> + Clone,
    ) -> Result<PreparedBatch, CommitError> {
        let log = self.log.clone();
        log.check_files()?;
        // No transaction is needed to read: the log's lock excludes other writers.
        self.apply_new_rows(&log)?;
        let issued = self.replica.machine.last_token();
        let prepared = BatchBuilder::new(&mut self.replica, &mut self.leases, wake_files).build(requests.clone());
        if prepared.batch.commands.is_empty() {
            return Ok(prepared);
        }
        // A release that grants the lock to a waiter issues a token, which must be durable.
        let may_defer = requests.all(|request| request.may_defer_flush(&self.leases))
            && self.replica.machine.last_token() == issued;
        let durability = if may_defer { Durability::Deferred } else { Durability::Flushed };
        let reserved = log.reserve(self.replica.machine.last_token());
        let begun = reserved.and_then(|()| log.begin(durability));
        match begun.and_then(|transaction| append(&log, &self.replica, &prepared.batch, transaction)) {
            Ok((appended, sizes)) => self.record_append(appended, sizes),
            Err(error) => self.resolve_failed_commit(&log, error, &prepared)?,
        }
        for (session, ttl) in &prepared.opened {
            self.leases.start(*session, *ttl);
        }
        Ok(prepared)
    }

    pub(super) fn record_append(&mut self, appended: Appended, sizes: Option<Sizes>) {
        self.replica.advance(appended);
        self.replica.sizes = sizes.unwrap_or(self.replica.sizes);
        self.log.record_issued(self.replica.machine.last_token());
    }

    /// Checks whether a commit that failed is in the log nevertheless. If not, the replica is ahead of the log and is
    /// loaded again.
    fn resolve_failed_commit(
        &mut self,
        log: &Log,
        error: StoreError,
        prepared: &PreparedBatch,
    ) -> Result<(), CommitError> {
        let found = log.find(self.replica.applied + 1, &prepared.batch);
        if let Ok(Some(appended)) = found {
            self.record_append(appended, None);
            return Ok(());
        }
        let reloaded = log.read().and_then(|_transaction| Replica::load(log, self.replica.settings));
        match (reloaded, &found) {
            (Ok(replica), Ok(_)) => self.replica = replica,
            _ => self.needs_reload = true,
        }
        for (session, _) in &prepared.opened {
            self.leases.remove(*session);
        }
        let may_have_taken_effect = found.is_err() || !error.rules_out_commit();
        Err(CommitError { error, may_have_taken_effect })
    }
}

/// Appends a batch and commits it. Also returns the log's size, if it was measured.
pub(super) fn append(
    log: &Log,
    replica: &Replica,
    batch: &Batch,
    transaction: Transaction<'_>,
) -> Result<(Appended, Option<Sizes>), StoreError> {
    let appended = log.append(replica.applied + 1, batch)?;
    let sizes = replica.compact(log, appended)?;
    log.commit(transaction)?;
    Ok((appended, sizes))
}
