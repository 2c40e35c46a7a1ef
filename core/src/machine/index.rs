//! Look-up tables from what callers say to slots. Never iterated, never part of a snapshot.

use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::{Claim, Lock, Machine, Session, Stand};
use crate::slab::Slot;
use crate::{LockName, RequestNo, SessionId, Token};

#[derive(Clone)]
pub(crate) struct Index {
    key: u64,
    locks: HashTable<Slot<Lock>>,
    sessions: HashTable<Slot<Session>>,
    /// Claims that are held or withheld, by token.
    tokens: HashTable<Slot<Claim>>,
    /// Claims that came with a number, by session and number.
    requests: HashTable<Slot<Claim>>,
}

impl Index {
    pub(crate) fn new(key: u64) -> Index {
        let (locks, sessions) = (HashTable::new(), HashTable::new());
        Index { key, locks, sessions, tokens: HashTable::new(), requests: HashTable::new() }
    }
}

/// For numbers that the machine itself gives one after the other.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn name_hash(key: u64, name: &LockName) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key, 0);
    hasher.write(name.as_str().as_bytes());
    hasher.finish()
}

fn request_hash(key: u64, session: Slot<Session>, number: RequestNo) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key, 1);
    hasher.write_u32(session.number());
    hasher.write_u64(number.get());
    hasher.finish()
}

impl Claim {
    /// The token's hash, for a claim that has one.
    fn token_hash(&self) -> u64 {
        match self.stand {
            Stand::Held { token } | Stand::Withheld { token } => spread(token.get()),
            Stand::Waiting { .. } => unreachable!("a waiting claim has no token to be found by"),
        }
    }

    fn has_token(&self, wanted: Token) -> bool {
        matches!(self.stand, Stand::Held { token } | Stand::Withheld { token } if token == wanted)
    }

    fn request_hash(&self, key: u64) -> u64 {
        match self.number {
            Some(number) => request_hash(key, self.session, number),
            None => unreachable!("a claim without a number is not found by it"),
        }
    }
}

impl Machine {
    pub(crate) fn find_lock(&self, name: &LockName) -> Option<Slot<Lock>> {
        let hash = name_hash(self.index.key, name);
        self.index.locks.find(hash, |slot| self.locks[*slot].name == *name).copied()
    }

    pub(super) fn index_lock(&mut self, slot: Slot<Lock>) {
        let (key, locks) = (self.index.key, &self.locks);
        let hash = |slot: &Slot<Lock>| name_hash(key, &locks[*slot].name);
        self.index.locks.insert_unique(hash(&slot), slot, hash);
    }

    pub(super) fn unindex_lock(&mut self, slot: Slot<Lock>) {
        let hash = name_hash(self.index.key, &self.locks[slot].name);
        take(&mut self.index.locks, hash, slot);
    }

    pub(crate) fn find_session(&self, id: SessionId) -> Option<Slot<Session>> {
        self.index.sessions.find(spread(id.get()), |slot| self.sessions[*slot].id == id).copied()
    }

    pub(super) fn index_session(&mut self, slot: Slot<Session>) {
        let sessions = &self.sessions;
        let hash = |slot: &Slot<Session>| spread(sessions[*slot].id.get());
        self.index.sessions.insert_unique(hash(&slot), slot, hash);
    }

    pub(super) fn unindex_session(&mut self, slot: Slot<Session>) {
        let hash = spread(self.sessions[slot].id.get());
        take(&mut self.index.sessions, hash, slot);
    }

    pub(crate) fn find_token(&self, token: Token) -> Option<Slot<Claim>> {
        self.index.tokens.find(spread(token.get()), |slot| self.claims[*slot].has_token(token)).copied()
    }

    pub(super) fn index_token(&mut self, slot: Slot<Claim>) {
        let claims = &self.claims;
        let hash = |slot: &Slot<Claim>| claims[*slot].token_hash();
        self.index.tokens.insert_unique(hash(&slot), slot, hash);
    }

    pub(super) fn unindex_token(&mut self, slot: Slot<Claim>) {
        let hash = self.claims[slot].token_hash();
        take(&mut self.index.tokens, hash, slot);
    }

    pub(crate) fn find_request(&self, session: Slot<Session>, number: RequestNo) -> Option<Slot<Claim>> {
        let is_it = |slot: &Slot<Claim>| {
            let claim = &self.claims[*slot];
            claim.session == session && claim.number == Some(number)
        };
        self.index.requests.find(request_hash(self.index.key, session, number), is_it).copied()
    }

    /// Only for a claim that came with a number.
    pub(super) fn index_request(&mut self, slot: Slot<Claim>) {
        let (key, claims) = (self.index.key, &self.claims);
        let hash = |slot: &Slot<Claim>| claims[*slot].request_hash(key);
        self.index.requests.insert_unique(hash(&slot), slot, hash);
    }

    /// Only for a claim that came with a number.
    pub(super) fn unindex_request(&mut self, slot: Slot<Claim>) {
        let hash = self.claims[slot].request_hash(self.index.key);
        take(&mut self.index.requests, hash, slot);
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
            let (waits, numbered) = (matches!(claim.stand, Stand::Waiting { .. }), claim.number.is_some());
            if !waits {
                self.index_token(slot);
            }
            if numbered {
                self.index_request(slot);
            }
        }
    }

    /// How many entries the tables have: locks, sessions, tokens, requests.
    pub(crate) fn indexed(&self) -> [usize; 4] {
        let index = &self.index;
        [index.locks.len(), index.sessions.len(), index.tokens.len(), index.requests.len()]
    }
}

fn take<T>(table: &mut HashTable<Slot<T>>, hash: u64, slot: Slot<T>) {
    match table.find_entry(hash, |other| *other == slot) {
        Ok(entry) => drop(entry.remove()),
        Err(_) => unreachable!("slot {slot:?} is not in its table"),
    }
}
