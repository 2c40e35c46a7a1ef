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
        self.check_ttl(ttl)?;
        self.check_session(id, &label)?;
        self.add_session(id, ttl, label, false, events);
        Ok(Answer::Opened { session: id })
    }

    pub(super) fn check_ttl(&self, ttl: Ttl) -> Result<(), Refusal> {
        self.limits.at_least(Limit::TtlMinMs, ttl.as_ms())?;
        self.limits.at_most(Limit::TtlMaxMs, ttl.as_ms())
    }

    /// Checks what a new session needs, except its TTL.
    pub(super) fn check_session(&self, id: SessionId, label: &Label) -> Result<(), Refusal> {
        self.check_label(label)?;
        self.limits.at_most(Limit::Sessions, u64::from(self.sessions.len()) + 1)?;
        match self.find_session(id) {
            Some(_) => Err(Refusal::SessionExists { session: id }),
            None => Ok(()),
        }
    }

    pub(super) fn add_session(
        &mut self,
        id: SessionId,
        ttl: Ttl,
        label: Label,
        is_for_one_request: bool,
        events: &mut Events,
    ) -> Slot<Session> {
        let session = Session { id, ttl, label, claims: List::EMPTY, locks: 0, answers: None, is_for_one_request };
        let slot = self.sessions.insert(session);
        self.index_session(slot);
        events.push(Event::SessionOpened { session: id, ttl });
        slot
    }

    /// Ends all claims of the session before any waiter is granted. Otherwise the session's own waits could be granted.
    pub(super) fn end_session(
        &mut self,
        id: SessionId,
        how: SessionEnd,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let session = self.session_slot(id)?;
        // It ends below, and not with its last claim.
        self.sessions[session].is_for_one_request = false;
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
        self.remove_session(session, how, events);
        self.grant_waiters(touched, events);
        Ok(Answer::Done)
    }

    fn remove_session(&mut self, session: Slot<Session>, how: SessionEnd, events: &mut Events) {
        self.unindex_session(session);
        let Session { id, .. } = self.sessions.remove(session);
        events.push(Event::SessionEnded { session: id, how });
    }

    /// Ends a session that was opened for one request, once that request neither waits nor is held.
    pub(super) fn end_if_done(&mut self, session: Slot<Session>, events: &mut Events) {
        let Session { is_for_one_request, claims, .. } = &self.sessions[session];
        if *is_for_one_request && claims.is_empty() {
            self.remove_session(session, SessionEnd::Closed, events);
        }
    }

    pub(super) fn session_slot(&self, id: SessionId) -> Result<Slot<Session>, Refusal> {
        self.find_session(id).ok_or(Refusal::NoSuchSession { session: id })
    }

    pub(super) fn check_label(&self, label: &Label) -> Result<(), Refusal> {
        self.limits.at_most(Limit::LabelBytes, label.as_str().len() as u64)
    }
}
