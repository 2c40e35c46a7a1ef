//! Commands of operators and hosts: force-release, resize, end a lock-delay, raise tokens, set limits.

use std::sync::Arc;

use super::claims::Touched;
use super::state::{ALL, at_lock};
use super::{Claim, ClaimState, Machine};
use crate::slab::Slot;
use crate::{Answer, Departure, Ending, Event, Events, Force, Kind, Label, Limits, LockName, Refusal, Token};

impl Machine {
    pub(super) fn force_release(
        &mut self,
        lock: &LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        self.check_label(&by)?;
        self.check_label(&reason)?;
        if reason.as_str().trim().is_empty() {
            return Err(Refusal::NoReason { lock: lock.clone() });
        }
        let claims = self.claims_to_force(lock, only)?;
        let moved_to = self.next_token()?;
        let force = Arc::new(Force { by, reason, moved_to });
        let mut touched = Touched::new();
        for claim in &claims {
            if let ClaimState::Held { .. } = self.claims[*claim].state() {
                self.remember_grant(*claim);
                self.end_grant(*claim, Ending::Forced(force.clone()), &mut touched, events);
            } else {
                self.end_withheld(*claim, Some(force.clone()), &mut touched, events);
            }
        }
        self.grant_waiters(touched, events);
        Ok(Answer::Forced { grants: claims.len() as u32, moved_to })
    }

    fn claims_to_force(&self, lock: &LockName, only: Option<Token>) -> Result<Vec<Slot<Claim>>, Refusal> {
        if let Some(token) = only {
            return Ok(vec![self.claim_with_token(lock, token)?]);
        }
        let slot = self.find_lock(lock).filter(|slot| !self.locks[*slot].holders.is_empty());
        let holders = self.locks[slot.ok_or_else(|| Refusal::NoHolder { lock: lock.clone() })?].holders;
        Ok(holders.iter(&self.entries, at_lock).map(|entry| self.entries[entry].claim).collect())
    }

    pub(super) fn resize(&mut self, lock: LockName, limit: u32, events: &mut Events) -> Result<Answer, Refusal> {
        let slot = self.find_lock(&lock).ok_or_else(|| Refusal::NoSuchLock { lock: lock.clone() })?;
        let kind = self.locks[slot].kind();
        if kind == Kind::Lock {
            return Err(Refusal::WrongKind { lock, is: kind, asked: Kind::Semaphore { limit } });
        }
        if limit == 0 || limit == ALL {
            return Err(Refusal::BadLimit { limit });
        }
        self.locks[slot].limit = limit;
        events.push(Event::Resized { lock: lock.clone(), limit });
        let mut touched = Touched::from_elem(slot, 1);
        let queue = self.locks[slot].queue.iter(&self.entries, at_lock);
        let too_large: Vec<_> = queue.filter(|entry| self.entries[*entry].need > limit).collect();
        for claim in too_large.into_iter().map(|entry| self.entries[entry].claim).collect::<Vec<_>>() {
            let refusal = Refusal::ResizedBelow { lock: lock.clone(), limit };
            let Claim { session, number, fingerprint, .. } = self.claims[claim];
            self.leave_queue(claim, Departure::Refused(refusal.clone()), &mut touched, events);
            if let Some(number) = number {
                self.remember(session, number, fingerprint, Err(refusal));
            }
        }
        self.grant_waiters(touched, events);
        Ok(Answer::Done)
    }

    pub(super) fn end_delay(
        &mut self,
        lock: &LockName,
        token: Token,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let claim = self.claim_with_token(lock, token)?;
        if let ClaimState::Held { .. } = self.claims[claim].state() {
            return Err(Refusal::NotWithheld { lock: lock.clone(), token });
        }
        let mut touched = Touched::new();
        self.end_withheld(claim, None, &mut touched, events);
        self.grant_waiters(touched, events);
        Ok(Answer::Done)
    }

    fn end_withheld(
        &mut self,
        claim: Slot<Claim>,
        force: Option<Arc<Force>>,
        touched: &mut Touched,
        events: &mut Events,
    ) {
        let (locks, token) = (self.locks_of(claim), self.token_of(claim));
        self.free_permits(claim, touched);
        events.push(Event::DelayEnded { locks, token, force });
    }

    pub(super) fn raise_tokens(&mut self, above: Token, events: &mut Events) -> Answer {
        let last = self.last_token;
        if above.get() > last {
            self.last_token = above.get();
            events.push(Event::TokensRaised { above });
        }
        Answer::Raised { last }
    }

    pub(super) fn configure(&mut self, limits: Limits, events: &mut Events) -> Answer {
        self.limits = limits.clone();
        events.push(Event::Configured { limits });
        Answer::Done
    }
}
