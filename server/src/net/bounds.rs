//! Limits on the resources that one client, one user, and all clients may use.

use std::time::Duration;

use super::connection_limit::{ConnectionBounds, GRACE};

/// Limits on clients. A client that exceeds one is refused or disconnected; the others do not notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Of those, connections of one user, where there are users.
    pub connections_per_user: usize,
    /// Of those, unauthenticated connections: before the end of the TLS handshake, or before the login. At most half of
    /// all.
    pub strangers: usize,
    /// Of those, unauthenticated connections from one address.
    pub strangers_per_address: usize,
    /// How long the TLS handshake and the login may take.
    pub greeting: Duration,
    /// How long a command may take to arrive, from its first byte to its last.
    pub command: Duration,
    /// How long a client may read nothing while replies wait.
    pub stall: Duration,
    /// The longest `WAIT` or `wait_ms`.
    pub wait: Duration,
    /// Bytes of a command.
    pub command_bytes: usize,
    /// Words of a command.
    pub command_words: usize,
    /// Unanswered commands of one connection, at which the service stops reading from it.
    pub unanswered: usize,
    /// Unread bytes of one client, at which it is disconnected.
    pub unread_bytes: usize,
    /// The same of all clients together, over both protocols; one user may have a quarter of it.
    pub unread_total: usize,
    /// Prefixes that one connection watches.
    pub watches: usize,
    /// Sessions of one user, where there are users.
    pub sessions_per_user: usize,
    /// Places in queues, of all clients together; a request for several locks takes one in each.
    pub waiters: usize,
    /// The same of one user, where there are users.
    pub waiters_per_user: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 10_000,
            connections_per_user: 5_000,
            strangers: 1_000,
            strangers_per_address: 500,
            greeting: Duration::from_secs(10),
            command: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            wait: Duration::from_secs(3600),
            command_bytes: 256 << 10,
            command_words: 1024,
            unanswered: 1024,
            unread_bytes: 16 << 20,
            unread_total: 256 << 20,
            watches: 64,
            sessions_per_user: 100_000,
            waiters: 1_000_000,
            waiters_per_user: 10_000,
        }
    }
}

impl Bounds {
    /// Returns the limits of a port with `connections` in total. If no client has to log in, only the total counts.
    pub(crate) fn of_connections(&self, connections: usize, per_user: usize, is_guarded: bool) -> ConnectionBounds {
        let unauthenticated = if is_guarded { self.strangers.min((connections / 2).max(1)) } else { connections };
        let unauthenticated_per_address =
            if is_guarded { self.strangers_per_address.min(unauthenticated) } else { connections };
        ConnectionBounds { total: connections, unauthenticated, unauthenticated_per_address, per_user, grace: GRACE }
    }

    /// Returns the longest wait, in milliseconds.
    pub(crate) fn wait_ms(&self) -> u64 {
        u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX)
    }
}
