//! Commands that name a grant by its secret: extend, release, and an acquire that renews.

use smallvec::SmallVec;

use super::claims::Touched;
use super::{Claim, ClaimState, Lock, Machine};
use crate::slab::Slot;
use crate::{Acquire, Answer, Ending, Event, Events, LockName, Refusal, Secret, Token, Ttl};

/// The grants that a command has found by their secret.
struct Matching {
    /// Each grant once.
    claims: SmallVec<[Slot<Claim>; 1]>,
    /// How many of the command's locks they hold.
    locks: u32,
    /// How many of the command's locks are held otherwise.
    others: u32,
}

impl Matching {
    fn answer(&self) -> Answer {
        Answer::Matched { locks: self.locks, others: self.others }
    }
}

impl Machine {
    pub(super) fn extend_held(
        &mut self,
        locks: &[LockName],
        secret: &Secret,
        ttl: Ttl,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        self.check_ttl(ttl)?;
        let mut matching = self.matching(locks, secret)?;
        self.check_whole(&matching, locks)?;
        if matching.locks as usize == locks.len() {
            for claim in &matching.claims {
                self.change_ttl(*claim, ttl, events);
            }
        } else {
            matching.locks = 0;
        }
        Ok(matching.answer())
    }

    pub(super) fn release_held(
        &mut self,
        locks: &[LockName],
        secret: &Secret,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let matching = self.matching(locks, secret)?;
        self.check_whole(&matching, locks)?;
        let mut touched = Touched::new();
        for claim in &matching.claims {
            self.end_grant(*claim, Ending::Released, &mut touched, events);
        }
        self.grant_waiters(touched, events);
        Ok(matching.answer())
    }

    /// Checks that the command names every lock of the grants that it has found.
    fn check_whole(&self, matching: &Matching, named: &[LockName]) -> Result<(), Refusal> {
        let held = matching.claims.iter().flat_map(|claim| self.locks_of(*claim));
        match held.into_iter().find(|lock| !named.contains(lock)) {
            Some(lock) => Err(Refusal::PartOfGrant { lock }),
            None => Ok(()),
        }
    }

    /// Gives the grant that holds exactly these locks with this secret another TTL, and returns its token.
    pub(super) fn renew(
        &mut self,
        request: &Acquire,
        secret: &Secret,
        ttl: Ttl,
        events: &mut Events,
    ) -> Option<Token> {
        let first = self.find_lock(&request.wants.first()?.lock)?;
        let claim = self.claim_with_secret(first).filter(|claim| self.secret_of(*claim) == Some(secret))?;
        let held = self.locks_of(claim);
        if held.len() != request.wants.len() || request.wants.iter().any(|want| !held.contains(&want.lock)) {
            return None;
        }
        self.change_ttl(claim, ttl, events);
        Some(self.token_of(claim))
    }

    fn change_ttl(&mut self, claim: Slot<Claim>, ttl: Ttl, events: &mut Events) {
        let session = &mut self.sessions[self.claims[claim].session];
        session.ttl = ttl;
        events.push(Event::TtlChanged { session: session.id, ttl });
    }

    /// Returns the grants that hold any of these locks with this secret.
    fn matching(&self, locks: &[LockName], secret: &Secret) -> Result<Matching, Refusal> {
        self.limits.at_most(crate::Limit::LocksPerRequest, locks.len() as u64)?;
        if locks.is_empty() {
            return Err(Refusal::NoLocks);
        }
        let mut matching = Matching { claims: SmallVec::new(), locks: 0, others: 0 };
        for (position, lock) in locks.iter().enumerate() {
            if locks[..position].contains(lock) {
                return Err(Refusal::NamedTwice { lock: lock.clone() });
            }
            let Some(slot) = self.find_lock(lock) else { continue };
            let found = self.claim_with_secret(slot).filter(|claim| self.secret_of(*claim) == Some(secret));
            let Some(claim) = found else {
                matching.others += u32::from(!self.locks[slot].holders.is_empty());
                continue;
            };
            matching.locks += 1;
            if !matching.claims.contains(&claim) {
                matching.claims.push(claim);
            }
        }
        Ok(matching)
    }

    /// Returns the claim that holds the lock with a secret.
    pub(crate) fn claim_with_secret(&self, lock: Slot<Lock>) -> Option<Slot<Claim>> {
        // A secret is for exclusive locks only: such a holder is the only one.
        let claim = self.entries[self.locks[lock].holders.head.some()?].claim;
        let is_held = matches!(self.claims[claim].state(), ClaimState::Held { .. });
        (is_held && self.secret_of(claim).is_some()).then_some(claim)
    }

    pub(crate) fn secret_of(&self, claim: Slot<Claim>) -> Option<&Secret> {
        self.claims[claim].extras.as_ref()?.secret.as_ref()
    }
}
