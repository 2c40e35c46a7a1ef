//! The uncontended fast path: one prepared UPDATE acquires or releases a lock, without a procedure. The statement changes
//! the row only if no other client uses the lock and no client watches; otherwise the procedure runs.
//!
//! The statement also reads the session and whether a client watches. At REPEATABLE READ, which every connection is set to,
//! an UPDATE locks the rows that it reads until the commit: the session cannot end, and a watch cannot begin, in between.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use mysql_async::Value;
use palisade_core::{Acquire, LockName, Mode, Token};

use crate::engine::remote::Held;

/// Prepared, because parsing it takes longer than running it. For the same reason one subquery reads both other tables. The
/// token is the last one of the lock plus 1; the reply returns it as LAST_INSERT_ID. When the lock's block of 256 tokens is
/// used up, the procedure runs.
const ACQUIRE: &str = "UPDATE palisade_lock SET token = LAST_INSERT_ID(token + 1), session = ?, used_by = ?, number = ?, \
     since = UTC_TIMESTAMP(6) WHERE name = ? AND session IS NULL AND taken = 0 AND waiting = 0 AND token % 256 <> 0 \
     AND token < 9007199254740991 \
     AND (SELECT 1 FROM palisade_session s, palisade_watched w WHERE s.id = ? AND s.ended IS NULL \
     AND s.deadline > UTC_TIMESTAMP(6) AND s.epoch <= ? AND s.forgotten < ? AND NOT FIND_IN_SET(?, s.withdrawn) \
     AND w.only_one = 1 AND w.until < UTC_TIMESTAMP(6)) = 1";
/// If other columns of the row are set, it changes nothing: the procedure clears them.
const RELEASE: &str = "UPDATE palisade_lock SET session = NULL WHERE name = ? AND session = ? AND token = ? \
     AND waiting = 0 AND withheld_until IS NULL AND delay_ms IS NULL AND value IS NULL AND history IS NULL \
     AND (SELECT w.until < UTC_TIMESTAMP(6) FROM palisade_watched w WHERE w.only_one = 1)";

/// The most locks that are remembered as uncontended.
const MAX_NAMES: usize = 4096;

/// An acquire or release that one statement may perform.
pub(super) struct FastCall {
    pub(super) lock: LockName,
    pub(super) sql: &'static str,
    pub(super) params: Vec<Value>,
    /// The token of a release; the reply to an acquire contains it.
    pub(super) token: Option<Token>,
}

impl FastCall {
    /// Returns the fast call for an exclusive acquire of one lock without a lock-delay and a value; `None` for other acquires.
    pub(super) fn acquire(acquire: &Acquire, epoch: i32) -> Option<FastCall> {
        let ([want], Some(number)) = (&acquire.wants[..], acquire.caller.number) else { return None };
        if want.mode != Mode::Exclusive || acquire.delay.is_some() || acquire.value.is_some() {
            return None;
        }
        let (session, number) = (Value::from(acquire.caller.session.get()), Value::from(number.get()));
        let (name, s, n) = (want.lock.as_str().into(), || session.clone(), || number.clone());
        let params = vec![s(), s(), n(), name, s(), epoch.into(), n(), n()];
        Some(FastCall { lock: want.lock.clone(), sql: ACQUIRE, params, token: None })
    }

    pub(super) fn release(held: &Held) -> FastCall {
        let Held { session, lock, token } = held;
        let params = vec![lock.as_str().into(), session.get().into(), token.get().into()];
        FastCall { lock: lock.clone(), sql: RELEASE, params, token: Some(*token) }
    }
}

/// Decides when to try the fast path.
#[derive(Default)]
pub(super) struct FastPath {
    is_denied: Cell<bool>,
    /// Locks that no other client used when this client acquired them last.
    uncontended: RefCell<HashSet<LockName>>,
}

impl FastPath {
    pub(super) fn is_worth_trying(&self, call: &FastCall) -> bool {
        !self.is_denied.get() && self.uncontended.borrow().contains(&call.lock)
    }

    /// Notes that this user has no right to update the table.
    pub(super) fn note_denied(&self) {
        self.is_denied.set(true);
    }

    pub(super) fn note_contended(&self, lock: &LockName) {
        self.uncontended.borrow_mut().remove(lock);
    }

    pub(super) fn note_uncontended(&self, lock: &LockName) {
        let mut locks = self.uncontended.borrow_mut();
        if !self.is_denied.get() && !locks.contains(lock) {
            if locks.len() >= MAX_NAMES {
                locks.clear();
            }
            locks.insert(lock.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_remembered_names_is_bounded() {
        let fast_path = FastPath::default();
        for number in 0..MAX_NAMES * 2 + 1 {
            fast_path.note_uncontended(&LockName::new(&format!("lock/{number}")).expect("a name"));
            assert!(fast_path.uncontended.borrow().len() <= MAX_NAMES);
        }
    }
}
