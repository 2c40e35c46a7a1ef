//! The life of a claim: granted from the queue, withheld, ended.

use smallvec::SmallVec;

use super::state::{at_lock_mut, at_session_mut};
use super::{Claim, ClaimState, FORCED_KEPT, Forced, Lock, LockEntry, Machine, Session};
use crate::slab::Slot;
use crate::{Delay, Departure, Ended, Ending, Event, Events, LockNames, SessionEnd, Ticket, Token};

/// Locks that a command has changed. Their waiters may be granted now.
pub(super) type Touched = SmallVec<[Slot<Lock>; 4]>;

impl Machine {
    /// Returns a claim's entries, in the order in which the request named the locks.
    pub(crate) fn entries_of(&self, claim: Slot<Claim>) -> impl Iterator<Item = Slot<LockEntry>> {
        std::iter::successors(self.claims[claim].first.some(), |entry| self.entries[*entry].sibling.some())
    }

    pub(crate) fn locks_of(&self, claim: Slot<Claim>) -> LockNames {
        let mut names = LockNames::new();
        for entry in self.entries_of(claim) {
            names.push(self.locks[self.entries[entry].lock].name.clone());
        }
        names
    }

    pub(super) fn delay_of(&self, claim: Slot<Claim>) -> Option<Delay> {
        self.claims[claim].extras.as_ref()?.delay
    }

    /// Grants every waiter at these locks that can be granted now, in queue order. Then removes the locks that are idle.
    pub(super) fn grant_waiters(&mut self, mut touched: Touched, events: &mut Events) {
        let mut next = 0;
        while let Some(lock) = touched.get(next).copied() {
            next += 1;
            while let Some(front) = self.locks[lock].queue.head.some() {
                let claim = self.entries[front].claim;
                if !self.can_be_granted(claim) {
                    break;
                }
                let Ok(token) = self.next_token() else { break };
                self.grant_waiting(claim, token, &mut touched, events);
            }
        }
        for lock in touched {
            if self.locks.get(lock).is_some_and(Lock::is_idle) {
                self.unindex_lock(lock);
                let idle = self.locks.remove(lock);
                self.remember_forced(idle);
            }
        }
    }

    /// Returns whether the claim is at the front of all its queues, with enough permits left at every lock.
    fn can_be_granted(&self, claim: Slot<Claim>) -> bool {
        self.entries_of(claim).all(|slot| {
            let entry = &self.entries[slot];
            let lock = &self.locks[entry.lock];
            lock.queue.head == slot && lock.admits(entry.need)
        })
    }

    fn grant_waiting(&mut self, claim: Slot<Claim>, token: Token, touched: &mut Touched, events: &mut Events) {
        let ClaimState::Waiting { arrival } = self.claims[claim].state() else {
            unreachable!("only a waiter is granted")
        };
        let mut next = self.claims[claim].first;
        let several = !self.entries[next].sibling.is_none();
        while let Some(slot) = next.some() {
            let (at, need) = (self.entries[slot].lock, self.entries[slot].need);
            let lock = &mut self.locks[at];
            lock.queue.unlink(&mut self.entries, slot, at_lock_mut);
            lock.holders.push_back(&mut self.entries, slot, at_lock_mut);
            lock.taken += need;
            if several {
                touched.push(at);
            }
            next = self.entries[slot].sibling;
        }
        self.claims[claim].set_state(ClaimState::Held { token });
        self.index_token(claim);
        let ticket = Ticket { arrival, slot: claim.number() };
        self.announce_grant(claim, token, Some(ticket), events);
    }

    pub(super) fn announce_grant(
        &self,
        claim: Slot<Claim>,
        token: Token,
        ticket: Option<Ticket>,
        events: &mut Events,
    ) {
        let locks = self.locks_of(claim);
        let Claim { session, number, extras, .. } = &self.claims[claim];
        let value = extras.as_ref().and_then(|extras| extras.value.clone());
        let published = value.map(|value| Event::Published { lock: locks[0].clone(), token, value });
        let session = self.sessions[*session].id;
        events.push(Event::Granted { locks, session, token, ticket, number: *number });
        events.extend(published);
    }

    /// Ends a wait. The caller then calls `grant_waiters` for the touched locks.
    pub(super) fn leave_queue(
        &mut self,
        claim: Slot<Claim>,
        why: Departure,
        touched: &mut Touched,
        events: &mut Events,
    ) {
        let ClaimState::Waiting { arrival } = self.claims[claim].state() else {
            unreachable!("only a waiter leaves a queue")
        };
        let (locks, session) = (self.locks_of(claim), self.holder(claim).id);
        let owner = self.claims[claim].session;
        self.unlink_from_session(claim);
        let mut next = self.claims[claim].first;
        while let Some(slot) = next.some() {
            let at = self.entries[slot].lock;
            self.locks[at].queue.unlink(&mut self.entries, slot, at_lock_mut);
            touched.push(at);
            next = self.entries.remove(slot).sibling;
        }
        self.claims.remove(claim);
        events.push(Event::LeftQueue { ticket: Ticket { arrival, slot: claim.number() }, session, locks, why });
        self.end_if_done(owner, events);
    }

    /// Ends a grant that is held. The caller then calls `grant_waiters` for the touched locks.
    pub(super) fn end_grant(&mut self, claim: Slot<Claim>, how: Ending, touched: &mut Touched, events: &mut Events) {
        let (token, session) = (self.token_of(claim), self.holder(claim).id);
        let (locks, owner) = (self.locks_of(claim), self.claims[claim].session);
        self.record_ending(claim, &how, false);
        self.unlink_from_session(claim);
        self.free_permits(claim, touched);
        events.push(Event::GrantEnded { locks, session, token, how });
        self.end_if_done(owner, events);
    }

    /// Ends a grant whose session expired, but keeps its permits until the host ends the lock-delay.
    pub(super) fn withhold(&mut self, claim: Slot<Claim>, events: &mut Events) {
        let (token, how) = (self.token_of(claim), Ending::SessionEnded(SessionEnd::Expired));
        let Some(delay) = self.delay_of(claim) else { unreachable!("only a claim with a delay is withheld") };
        let (locks, session) = (self.locks_of(claim), self.holder(claim).id);
        self.record_ending(claim, &how, true);
        self.unlink_from_session(claim);
        let withheld = &mut self.claims[claim];
        withheld.set_state(ClaimState::Withheld { token });
        (withheld.session, withheld.number) = (Slot::NONE, None);
        if let Some(extras) = &mut withheld.extras {
            (extras.value, extras.secret) = (None, None);
        }
        events.push(Event::GrantEnded { locks: locks.clone(), session, token, how });
        events.push(Event::Withheld { locks, token, delay });
    }

    /// Frees the permits of a held or withheld claim, and removes it.
    pub(super) fn free_permits(&mut self, claim: Slot<Claim>, touched: &mut Touched) {
        self.unindex_token(claim);
        let mut next = self.claims[claim].first;
        while let Some(slot) = next.some() {
            let (at, need) = (self.entries[slot].lock, self.entries[slot].need);
            let lock = &mut self.locks[at];
            lock.holders.unlink(&mut self.entries, slot, at_lock_mut);
            lock.taken -= need;
            touched.push(at);
            next = self.entries.remove(slot).sibling;
        }
        self.claims.remove(claim);
    }

    fn unlink_from_session(&mut self, claim: Slot<Claim>) {
        if self.claims[claim].number.is_some() {
            self.unindex_request(claim);
        }
        let locks = self.entries_of(claim).count() as u32;
        let session = &mut self.sessions[self.claims[claim].session];
        session.claims.unlink(&mut self.claims, claim, at_session_mut);
        session.locks -= locks;
    }

    /// Returns the token of a claim that is held or withheld.
    pub(crate) fn token_of(&self, claim: Slot<Claim>) -> Token {
        match self.claims[claim].state() {
            ClaimState::Held { token } | ClaimState::Withheld { token } => token,
            ClaimState::Waiting { .. } => unreachable!("a waiting claim has no token"),
        }
    }

    fn holder(&self, claim: Slot<Claim>) -> &Session {
        &self.sessions[self.claims[claim].session]
    }

    /// Stores the force-releases of a lock that became idle: the last [`FORCED_KEPT`] of all idle locks together.
    fn remember_forced(&mut self, idle: Lock) {
        let Some(history) = idle.history else { return };
        for ended in history.0.into_iter().filter(|ended| matches!(ended.how, Ending::Forced(_))) {
            if self.forced.len() == FORCED_KEPT {
                self.forced.pop_front();
            }
            self.forced.push_back(Forced { lock: idle.name.clone(), ended });
        }
    }

    /// Adds to the history of the claim's locks. A lock without another holder or waiter is about to be removed, and then
    /// only a force-release is kept.
    fn record_ending(&mut self, claim: Slot<Claim>, how: &Ending, lock_stays: bool) {
        let most = self.limits.history_per_lock as usize;
        let mut next = self.claims[claim].first;
        while let Some(slot) = next.some() {
            let (at, need) = (self.entries[slot].lock, self.entries[slot].need);
            next = self.entries[slot].sibling;
            let lock = &self.locks[at];
            let is_kept =
                lock_stays || lock.holders.len > 1 || !lock.queue.is_empty() || matches!(how, Ending::Forced(_));
            if most == 0 || !is_kept {
                continue;
            }
            let (mode, token) = (lock.mode(need), self.token_of(claim));
            let Session { id, label, .. } = self.holder(claim);
            let ended = Ended { session: *id, label: label.clone(), token, mode, how: how.clone() };
            let history = &mut self.locks[at].history.get_or_insert_default().0;
            while history.len() >= most {
                history.pop_front();
            }
            history.push_back(ended);
        }
    }
}
