//! Commands of holders and waiters: release, cancel, publish.

use super::claims::Touched;
use super::state::AnsweredRequest;
use super::{Claim, ClaimState, Machine};
use crate::slab::Slot;
use crate::{
    Answer, Caller, Departure, Ending, Event, Events, Limit, LockName, Mode, Refusal, Ticket, Token, Value, Waiting,
};

impl Machine {
    pub(super) fn release(
        &mut self,
        caller: Option<Caller>,
        lock: &LockName,
        token: Token,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let claim = match caller {
            Some(caller) => self.held_claim_of(caller, lock, token)?,
            None => self.held_claim(lock, token)?,
        };
        let mut touched = Touched::new();
        self.remember_grant(claim);
        self.end_grant(claim, Ending::Released, &mut touched, events);
        self.grant_waiters(touched, events);
        Ok(Answer::Done)
    }

    pub(super) fn cancel(
        &mut self,
        caller: Caller,
        waiting: Waiting,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let session = self.session_slot(caller.session)?;
        if let (Some(number), Waiting::Request(other)) = (caller.number, waiting)
            && number == other
        {
            return Err(Refusal::NumberReused { number });
        }
        let claim = match waiting {
            Waiting::Ticket(ticket) => {
                self.find_ticket(ticket).filter(|claim| self.claims[*claim].session == session)
            }
            Waiting::Request(number) => self.find_request(session, number),
        };
        match (claim, waiting) {
            (Some(claim), _) => self.cancel_claim(claim, events),
            (None, Waiting::Ticket(_)) => Err(Refusal::NotWaiting),
            (None, Waiting::Request(number)) => match self.find_answered(session, number) {
                Some(AnsweredRequest { answer: Err(refusal), .. })
                    if matches!(**refusal, Refusal::Withdrawn { .. }) =>
                {
                    Ok(Answer::Done)
                }
                Some(_) => Err(Refusal::NotWaiting),
                None if self.is_forgotten(session, number) => Err(Refusal::NumberForgotten { number }),
                None => {
                    self.remember(session, number, 0, Err(Refusal::Withdrawn { number }));
                    Ok(Answer::Done)
                }
            },
        }
    }

    fn cancel_claim(&mut self, claim: Slot<Claim>, events: &mut Events) -> Result<Answer, Refusal> {
        let Claim { session, number, fingerprint, .. } = self.claims[claim];
        if let ClaimState::Held { token } | ClaimState::Withheld { token } = self.claims[claim].state() {
            return Err(Refusal::AlreadyGranted { token });
        }
        let mut touched = Touched::new();
        self.leave_queue(claim, Departure::Cancelled, &mut touched, events);
        if let Some(number) = number {
            self.remember(session, number, fingerprint, Err(Refusal::Withdrawn { number }));
        }
        self.grant_waiters(touched, events);
        Ok(Answer::Done)
    }

    pub(super) fn publish(
        &mut self,
        caller: Caller,
        lock: LockName,
        token: Token,
        value: Value,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let claim = self.held_claim_of(caller, &lock, token)?;
        self.limits.at_most(Limit::ValueBytes, value.as_bytes().len() as u64)?;
        let entry = &self.entries[self.claims[claim].first];
        let alone = entry.sibling.is_none() && self.locks[entry.lock].mode(entry.need) == Mode::Exclusive;
        if !alone {
            return Err(Refusal::ValueNotPossible);
        }
        self.claims[claim].extras.get_or_insert_default().value = Some(value.clone());
        events.push(Event::Published { lock, token, value });
        Ok(Answer::Done)
    }

    /// Returns the claim that holds this lock with this token.
    pub(crate) fn held_claim(&self, lock: &LockName, token: Token) -> Result<Slot<Claim>, Refusal> {
        let claim = self.claim_with_token(lock, token)?;
        match self.claims[claim].state() {
            ClaimState::Held { .. } => Ok(claim),
            _ => Err(Refusal::NotHeld { lock: lock.clone(), token }),
        }
    }

    /// Returns the claim that holds this lock with this token, if it is the caller's.
    pub(crate) fn held_claim_of(
        &self,
        caller: Caller,
        lock: &LockName,
        token: Token,
    ) -> Result<Slot<Claim>, Refusal> {
        let session = self.session_slot(caller.session)?;
        let claim = self.held_claim(lock, token)?;
        if self.claims[claim].session != session {
            return Err(Refusal::OtherSession { lock: lock.clone(), token });
        }
        Ok(claim)
    }

    /// Returns the claim that takes this lock with this token, held or withheld.
    pub(super) fn claim_with_token(&self, lock: &LockName, token: Token) -> Result<Slot<Claim>, Refusal> {
        if token.get() > self.last_token {
            return Err(Refusal::NeverGranted { token, last: self.last_token });
        }
        let slot = self.find_lock(lock);
        let claim = slot.and_then(|slot| self.find_token(slot, token));
        claim.ok_or_else(|| Refusal::NotHeld { lock: lock.clone(), token })
    }

    fn find_ticket(&self, ticket: Ticket) -> Option<Slot<Claim>> {
        let slot = Slot::new(ticket.slot);
        let claim = self.claims.get(slot)?;
        (claim.state() == ClaimState::Waiting { arrival: ticket.arrival }).then_some(slot)
    }

    /// Stores the answer to the request of a grant that is about to end.
    pub(super) fn remember_grant(&mut self, claim: Slot<Claim>) {
        let Claim { session, number, fingerprint, .. } = self.claims[claim];
        if let (Some(number), ClaimState::Held { token }) = (number, self.claims[claim].state()) {
            self.remember(session, number, fingerprint, Ok(Answer::Granted { token }));
        }
    }
}
