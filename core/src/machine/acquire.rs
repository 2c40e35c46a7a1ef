//! Acquire: all checks come before the first change.

use smallvec::SmallVec;

use super::state::{ALL, PackedState, at_lock, at_lock_mut, at_session, at_session_mut};
use super::{Claim, ClaimExtras, ClaimState, Lock, LockEntry, Machine, Session};
use crate::list::{Link, List};
use crate::slab::Slot;
use crate::{
    Acquire, Answer, Event, Events, Kind, Limit, Mode, OpenAndAcquire, Patience, Reentry, Refusal, Secret, Ticket,
    Token, Ttl, Want,
};

/// The lock of each want, `NONE` for a lock that is not in use.
type Found = SmallVec<[Slot<Lock>; 1]>;

impl Machine {
    pub(super) fn acquire(
        &mut self,
        request: Acquire,
        fingerprint: u64,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let session = self.session_slot(request.caller.session)?;
        if self.sessions[session].is_for_one_request {
            return Err(Refusal::ForOneRequest { session: request.caller.session });
        }
        self.check_request(&request)?;
        let found = self.find_locks(&request);
        self.check_locks(Some(session), &request, &found)?;
        let free = self.are_free(&request, &found);
        if !free && request.patience == Patience::Try {
            return Ok(Answer::Busy);
        }
        self.check_capacity(self.sessions[session].locks, &request, &found, free)?;
        let state = self.next_state(free)?;
        let claim = self.add_claim(session, &request, None, found, state, fingerprint);
        Ok(self.announce(claim, events))
    }

    /// Opens a session for the request once it is certain that it will be granted or queued.
    pub(super) fn open_and_acquire(
        &mut self,
        request: OpenAndAcquire,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let OpenAndAcquire { ttl, label, secret, renews, acquire } = request;
        if ttl != Ttl::ENDLESS {
            self.check_ttl(ttl)?;
        }
        self.check_session(acquire.caller.session, &label)?;
        self.check_request(&acquire)?;
        if let Some(secret) = &secret {
            self.limits.at_most(Limit::ValueBytes, secret.as_bytes().len() as u64)?;
            if acquire.wants.iter().any(|want| want.mode != Mode::Exclusive) {
                return Err(Refusal::SecretNotPossible);
            }
        }
        if let Some(token) =
            secret.as_ref().filter(|_| renews).and_then(|secret| self.renew(&acquire, secret, ttl, events))
        {
            return Ok(Answer::Granted { token });
        }
        let found = self.find_locks(&acquire);
        self.check_locks(None, &acquire, &found)?;
        let free = self.are_free(&acquire, &found);
        if !free && acquire.patience == Patience::Try {
            return Ok(Answer::Busy);
        }
        self.check_capacity(0, &acquire, &found, free)?;
        let state = self.next_state(free)?;
        let session = self.add_session(acquire.caller.session, ttl, label, true, events);
        let claim = self.add_claim(session, &acquire, secret, found, state, 0);
        Ok(self.announce(claim, events))
    }

    fn find_locks(&self, request: &Acquire) -> Found {
        let mut found = Found::new();
        for want in &request.wants {
            found.push(self.find_lock(&want.lock).unwrap_or(Slot::NONE));
        }
        found
    }

    fn are_free(&self, request: &Acquire, found: &Found) -> bool {
        request.wants.iter().zip(found).all(|(want, lock)| self.is_free(*lock, want.mode.need()))
    }

    /// Returns the state of a new claim, with its token or its place in the order of arrival.
    fn next_state(&mut self, free: bool) -> Result<ClaimState, Refusal> {
        if free {
            return Ok(ClaimState::Held { token: self.next_token()? });
        }
        self.last_arrival += 1;
        Ok(ClaimState::Waiting { arrival: self.last_arrival })
    }

    /// Announces a new claim, and returns the answer to its request.
    fn announce(&mut self, claim: Slot<Claim>, events: &mut Events) -> Answer {
        match self.claims[claim].state() {
            ClaimState::Waiting { arrival } => {
                let ticket = Ticket { arrival, slot: claim.number() };
                let session = self.sessions[self.claims[claim].session].id;
                events.push(Event::Queued { ticket, session, locks: self.locks_of(claim) });
                Answer::Queued { ticket }
            }
            ClaimState::Held { token } | ClaimState::Withheld { token } => {
                self.index_token(claim);
                self.announce_grant(claim, token, None, events);
                Answer::Granted { token }
            }
        }
    }

    /// Checks what does not depend on the state of the locks.
    fn check_request(&self, request: &Acquire) -> Result<(), Refusal> {
        let limits = &self.limits;
        if request.wants.is_empty() {
            return Err(Refusal::NoLocks);
        }
        limits.at_most(Limit::LocksPerRequest, request.wants.len() as u64)?;
        for (position, want) in request.wants.iter().enumerate() {
            limits.at_most(Limit::NameBytes, want.lock.as_str().len() as u64)?;
            check_permits(want.mode)?;
            if request.wants[..position].iter().any(|other| other.lock == want.lock) {
                return Err(Refusal::NamedTwice { lock: want.lock.clone() });
            }
        }
        if let Some(delay) = request.delay {
            limits.at_most(Limit::DelayMaxMs, delay.as_ms())?;
        }
        if let Some(value) = &request.value {
            limits.at_most(Limit::ValueBytes, value.as_bytes().len() as u64)?;
            if request.wants.len() != 1 || request.wants[0].mode != Mode::Exclusive {
                return Err(Refusal::ValueNotPossible);
            }
        }
        Ok(())
    }

    /// Checks the request against the locks in use. A new session is `None`: it holds nothing.
    fn check_locks(&self, session: Option<Slot<Session>>, request: &Acquire, found: &Found) -> Result<(), Refusal> {
        for (want, slot) in request.wants.iter().zip(found) {
            let Some(slot) = slot.some() else { continue };
            check_kind(&self.locks[slot], want)?;
            if request.reentry == Reentry::Refuse
                && let Some(token) = session.and_then(|session| self.held_by(session, slot))
            {
                return Err(Refusal::AlreadyHeld { lock: want.lock.clone(), token });
            }
        }
        Ok(())
    }

    /// Checks that there is room for the request. Its session has `locks` already.
    fn check_capacity(&self, locks: u32, request: &Acquire, found: &Found, free: bool) -> Result<(), Refusal> {
        let wanted = request.wants.len() as u64;
        self.limits.at_most(Limit::LocksPerSession, u64::from(locks) + wanted)?;
        let new = found.iter().filter(|slot| slot.is_none()).count() as u64;
        self.limits.at_most(Limit::Locks, u64::from(self.locks.len()) + new)?;
        if !free {
            for slot in found.iter().filter_map(|slot| slot.some()) {
                self.limits.at_most(Limit::WaitersPerLock, u64::from(self.locks[slot].queue.len) + 1)?;
            }
        }
        Ok(())
    }

    /// Returns the token with which this session holds this lock. Walks the shorter of the two lists.
    fn held_by(&self, session: Slot<Session>, lock: Slot<Lock>) -> Option<Token> {
        let token_of = |claim: Slot<Claim>| match self.claims[claim].state() {
            ClaimState::Held { token } => Some(token),
            ClaimState::Waiting { .. } | ClaimState::Withheld { .. } => None,
        };
        if self.locks[lock].holders.len <= self.sessions[session].claims.len {
            let mut holders =
                self.locks[lock].holders.iter(&self.entries, at_lock).map(|entry| self.entries[entry].claim);
            holders.find(|claim| self.claims[*claim].session == session).and_then(token_of)
        } else {
            let mut claims = self.sessions[session].claims.iter(&self.claims, at_session);
            let holds = |claim: &Slot<Claim>| {
                token_of(*claim).is_some() && self.entries_of(*claim).any(|entry| self.entries[entry].lock == lock)
            };
            claims.find(holds).and_then(token_of)
        }
    }

    fn is_free(&self, lock: Slot<Lock>, need: u32) -> bool {
        lock.some().is_none_or(|slot| self.locks[slot].is_free(need))
    }

    fn add_claim(
        &mut self,
        session: Slot<Session>,
        request: &Acquire,
        secret: Option<Secret>,
        found: Found,
        state: ClaimState,
        fingerprint: u64,
    ) -> Slot<Claim> {
        let extras = ClaimExtras { delay: request.delay, value: request.value.clone(), secret };
        let extras = (extras != ClaimExtras::default()).then(|| Box::new(extras));
        let claim = self.claims.insert(Claim {
            packed: PackedState::of(state),
            number: request.caller.number,
            fingerprint,
            extras,
            session,
            first: Slot::NONE,
            at_session: Link::ALONE,
        });
        let mut sibling = Slot::NONE;
        for (want, lock) in request.wants.iter().zip(found).rev() {
            let lock = lock.some().unwrap_or_else(|| self.add_lock(want));
            sibling = self.add_entry(claim, lock, want.mode.need(), sibling, state);
        }
        self.claims[claim].first = sibling;
        let owner = &mut self.sessions[session];
        owner.claims.push_back(&mut self.claims, claim, at_session_mut);
        owner.locks += request.wants.len() as u32;
        if request.caller.number.is_some() {
            self.index_request(claim);
        }
        claim
    }

    fn add_lock(&mut self, want: &Want) -> Slot<Lock> {
        let (name, limit) = (want.lock.clone(), want.mode.limit());
        let lock = Lock { name, limit, taken: 0, holders: List::EMPTY, queue: List::EMPTY, history: None };
        let slot = self.locks.insert(lock);
        self.index_lock(slot);
        slot
    }

    fn add_entry(
        &mut self,
        claim: Slot<Claim>,
        at: Slot<Lock>,
        need: u32,
        sibling: Slot<LockEntry>,
        state: ClaimState,
    ) -> Slot<LockEntry> {
        let entry = self.entries.insert(LockEntry { claim, lock: at, need, sibling, at_lock: Link::ALONE });
        let lock = &mut self.locks[at];
        if let ClaimState::Waiting { .. } = state {
            lock.queue.push_back(&mut self.entries, entry, at_lock_mut);
        } else {
            lock.holders.push_back(&mut self.entries, entry, at_lock_mut);
            lock.taken += need;
        }
        entry
    }
}

fn check_permits(mode: Mode) -> Result<(), Refusal> {
    match mode {
        Mode::Permits { of, .. } if of == 0 || of == ALL => Err(Refusal::BadLimit { limit: of }),
        Mode::Permits { count, of } if count == 0 || count > of => Err(Refusal::BadPermits { count, of }),
        _ => Ok(()),
    }
}

fn check_kind(lock: &Lock, want: &Want) -> Result<(), Refusal> {
    let asked = match want.mode {
        Mode::Exclusive | Mode::Shared => Kind::Lock,
        Mode::Permits { of, .. } => Kind::Semaphore { limit: of },
    };
    match (lock.kind(), asked) {
        (Kind::Lock, Kind::Lock) => Ok(()),
        (Kind::Semaphore { limit }, Kind::Semaphore { limit: of }) if limit == of => Ok(()),
        (Kind::Semaphore { limit }, Kind::Semaphore { limit: asked }) => {
            Err(Refusal::LimitDiffers { lock: want.lock.clone(), limit, asked })
        }
        (is, asked) => Err(Refusal::WrongKind { lock: want.lock.clone(), is, asked }),
    }
}
