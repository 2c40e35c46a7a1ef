//! The usual way to take a lock and to give it back: one statement without a procedure, which does it only where nobody
//! else uses the lock and nobody watches. It says nothing but whether it was done; what was not is for the procedures.
//!
//! The session and whether somebody watches are read in the same statement. In a transaction of level REPEATABLE READ,
//! which a connection is set to, what an UPDATE reads beside stays as it is until the commit: the session cannot end, nor a
//! watch begin, in between.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use mysql_async::Value;
use palisade_core::{Acquire, LockName, Mode, SessionId, Token};

/// Prepared, since to read it takes longer than to do it. Both rows beside are asked for in one go for the same reason.
const TAKE: &str = "UPDATE palisade_lock SET token = ?, session = ?, used_by = ?, number = ?, since = UTC_TIMESTAMP(6) \
     WHERE name = ? AND session IS NULL AND taken = 0 AND waiting = 0 AND token < ? \
     AND (SELECT 1 FROM palisade_session s, palisade_watched w WHERE s.id = ? AND s.ended = 0 \
     AND s.deadline > UTC_TIMESTAMP(6) AND s.epoch <= ? AND s.forgotten < ? AND NOT FIND_IN_SET(?, s.withdrawn) \
     AND w.only_one = 1 AND w.until < UTC_TIMESTAMP(6)) = 1";
/// Whatever else is in the row would have to be cleared.
const GIVE_BACK: &str = "UPDATE palisade_lock SET session = NULL WHERE name = ? AND session = ? AND token = ? \
     AND waiting = 0 AND withheld_until IS NULL AND delay_ms IS NULL AND value IS NULL AND history IS NULL \
     AND (SELECT w.until < UTC_TIMESTAMP(6) FROM palisade_watched w WHERE w.only_one = 1)";

/// So many names are kept in mind.
const NAMES: usize = 4096;
/// How many tokens there are in a block.
const BLOCK: u64 = 255;

/// What can be done that way.
pub(super) enum Usual {
    Take { session: SessionId, epoch: i32, number: u64, lock: LockName },
    GiveBack { session: SessionId, lock: LockName, token: Token },
}

impl Usual {
    /// A request for one lock, to have it alone and without more.
    pub(super) fn take(ask: &Acquire, epoch: i32) -> Option<Usual> {
        let ([want], Some(number)) = (&ask.wants[..], ask.caller.number) else { return None };
        let is_usual = want.mode == Mode::Exclusive && ask.delay.is_none() && ask.value.is_none();
        let (session, number, lock) = (ask.caller.session, number.get(), want.lock.clone());
        is_usual.then_some(Usual::Take { session, epoch, number, lock })
    }

    pub(super) fn lock(&self) -> &LockName {
        match self {
            Usual::Take { lock, .. } | Usual::GiveBack { lock, .. } => lock,
        }
    }

    /// The statement and its values; whoever takes a lock gets this token.
    pub(super) fn statement(&self, token: u64) -> (&'static str, Vec<Value>) {
        match self {
            Usual::Take { session, epoch, number, lock } => {
                let (token, session, epoch) =
                    (Value::UInt(token), Value::UInt(session.get()), Value::Int((*epoch).into()));
                let (number, lock) = (Value::UInt(*number), Value::from(lock.as_str()));
                let row = [token.clone(), session.clone(), session.clone(), number.clone(), lock, token];
                (TAKE, row.into_iter().chain([session, epoch, number.clone(), number]).collect())
            }
            Usual::GiveBack { session, lock, token } => {
                (GIVE_BACK, vec![lock.as_str().into(), session.get().into(), token.get().into()])
            }
        }
    }
}

/// What is known on one line about when that is worth trying.
pub(super) struct Quick {
    /// Whether this user may.
    is_allowed: Cell<bool>,
    /// Locks that nobody else used last time.
    free: RefCell<HashSet<LockName>>,
    /// The tokens that are left of a block, from the first to before the last. What is not used is never used.
    tokens: Cell<(u64, u64)>,
}

impl Quick {
    pub(super) fn new() -> Quick {
        Quick { is_allowed: Cell::new(true), free: RefCell::default(), tokens: Cell::new((0, 0)) }
    }

    pub(super) fn is_worth(&self, usual: &Usual) -> bool {
        self.is_allowed.get() && self.free.borrow().contains(usual.lock())
    }

    pub(super) fn note_not_allowed(&self) {
        self.is_allowed.set(false);
    }

    /// Nobody else used this lock, or somebody did.
    pub(super) fn note(&self, lock: &LockName, is_free: bool) {
        let mut free = self.free.borrow_mut();
        if !is_free {
            free.remove(lock);
        } else if self.is_allowed.get() && !free.contains(lock) {
            if free.len() >= NAMES {
                free.clear();
            }
            free.insert(lock.clone());
        }
    }

    /// The next token, if there is one left.
    pub(super) fn next_token(&self) -> Option<u64> {
        let (next, end) = self.tokens.get();
        self.tokens.set((next.saturating_add(1), end));
        (next < end && Token::new(next).is_ok()).then_some(next)
    }

    /// Another block begins with this one.
    pub(super) fn begin_block(&self, first: u64) {
        self.tokens.set((first, first.saturating_add(BLOCK)));
    }

    /// A token above what is left was given: so the locks of others may be, and the next block is above it.
    pub(super) fn note_given(&self, token: Token) {
        if token.get() >= self.tokens.get().0 {
            self.tokens.set((0, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_used_twice_and_none_is_behind() {
        let quick = Quick::new();
        assert_eq!(quick.next_token(), None);
        quick.begin_block(257);
        assert_eq!((quick.next_token(), quick.next_token()), (Some(257), Some(258)));
        quick.note_given(Token::new(200).expect("a token"));
        assert_eq!(quick.next_token(), Some(259));
        quick.note_given(Token::new(300).expect("a token"));
        assert_eq!(quick.next_token(), None);
        quick.begin_block(513);
        assert_eq!((513..).map_while(|_| quick.next_token()).last(), Some(767));
        quick.begin_block(Token::MAX.get());
        assert_eq!((quick.next_token(), quick.next_token()), (Some(Token::MAX.get()), None));
    }

    #[test]
    fn so_many_names_are_kept_in_mind_and_no_more() {
        let quick = Quick::new();
        for number in 0..NAMES * 2 + 1 {
            quick.note(&LockName::new(&format!("lock/{number}")).expect("a name"), true);
            assert!(quick.free.borrow().len() <= NAMES);
        }
    }
}
