//! How much of the service one client, one user, or all of them may use.

use std::time::Duration;

use super::connection_limit::ConnectionBounds;

/// What clients may use. A client that exceeds it is refused or disconnected; the others do not notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Of those, connections of one user, where there are users.
    pub connections_per_user: usize,
    /// Of those, connections that have not finished TLS or not logged in; at most half of all.
    pub strangers: usize,
    /// Of those, connections from one address.
    pub strangers_per_address: usize,
    /// How long they may take to do so.
    pub greeting: Duration,
    /// How long a command may take to arrive, from its first byte to its last.
    pub command: Duration,
    /// How long a client may read nothing while something waits to be read.
    pub stall: Duration,
    /// The longest `WAIT` or `wait_ms`.
    pub wait: Duration,
    /// Bytes of a command.
    pub command_bytes: usize,
    /// Words of a command.
    pub command_words: usize,
    /// Commands of one connection that are not yet answered, before it is read on.
    pub unanswered: usize,
    /// Bytes that one client has not yet read, before it is cut off.
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
    /// How many connections a port has room for, `connections` in all. Where no client has to log in, only the total
    /// counts.
    pub(crate) fn of_connections(&self, connections: usize, per_user: usize, is_guarded: bool) -> ConnectionBounds {
        let unknown = if is_guarded { self.strangers.min((connections / 2).max(1)) } else { connections };
        let unknown_per_address = if is_guarded { self.strangers_per_address.min(unknown) } else { connections };
        ConnectionBounds { total: connections, unknown, unknown_per_address, per_user }
    }

    /// The longest wait, in milliseconds.
    pub(crate) fn wait_ms(&self) -> u64 {
        u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX)
    }
}
