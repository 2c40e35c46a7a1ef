//! Consul's errors: permanent or transient, and whether the call may have taken effect.

use std::error::Error;

use http::StatusCode;

use super::config::TLS;
use crate::engine::claims::call_error::CallError;
use crate::engine::remote::{ConnectError, Peer, SecurityError, is_not_tls, printable};

/// The longest part of an answer that an error shows.
const SHOWN: usize = 300;

/// An answer that is an error.
pub(super) struct Classified {
    pub(super) error: ConnectError,
    /// Whether the agent works, so that the connection is kept.
    pub(super) is_agent_fine: bool,
    /// Whether the agent has lost contact with the leader, so that an election may help.
    pub(super) is_leaderless: bool,
    pub(super) may_have_taken_effect: bool,
}

/// The answers of an agent that knows no leader, or one that does not answer, before the request has reached a leader.
const LEADERLESS: [&str; 5] = [
    "No cluster leader",
    "failed to get conn",
    "leader not found in server lookup",
    "node is not the leader",
    "not ready to serve consistent reads",
];
/// The same, for a request that may have reached a leader.
const DEPOSED: [&str; 2] = ["leadership lost", "leadership transfer in progress"];
/// How an agent reports that its connection to the leader broke during a request: `rpc error making call: EOF`.
const CALL: &str = "rpc error making call";
const BROKEN: [&str; 5] = ["EOF", " tcp ", "i/o ", "session shutdown", "stream closed"];

pub(super) fn classify(status: StatusCode, body: &[u8], right: &str) -> Classified {
    let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
    let text = printable(text.trim());
    let has = |parts: &[&str]| status.is_server_error() && parts.iter().any(|part| text.contains(part));
    let (is_unsent, is_deposed) = (has(&LEADERLESS), has(&DEPOSED) || has(&[CALL]) && has(&BROKEN));
    let (error, is_agent_fine, may_have_taken_effect) = match status {
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => (denied(&text, right), true, false),
        StatusCode::BAD_REQUEST if text.contains("HTTP request to an HTTPS server") => {
            (SecurityError::Encrypted.connect_error(&TLS), true, false)
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            let what = format!(
                "{text} Acquire fewer locks at once, use shorter names, or raise Consul's limits.txn_max_req_len (512 KiB by default)"
            );
            (ConnectError::permanent(what), true, false)
        }
        StatusCode::TOO_MANY_REQUESTS => (ConnectError::transient(text), true, false),
        // Another agent may know a leader.
        _ if is_unsent || is_deposed => (no_leader(), false, !is_unsent),
        _ if status.is_server_error() => (ConnectError::transient(text), false, true),
        _ => (ConnectError::permanent(format!("it answered {status}: {text}")), true, false),
    };
    Classified { error, is_agent_fine, is_leaderless: is_unsent || is_deposed, may_have_taken_effect }
}

/// The error of a cluster without a leader.
fn no_leader() -> ConnectError {
    ConnectError::transient(
        "it has no leader: a majority of the servers must run. See consul operator raft list-peers",
    )
}

/// The refusal of a call that needs this right: `session_prefix "" { policy = "write" }`.
pub(super) fn denied(text: &str, right: &str) -> ConnectError {
    ConnectError::denied(match text.contains("ACL not found") {
        true => format!("it does not know this ACL token ({text}); set PALISADE_SECRET to one with the rule {right}"),
        false => {
            format!(
                "it does not let this client in: {text}; set PALISADE_SECRET to an ACL token with the rule {right}"
            )
        }
    })
}

/// The reason of a request that was not answered.
pub(super) fn transport(error: &hyper_util::client::legacy::Error, has_certificate: bool) -> ConnectError {
    let security = match SecurityError::behind_client(error, has_certificate) {
        None if error.is_connect() && is_not_tls(error) => Some(SecurityError::NotEncrypted),
        found => found,
    };
    if let Some(error) = security {
        return error.connect_error(&TLS);
    }
    if error.is_connect() {
        return ConnectError::unreachable(error);
    }
    let mut last: &(dyn Error + 'static) = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let last = printable(&last.to_string());
    let is_closed = last.contains("closed before message completed") || last.contains("os error 104");
    ConnectError::transient(match is_closed {
        true => format!(
            "the connection broke: {last}. Consul closes connections above its limit for one host \
             (limits.http_max_conns_per_client, 200 by default): raise that limit, or run fewer clients on this host"
        ),
        false => format!("the connection broke: {last}"),
    })
}

/// Returns the shortest and the longest TTL that an answer names, in milliseconds: `… must be between [10s=24h0m0s]`.
pub(super) fn ttl_range(body: &[u8]) -> Option<(u64, u64)> {
    let text = str::from_utf8(body).ok()?;
    if !text.contains("Session TTL") {
        return None;
    }
    let (shortest, longest) = text.split_once('[')?.1.split_once(']')?.0.split_once('=')?;
    Some((duration_ms(shortest)?, duration_ms(longest)?))
}

/// Parses a duration as Go writes it: `1h2m3.5s`, `100ms`.
pub(super) fn duration_ms(text: &str) -> Option<u64> {
    let (mut rest, mut total) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let end = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        total += number
            * match &unit[..end] {
                "h" => 3_600_000.0,
                "m" => 60_000.0,
                "s" => 1000.0,
                "ms" => 1.0,
                "µs" | "us" => 0.001,
                "ns" => 0.000_001,
                _ => return None,
            };
        rest = &unit[end..];
    }
    Some(total as u64)
}

/// The failure of an operation that other clients kept from succeeding.
pub(super) fn contended(peer: &Peer) -> CallError {
    let error = ConnectError::transient("other clients change the lock all the time; try again").at(peer);
    CallError::Failed { error, may_have_taken_effect: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_ttls_is_read_from_a_refusal() {
        let answer = b"Invalid Session TTL '1000000000', must be between [10s=24h0m0s]";
        assert_eq!(ttl_range(answer), Some((10_000, 86_400_000)));
        assert_eq!(ttl_range(b"rpc error [1=2]"), None);
        assert_eq!((duration_ms("1m0.5s"), duration_ms("100ms"), duration_ms("1x")), (Some(60_500), Some(100), None));
    }

    #[test]
    fn an_answer_is_an_effect_only_if_it_may_be_one() {
        let of =
            |status, body: &str| classify(StatusCode::from_u16(status).expect("a status"), body.as_bytes(), "a rule");
        let dead =
            "rpc error getting client: failed to get conn: dial tcp 127.0.0.1:0->127.0.0.1:8300: connection refused";
        for leaderless in [of(500, "No cluster leader"), of(500, dead)] {
            assert!(leaderless.is_leaderless && !leaderless.may_have_taken_effect);
            assert!(!leaderless.error.is_permanent() && leaderless.error.to_string().contains("no leader"));
        }
        for deposed in [
            "leadership lost while committing log",
            "rpc error making call: EOF",
            "rpc error making call: i/o deadline reached",
            "rpc error making call: write tcp 127.0.0.1:54273->127.0.0.1:10418: write: broken pipe",
        ] {
            let deposed = of(500, deposed);
            assert!(deposed.is_leaderless && deposed.may_have_taken_effect && !deposed.error.is_permanent());
        }
        let broken = of(500, "rpc error making call: the state store failed");
        assert!(!broken.is_leaderless && broken.error.to_string().contains("the state store failed"));
        assert!(broken.may_have_taken_effect && !broken.error.is_permanent() && !broken.is_agent_fine);
        let denied = of(403, "Permission denied");
        assert!(denied.error.is_permanent() && !denied.may_have_taken_effect && denied.is_agent_fine);
    }
}
