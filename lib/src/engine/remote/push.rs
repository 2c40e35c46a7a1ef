//! Messages of a store that are not replies.

use palisade_core::{Ending, Event, Refusal, RequestNo, SessionEnd, SessionId, Token};

use super::{Backend, ClientState};

/// A message of a store that is not a reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Push {
    /// A waiting acquire was granted or refused.
    WaitEnded {
        session: SessionId,
        number: RequestNo,
        outcome: Result<Token, Refusal>,
    },
    /// A grant ended without a release.
    GrantEnded {
        session: SessionId,
        token: Token,
        how: Ending,
    },
    SessionEnded {
        session: SessionId,
        how: SessionEnd,
    },
    /// An event of a watched lock.
    Event(Box<Event>),
    /// Events are missing.
    Missed,
}

impl<B: Backend> ClientState<B> {
    /// Passes a push on to the session, wait or watch that it is for.
    pub(crate) fn handle_push(&self, push: Push) {
        match push {
            Push::WaitEnded { session, number, outcome } => {
                self.settle((session, number), outcome.map_err(Into::into));
            }
            Push::GrantEnded { session, token, how } => self.grant_ended(session, token, how),
            Push::SessionEnded { session, how } => self.session_ended(session, how),
            Push::Event(event) => self.watchers.borrow_mut().tell(std::slice::from_ref(&event)),
            Push::Missed => self.note_missed_events(),
        }
    }
}
