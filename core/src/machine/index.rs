//! Look-up tables from names and numbers to slots. Never iterated, never part of a snapshot.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use super::state::ALL;
use super::{Claim, ClaimState, Lock, Machine, Session};
use crate::slab::Slot;
use crate::{LockName, RequestNo, SessionId, Token};

#[derive(Clone)]
pub(crate) struct Index {
    hasher: FixedState,
    locks: HashTable<Slot<Lock>>,
    sessions: HashTable<Slot<Session>>,
    /// Claims that may share a lock, held or withheld, by token. An exclusive claim is not here: it is the only holder of
    /// its lock.
    tokens: HashTable<Slot<Claim>>,
    /// Claims with a request number, by session and number.
    requests: HashTable<Slot<Claim>>,
}

impl Index {
    pub(crate) fn new(key: u64) -> Index {
        let (locks, sessions) = (HashTable::new(), HashTable::new());
        let hasher = FixedState::with_seed(key);
        Index { hasher, locks, sessions, tokens: HashTable::new(), requests: HashTable::new() }
    }
}

/// Hashes a number from one of the machine's counters. It needs no key, because no client can choose such a number.
fn hash_counter(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn name_hash(hasher: &FixedState, name: &LockName) -> u64 {
    hasher.hash_one(name.as_str().as_bytes())
}

fn request_hash(hasher: &FixedState, session: Slot<Session>, number: RequestNo) -> u64 {
    hasher.hash_one((session.number(), number.get()))
}

impl Claim {
    /// Returns the hash of the token of a claim that has one.
    fn token_hash(&self) -> u64 {
        match self.state() {
            ClaimState::Held { token } | ClaimState::Withheld { token } => hash_counter(token.get()),
            ClaimState::Waiting { .. } => unreachable!("a waiting claim has no token to be found by"),
        }
    }

    fn has_token(&self, wanted: Token) -> bool {
        matches!(self.state(), ClaimState::Held { token } | ClaimState::Withheld { token } if token == wanted)
    }

    fn request_hash(&self, hasher: &FixedState) -> u64 {
        match self.number {
            Some(number) => request_hash(hasher, self.session, number),
            None => unreachable!("a claim without a number is not found by it"),
        }
    }
}

impl Machine {
    pub(crate) fn find_lock(&self, name: &LockName) -> Option<Slot<Lock>> {
        let hash = name_hash(&self.index.hasher, name);
        self.index.locks.find(hash, |slot| self.locks[*slot].name == *name).copied()
    }

    pub(super) fn index_lock(&mut self, slot: Slot<Lock>) {
        let (hasher, locks) = (&self.index.hasher, &self.locks);
        let hash = |slot: &Slot<Lock>| name_hash(hasher, &locks[*slot].name);
        self.index.locks.insert_unique(hash(&slot), slot, hash);
    }

    pub(super) fn unindex_lock(&mut self, slot: Slot<Lock>) {
        let hash = name_hash(&self.index.hasher, &self.locks[slot].name);
        remove_slot(&mut self.index.locks, hash, slot);
    }

    pub(crate) fn find_session(&self, id: SessionId) -> Option<Slot<Session>> {
        self.index.sessions.find(hash_counter(id.get()), |slot| self.sessions[*slot].id == id).copied()
    }

    pub(super) fn index_session(&mut self, slot: Slot<Session>) {
        let sessions = &self.sessions;
        let hash = |slot: &Slot<Session>| hash_counter(sessions[*slot].id.get());
        self.index.sessions.insert_unique(hash(&slot), slot, hash);
    }

    pub(super) fn unindex_session(&mut self, slot: Slot<Session>) {
        let hash = hash_counter(self.sessions[slot].id.get());
        remove_slot(&mut self.index.sessions, hash, slot);
    }

    /// Returns the claim that takes this lock with this token.
    pub(crate) fn find_token(&self, lock: Slot<Lock>, token: Token) -> Option<Slot<Claim>> {
        let holders = self.locks[lock].holders;
        if holders.len == 1 {
            let claim = self.entries[holders.head].claim;
            return self.claims[claim].has_token(token).then_some(claim);
        }
        let is_found = |slot: &Slot<Claim>| self.claims[*slot].has_token(token);
        let claim = self.index.tokens.find(hash_counter(token.get()), is_found).copied()?;
        self.entries_of(claim).any(|entry| self.entries[entry].lock == lock).then_some(claim)
    }

    /// Returns whether a claim may share a lock with others.
    pub(crate) fn is_indexed_by_token(&self, claim: Slot<Claim>) -> bool {
        self.entries_of(claim).any(|entry| self.entries[entry].need != ALL)
    }

    pub(super) fn index_token(&mut self, slot: Slot<Claim>) {
        if self.is_indexed_by_token(slot) {
            let claims = &self.claims;
            let hash = |slot: &Slot<Claim>| claims[*slot].token_hash();
            self.index.tokens.insert_unique(hash(&slot), slot, hash);
        }
    }

    pub(super) fn unindex_token(&mut self, slot: Slot<Claim>) {
        if self.is_indexed_by_token(slot) {
            let hash = self.claims[slot].token_hash();
            remove_slot(&mut self.index.tokens, hash, slot);
        }
    }

    /// Returns the claim of this request, if it still waits or is held.
    pub(crate) fn find_request(&self, session: Slot<Session>, number: RequestNo) -> Option<Slot<Claim>> {
        let is_found = |slot: &Slot<Claim>| {
            let claim = &self.claims[*slot];
            claim.session == session && claim.number == Some(number)
        };
        self.index.requests.find(request_hash(&self.index.hasher, session, number), is_found).copied()
    }

    /// Adds a claim, which must have a request number.
    pub(super) fn index_request(&mut self, slot: Slot<Claim>) {
        let (hasher, claims) = (&self.index.hasher, &self.claims);
        let hash = |slot: &Slot<Claim>| claims[*slot].request_hash(hasher);
        self.index.requests.insert_unique(hash(&slot), slot, hash);
    }

    /// Removes a claim, which must have a request number.
    pub(super) fn unindex_request(&mut self, slot: Slot<Claim>) {
        let hash = self.claims[slot].request_hash(&self.index.hasher);
        remove_slot(&mut self.index.requests, hash, slot);
    }

    /// Fills empty tables from the slabs.
    pub(crate) fn index_everything(&mut self) {
        let sessions: Vec<_> = self.sessions.iter().map(|(slot, _)| slot).collect();
        let locks: Vec<_> = self.locks.iter().map(|(slot, _)| slot).collect();
        let claims: Vec<_> = self.claims.iter().map(|(slot, _)| slot).collect();
        sessions.into_iter().for_each(|slot| self.index_session(slot));
        locks.into_iter().for_each(|slot| self.index_lock(slot));
        for slot in claims {
            let claim = &self.claims[slot];
            let (waits, numbered) = (matches!(claim.state(), ClaimState::Waiting { .. }), claim.number.is_some());
            if !waits {
                self.index_token(slot);
            }
            if numbered {
                self.index_request(slot);
            }
        }
    }

    /// Returns the sizes of the tables: locks, sessions, tokens, requests.
    pub(crate) fn table_sizes(&self) -> [usize; 4] {
        let index = &self.index;
        [index.locks.len(), index.sessions.len(), index.tokens.len(), index.requests.len()]
    }
}

fn remove_slot<T>(table: &mut HashTable<Slot<T>>, hash: u64, slot: Slot<T>) {
    match table.find_entry(hash, |other| *other == slot) {
        Ok(entry) => drop(entry.remove()),
        Err(_) => unreachable!("slot {slot:?} is not in its table"),
    }
}
