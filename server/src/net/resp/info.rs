//! The reply to `INFO`, with the names that tools for Redis look for.

use std::fmt::Write;

use crate::net::handle::ServiceReport;

/// Returns the text; without a report it has no counts.
pub(super) fn text(report: Option<&ServiceReport>) -> String {
    let mut text = format!("# Server\r\nserver:palisade\r\nversion:{}\r\n", env!("CARGO_PKG_VERSION"));
    let Some(ServiceReport { node, resp, .. }) = report else { return text };
    let counts = [
        ("used_memory", resident_bytes()),
        ("connected_clients", resp.connections),
        ("blocked_clients", node.metrics.waiting),
        ("total_connections_received", resp.connections_total),
        ("total_commands_processed", resp.requests),
        ("sessions", node.sessions.into()),
        ("locks", node.locks.into()),
        ("last_token", node.last_token),
    ];
    // Writing to a string cannot fail.
    text += "# Locks\r\n";
    for (name, count) in counts {
        let _ = write!(text, "{name}:{count}\r\n");
    }
    let _ = write!(text, "# Keyspace\r\ndb0:keys={}\r\n", node.locks);
    text
}

/// Returns the resident memory of this process; 0 if it is not known.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok());
    kib.unwrap_or(0u64).saturating_mul(1024)
}
