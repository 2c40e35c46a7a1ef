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

/// Prepared, since to read it takes longer than to do it. Both rows beside are asked for in one go for the same reason. The
/// token is the lock's next one, and is told with the answer; when its block is used up, a procedure begins another.
const TAKE: &str = "UPDATE palisade_lock SET token = LAST_INSERT_ID(token + 1), session = ?, used_by = ?, number = ?, \
     since = UTC_TIMESTAMP(6) WHERE name = ? AND session IS NULL AND taken = 0 AND waiting = 0 AND token % 256 <> 0 \
     AND token < 9007199254740991 \
     AND (SELECT 1 FROM palisade_session s, palisade_watched w WHERE s.id = ? AND s.ended IS NULL \
     AND s.deadline > UTC_TIMESTAMP(6) AND s.epoch <= ? AND s.forgotten < ? AND NOT FIND_IN_SET(?, s.withdrawn) \
     AND w.only_one = 1 AND w.until < UTC_TIMESTAMP(6)) = 1";
/// Whatever else is in the row would have to be cleared.
const GIVE_BACK: &str = "UPDATE palisade_lock SET session = NULL WHERE name = ? AND session = ? AND token = ? \
     AND waiting = 0 AND withheld_until IS NULL AND delay_ms IS NULL AND value IS NULL AND history IS NULL \
     AND (SELECT w.until < UTC_TIMESTAMP(6) FROM palisade_watched w WHERE w.only_one = 1)";

/// So many names are kept in mind.
const NAMES: usize = 4096;

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

    /// The statement and its values.
    pub(super) fn statement(&self) -> (&'static str, Vec<Value>) {
        match self {
            Usual::Take { session, epoch, number, lock } => {
                let (session, number) = (Value::UInt(session.get()), Value::UInt(*number));
                let row = [session.clone(), session.clone(), number.clone(), Value::from(lock.as_str())];
                (
                    TAKE,
                    row.into_iter().chain([session, Value::Int((*epoch).into()), number.clone(), number]).collect(),
                )
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
}

impl Quick {
    pub(super) fn new() -> Quick {
        Quick { is_allowed: Cell::new(true), free: RefCell::default() }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_names_are_kept_in_mind_and_no_more() {
        let quick = Quick::new();
        for number in 0..NAMES * 2 + 1 {
            quick.note(&LockName::new(&format!("lock/{number}")).expect("a name"), true);
            assert!(quick.free.borrow().len() <= NAMES);
        }
    }
}
