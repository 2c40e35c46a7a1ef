//! Opening and ending sessions.

use super::claims::Touched;
use super::{ClaimState, Machine, Session};
use crate::list::List;
use crate::slab::Slot;
use crate::{Answer, Departure, Ending, Event, Events, Label, Limit, Refusal, SessionEnd, SessionId, Ttl};

impl Machine {
    pub(super) fn open_session(
        &mut self,
        id: SessionId,
        ttl: Ttl,
        label: Label,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        self.limits.at_least(Limit::TtlMinMs, ttl.as_ms())?;
        self.limits.at_most(Limit::TtlMaxMs, ttl.as_ms())?;
        self.check_label(&label)?;
        self.limits.at_most(Limit::Sessions, u64::from(self.sessions.len()) + 1)?;
        if self.find_session(id).is_some() {
            return Err(Refusal::SessionExists { session: id });
        }
        let session = Session { id, ttl, label, claims: List::EMPTY, locks: 0, answers: None };
        let slot = self.sessions.insert(session);
        self.index_session(slot);
        events.push(Event::SessionOpened { session: id, ttl });
        Ok(Answer::Opened { session: id })
    }

    /// Ends all claims of the session before any waiter is granted. Otherwise the session's own waits could be granted.
    pub(super) fn end_session(
        &mut self,
        id: SessionId,
        how: SessionEnd,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let session = self.session_slot(id)?;
        let mut touched = Touched::new();
        while let Some(claim) = self.sessions[session].claims.head.some() {
            match self.claims[claim].state() {
                ClaimState::Waiting { .. } => {
                    self.leave_queue(claim, Departure::SessionEnded(how), &mut touched, events);
                }
                ClaimState::Held { .. } if how == SessionEnd::Expired && self.delay_of(claim).is_some() => {
                    self.withhold(claim, events);
                }
                ClaimState::Held { .. } => {
                    self.end_grant(claim, Ending::SessionEnded(how), &mut touched, events);
                }
                ClaimState::Withheld { .. } => unreachable!("a withheld claim has no session"),
            }
        }
        self.unindex_session(session);
        self.sessions.remove(session);
        events.push(Event::SessionEnded { session: id, how });
        self.grant_waiters(touched, events);
        Ok(Answer::Done)
    }

    pub(super) fn session_slot(&self, id: SessionId) -> Result<Slot<Session>, Refusal> {
        self.find_session(id).ok_or(Refusal::NoSuchSession { session: id })
    }

    pub(super) fn check_label(&self, label: &Label) -> Result<(), Refusal> {
        self.limits.at_most(Limit::LabelBytes, label.as_str().len() as u64)
    }
}
