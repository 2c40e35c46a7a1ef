//! The part of a member that its application reads: what it owns, and the changes that the application has not seen yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::SessionId;
use tokio::sync::Notify;

use super::{Change, Ownership};
use crate::{BootInstant, Error, Loss};

/// Shared by a member and its task.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    owned: BTreeMap<u32, Ownership>,
    /// At most three per partition: a loss, the next gain, and that it is about to be lost.
    changes: VecDeque<Change>,
    status: Status,
    /// Why the member has ended; the error is taken by the first reader.
    end: Option<Option<Error>>,
}

/// The group as a member sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) session: Option<SessionId>,
    pub(super) members: u32,
    pub(super) without_room: u32,
}

/// Whether the application has seen a gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    No,
}

/// The next item for the application.
pub(super) enum Next {
    Change(Change),
    Ended(Option<Error>),
}

impl Inbox {
    pub(super) fn gained(&self, ownership: Ownership) {
        let mut state = self.state();
        state.owned.insert(ownership.partition(), ownership.clone());
        state.changes.push_back(Change::Gained(ownership));
        drop(state);
        self.changed.notify_one();
    }

    pub(super) fn losing(&self, partition: u32, deadline: BootInstant) {
        self.state().changes.push_back(Change::Losing { partition, deadline });
        self.changed.notify_one();
    }

    /// Notes that the member does not own the partition any more, unless the application has released it just now. A gain that
    /// the application has not seen yet is withdrawn instead.
    pub(super) fn lost(&self, ownership: &Ownership, loss: Loss) {
        if self.forget(ownership) == Some(Seen::Yes) {
            self.state().changes.push_back(Change::Lost { partition: ownership.partition(), loss });
            self.changed.notify_one();
        }
    }

    /// Notes that the partition was released. Returns whether the application has seen its gain; `None` if it was noted
    /// before.
    pub(super) fn forget(&self, ownership: &Ownership) -> Option<Seen> {
        let mut state = self.state();
        let partition = ownership.partition();
        // The member may own the partition again, with another token.
        state.owned.get(&partition).filter(|owned| owned.granted_token() == ownership.granted_token())?;
        state.owned.remove(&partition);
        let mut seen = Seen::Yes;
        state.changes.retain(|change| match change {
            Change::Gained(gained) if gained.partition() == partition => {
                seen = Seen::No;
                false
            }
            Change::Losing { partition: losing, .. } => *losing != partition,
            Change::Gained(_) | Change::Lost { .. } => true,
        });
        Some(seen)
    }

    pub(super) fn set_status(&self, status: Status) {
        self.state().status = status;
    }

    pub(super) fn status(&self) -> Status {
        self.state().status
    }

    pub(super) fn owned(&self) -> Vec<Ownership> {
        self.state().owned.values().cloned().collect()
    }

    pub(super) fn get(&self, partition: u32) -> Option<Ownership> {
        self.state().owned.get(&partition).cloned()
    }

    /// Ends the stream, after the changes that are left. Only the first call counts.
    pub(super) fn end(&self, error: Option<Error>) {
        self.state().end.get_or_insert(error);
        self.changed.notify_one();
    }

    /// Waits for the next change.
    pub(super) async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<Next> {
        let mut state = self.state();
        match state.changes.pop_front() {
            Some(change) => Some(Next::Change(change)),
            None => state.end.as_mut().map(|end| Next::Ended(end.take())),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
