//! The uncontended fast path: acquires of one exclusive lock, and their releases. Requests that one session sends
//! at the same time share a call.

use std::cell::RefCell;

use palisade_core::{LockName, Patience, RequestNo, SessionId, Token};
use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::error::CallError;
use super::wire::{ALL, patience_word};

/// The most requests in one call. Redis serves no other client during a call.
const LARGEST_BATCH: usize = 128;

#[derive(Debug, Clone)]
pub(super) struct FastRequest {
    pub(super) session: SessionId,
    /// The lowest request number that the session may repeat.
    pub(super) lowest_repeatable: u64,
    pub(super) lock: LockName,
    pub(super) operation: FastOperation,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum FastOperation {
    Acquire(RequestNo, Patience),
    /// Releases a grant whose acquire was sent only once.
    Release(Token),
}

impl FastRequest {
    pub(super) fn name(&self) -> &'static str {
        match self.operation {
            FastOperation::Acquire(..) => "acquire",
            FastOperation::Release(_) => "release",
        }
    }

    /// Appends the arguments of a request that is sent in a separate call.
    pub(super) fn write(&self, call: &mut Cmd) {
        call.arg(self.session.get());
        match self.operation {
            FastOperation::Acquire(number, patience) => {
                let patience = format!("{}.{}", patience_word(patience), self.lowest_repeatable);
                call.arg(number.get()).arg(patience).arg("queue").arg("").arg("");
                call.arg(self.lock.as_str()).arg(ALL).arg(ALL);
            }
            FastOperation::Release(token) => {
                call.arg(self.lowest_repeatable).arg(self.lock.as_str()).arg(token.get()).arg("once");
            }
        }
    }

    /// Appends the arguments of a request in a batch.
    fn write_batched(&self, call: &mut Cmd) {
        let (word, number) = match self.operation {
            FastOperation::Acquire(number, patience) => (patience_word(patience), number.get()),
            FastOperation::Release(token) => ("once", token.get()),
        };
        call.arg(word).arg(self.lock.as_str()).arg(number);
    }
}

/// A request that waits to be sent.
pub(super) struct PendingRequest {
    pub(super) request: FastRequest,
    pub(super) reply: oneshot::Sender<Result<Value, CallError>>,
}

/// Appends the arguments of a batch. All its requests belong to one session.
pub(super) fn write_batch(batch: &[PendingRequest], call: &mut Cmd) {
    let lowest_repeatable = batch.iter().map(|pending| pending.request.lowest_repeatable).min();
    call.arg(batch[0].request.session.get()).arg(lowest_repeatable);
    batch.iter().for_each(|pending| pending.request.write_batched(call));
}

/// The requests that wait to be sent.
#[derive(Default)]
pub(super) struct SendQueue(RefCell<Vec<PendingRequest>>);

impl SendQueue {
    /// Adds a request. Returns whether the queue was empty, and the receiver of the reply.
    pub(super) fn push(&self, request: FastRequest) -> (bool, oneshot::Receiver<Result<Value, CallError>>) {
        let (reply, replied) = oneshot::channel();
        let mut queue = self.0.borrow_mut();
        queue.push(PendingRequest { request, reply });
        (queue.len() == 1, replied)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Removes the next requests that one call can send.
    pub(super) fn next_batch(&self) -> Vec<PendingRequest> {
        let mut queue = self.0.borrow_mut();
        let Some(session) = queue.first().map(|first| first.request.session) else { return Vec::new() };
        let batch = queue.iter().take(LARGEST_BATCH).take_while(|pending| pending.request.session == session);
        let batch = batch.count();
        let rest = queue.split_off(batch);
        std::mem::replace(&mut queue, rest)
    }
}
