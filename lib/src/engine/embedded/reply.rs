//! Replies: after a commit, callers get their answers, subscribers their events, and other processes a wake-up.

use std::collections::BTreeSet;

use palisade_core::{Answer, Command, Ending, Event, Refusal, SessionId};
use tokio::sync::{mpsc, oneshot};

use super::batch::{LogRequest, Outcome, PreparedBatch};
use super::error::StoreError;
use super::state::State;
use super::wake_file::WakeFiles;
use crate::engine::host::Waited;
use crate::engine::{Failure, Notice};

/// The reply to a request.
pub(super) struct Reply {
    pub(super) answer: Result<Answer, Refusal>,
    /// The outcome of the wait, if one began.
    pub(super) wait: Option<oneshot::Receiver<Waited>>,
    /// The notices of the session, if one was opened.
    pub(super) notices: Option<mpsc::UnboundedReceiver<Notice>>,
}

/// A request and the channel of its reply.
pub(super) struct PendingRequest {
    pub(super) request: LogRequest,
    pub(super) reply: oneshot::Sender<Result<Reply, Failure>>,
}

/// A failed commit.
pub(super) struct CommitError {
    pub(super) error: StoreError,
    pub(super) may_have_taken_effect: bool,
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> CommitError {
        CommitError { error, may_have_taken_effect: false }
    }
}

/// Fails all these requests.
pub(super) fn fail(pending: Vec<PendingRequest>, why: &CommitError) {
    for request in pending {
        drop(request.reply.send(Err(why.error.failure(why.may_have_taken_effect))));
    }
}

impl State {
    /// Sends events and replies, in the order of the log. The caller has released the log's lock.
    pub(super) fn reply(
        &mut self,
        wake_files: &WakeFiles,
        pending: Vec<PendingRequest>,
        written: Result<PreparedBatch, CommitError>,
    ) {
        self.send_unsent();
        let PreparedBatch { events, outcomes, .. } = match written {
            Ok(prepared) => prepared,
            Err(why) => {
                self.handle_error(&why.error);
                return fail(pending, &why);
            }
        };
        // A wait is registered before the event is sent that ends it.
        let replies: Vec<_> = pending
            .into_iter()
            .zip(outcomes)
            .map(|(pending, outcome)| (pending.reply, self.subscribe(pending.request, outcome)))
            .collect();
        self.wake_others(wake_files, &events);
        self.send(&events);
        self.remove_files_of_ended(wake_files, &events);
        for (channel, reply) in replies {
            drop(channel.send(reply));
        }
    }

    /// Registers the wait or the session that a request has begun.
    fn subscribe(&mut self, request: LogRequest, outcome: Outcome) -> Result<Reply, Failure> {
        let mut reply = Reply { answer: outcome?, wait: None, notices: None };
        match (&reply.answer, request) {
            (Ok(Answer::Queued { ticket }), LogRequest::Command(Command::Acquire(acquire))) => {
                reply.wait = Some(self.subscriptions.wait(*ticket));
                self.waits.insert(*ticket, acquire);
            }
            (Ok(Answer::Opened { session }), _) => reply.notices = Some(self.subscriptions.subscribe(*session)),
            _ => {}
        }
        Ok(reply)
    }

    /// Wakes the other processes whose sessions these events affect, and those that watch.
    pub(super) fn wake_others(&self, wake_files: &WakeFiles, events: &[Event]) {
        let affected: BTreeSet<_> = events.iter().filter_map(affected_session).collect();
        for session in affected.into_iter().filter(|session| !self.leases.is_own(*session)) {
            wake_files.wake(session);
        }
        if !events.is_empty() {
            wake_files.wake_watchers();
        }
    }

    /// Removes the files of sessions that this process has ended.
    pub(super) fn remove_files_of_ended(&mut self, wake_files: &WakeFiles, events: &[Event]) {
        for event in events {
            if let Event::SessionEnded { session, .. } = event {
                self.leases.remove(*session);
                wake_files.remove(*session);
            }
        }
    }
}

/// Returns the session that an event affects, unless the session caused it.
fn affected_session(event: &Event) -> Option<SessionId> {
    match event {
        Event::Granted { session, ticket: Some(_), .. }
        | Event::LeftQueue { session, .. }
        | Event::SessionEnded { session, .. } => Some(*session),
        Event::GrantEnded { session, how, .. } if *how != Ending::Released => Some(*session),
        _ => None,
    }
}
