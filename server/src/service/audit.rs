//! What an operator may want to know later: who was let in, who was refused what, who took a lock away.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// What one client did. So much is told of one client in a while, that it cannot drown the rest.
pub(super) struct Audit {
    peer: String,
    began: Cell<Instant>,
    told: Cell<u32>,
}

const WHILE: Duration = Duration::from_secs(1);
const MOST: u32 = 10;

impl Audit {
    pub(super) fn new(peer: String) -> Audit {
        Audit { peer, began: Cell::new(Instant::now()), told: Cell::new(0) }
    }

    pub(super) fn let_in(&self, user: &str, how: &str) {
        tracing::debug!(target: "palisade::audit", peer = self.peer, user, how, "let in");
    }

    /// The name is what a stranger has said.
    pub(super) fn not_let_in(&self, name: &[u8]) {
        let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
        self.tell(|| tracing::info!(target: "palisade::audit", peer = self.peer, ?name, "not let in"));
    }

    pub(super) fn denied(&self, user: &str, why: &str) {
        self.tell(|| tracing::info!(target: "palisade::audit", peer = self.peer, user, why, "denied"));
    }

    pub(super) fn breaks(&self, user: &str, lock: &str, by: &str, reason: &str) {
        let peer = &self.peer;
        self.tell(|| tracing::info!(target: "palisade::audit", peer, user, lock, ?by, ?reason, "takes a lock away"));
    }

    fn tell(&self, tell: impl FnOnce()) {
        if self.began.get().elapsed() >= WHILE {
            let untold = self.told.get().saturating_sub(MOST);
            if untold > 0 {
                tracing::info!(target: "palisade::audit", peer = self.peer, untold, "more of the same");
            }
            self.began.set(Instant::now());
            self.told.set(0);
        }
        self.told.set(self.told.get().saturating_add(1));
        if self.told.get() <= MOST {
            tell();
        }
    }
}
