//! How much of the service one client, or all of them, may use.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// What clients may use. Whoever exceeds it is refused or cut off; the others do not notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Of those, connections that are not yet encrypted or do not yet say who they are.
    pub strangers: usize,
    /// How long a stranger may take to do so.
    pub greeting: Duration,
    /// How long a command may take to arrive, from its first byte to its last.
    pub command: Duration,
    /// How long a client may read nothing while something waits to be read.
    pub stall: Duration,
    /// Bytes of a command.
    pub command_bytes: usize,
    /// Words of a command.
    pub command_words: usize,
    /// Commands of one connection that are not yet answered, before it is read on.
    pub unanswered: usize,
    /// Bytes that one client has not yet read, before it is cut off.
    pub unread_bytes: usize,
    /// Prefixes that one connection watches.
    pub watches: usize,
    /// Sessions of one user, where there are users.
    pub sessions_per_user: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 10_000,
            strangers: 1_000,
            greeting: Duration::from_secs(10),
            command: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            command_bytes: 256 << 10,
            command_words: 1024,
            unanswered: 1024,
            unread_bytes: 16 << 20,
            watches: 64,
            sessions_per_user: 100_000,
        }
    }
}

/// Counts what is bounded.
#[derive(Debug, Default)]
pub(super) struct Count(Rc<Cell<usize>>);

/// One of those that are counted, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Rc<Cell<usize>>);

impl Count {
    pub(super) fn get(&self) -> usize {
        self.0.get()
    }

    /// One more, if there are fewer than that.
    pub(super) fn one_more(&self, bound: usize) -> Option<Counted> {
        if self.get() >= bound {
            return None;
        }
        self.0.set(self.get() + 1);
        Some(Counted(self.0.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
