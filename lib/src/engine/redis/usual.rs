//! Requests of the usual kind: an exclusive lock, and its release. Those of one session that are asked at the same time
//! go to Redis in one call, and are answered by one.

use std::cell::RefCell;

use palisade_core::{LockName, Patience, RequestNo, SessionId, Token};
use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::answer::ALL;
use super::line::Unanswered;

/// No call has more of them, so that nobody else waits long for Redis.
const MOST: usize = 128;

#[derive(Debug, Clone)]
pub(super) struct Usual {
    pub(super) session: SessionId,
    /// No request below is asked about again.
    pub(super) low: u64,
    pub(super) lock: LockName,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    Acquire(RequestNo, Patience),
    /// The request of this grant was sent once only.
    Release(Token),
}

fn word(patience: Patience) -> &'static str {
    if patience == Patience::Try { "try" } else { "wait" }
}

impl Usual {
    pub(super) fn name(&self) -> &'static str {
        match self.what {
            What::Acquire(..) => "acquire",
            What::Release(_) => "release",
        }
    }

    /// What belongs to it where it is asked alone.
    pub(super) fn put(&self, call: &mut Cmd) {
        call.arg(self.session.get());
        match self.what {
            What::Acquire(number, patience) => {
                call.arg(number.get()).arg(format!("{}.{}", word(patience), self.low)).arg("queue").arg("").arg("");
                call.arg(self.lock.as_str()).arg(ALL).arg(ALL);
            }
            What::Release(token) => {
                call.arg(self.low).arg(self.lock.as_str()).arg(token.get()).arg("once");
            }
        }
    }

    /// The same among others.
    pub(super) fn put_briefly(&self, call: &mut Cmd) {
        let (word, number) = match self.what {
            What::Acquire(number, patience) => (word(patience), number.get()),
            What::Release(token) => ("once", token.get()),
        };
        call.arg(word).arg(self.lock.as_str()).arg(number);
    }
}

/// One of those that are about to be asked.
pub(super) struct Asked {
    pub(super) usual: Usual,
    pub(super) answer: oneshot::Sender<Result<Value, Unanswered>>,
}

/// Those that are about to be asked.
#[derive(Default)]
pub(super) struct Gathered {
    asked: RefCell<Vec<Asked>>,
}

impl Gathered {
    /// Adds one; says whether it is the first.
    pub(super) fn add(&self, usual: Usual) -> (bool, oneshot::Receiver<Result<Value, Unanswered>>) {
        let (answer, answered) = oneshot::channel();
        let mut asked = self.asked.borrow_mut();
        asked.push(Asked { usual, answer });
        (asked.len() == 1, answered)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.borrow().is_empty()
    }

    /// The next of them that can go together.
    pub(super) fn take(&self) -> Vec<Asked> {
        let mut asked = self.asked.borrow_mut();
        let Some(session) = asked.first().map(|first| first.usual.session) else { return Vec::new() };
        let together = asked.iter().take(MOST).take_while(|one| one.usual.session == session).count();
        let rest = asked.split_off(together);
        std::mem::replace(&mut asked, rest)
    }
}
