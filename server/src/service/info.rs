//! What `INFO` answers, with the names that tools for Redis look for.

use std::fmt::Write;

use super::far::Measures;

/// The text; without what is counted for a user who may not see that.
pub(super) fn text(measures: Option<&Measures>) -> String {
    let mut text = format!("# Server\r\nserver:palisade\r\nversion:{}\r\n", env!("CARGO_PKG_VERSION"));
    let Some(measures) = measures else { return text };
    let tally = &measures.tally;
    let counts = [
        ("used_memory", resident_bytes()),
        ("connected_clients", tally.resp_connections),
        ("blocked_clients", tally.waiting),
        ("total_connections_received", tally.resp_connections_ever),
        ("total_commands_processed", tally.resp_requests),
        ("sessions", measures.sessions.into()),
        ("locks", measures.locks.into()),
        ("last_token", measures.last_token),
    ];
    // A string takes everything.
    text += "# Locks\r\n";
    for (name, count) in counts {
        let _ = write!(text, "{name}:{count}\r\n");
    }
    let _ = write!(text, "# Keyspace\r\ndb0:keys={}\r\n", measures.locks);
    text
}

/// How much memory this process uses; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok());
    kib.unwrap_or(0u64).saturating_mul(1024)
}
