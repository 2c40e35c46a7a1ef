//! etcd's errors: permanent or transient, and whether the call may have taken effect.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use etcd_client::Error;

use crate::engine::remote::{ConnectError, SecurityError, is_not_tls, printable};

use super::config::TLS;

/// An error of the server or of the driver.
pub(super) struct Classified {
    pub(super) error: ConnectError,
    /// Whether the member has answered, so that nothing has changed and the connection works.
    pub(super) is_answer: bool,
    pub(super) is_lease_gone: bool,
}

// The numbers of gRPC's status codes.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNAUTHENTICATED: i32 = 16;

/// What a cluster without a leader needs.
pub(super) const MAJORITY: &str = "majority of the members must run";

/// Classifies the error of a call for the keys that begin with this, on the connection of a client with or without a certificate.
pub(super) fn classify(error: &Error, keys: &str, has_certificate: bool) -> Classified {
    let status = match error {
        Error::GRpcStatus(status) => status,
        Error::LeaseKeepAliveError(why) if why == "lease not found" => {
            let error = ConnectError::transient("the lease does not exist");
            return Classified { error, is_answer: true, is_lease_gone: true };
        }
        other => {
            let error = security(other, has_certificate).unwrap_or_else(|| {
                ConnectError::transient(format!("the connection broke: {}", printable(&other.to_string())))
            });
            return Classified { error, is_answer: false, is_lease_gone: false };
        }
    };
    let text = printable(status.message());
    let code = status.code() as i32;
    let is_lease_gone = status.message().contains("requested lease not found");
    let denied = [
        "authentication failed",
        "user name is empty",
        "user name not found",
        "permission denied",
        "invalid auth token",
        "revision of auth store is old",
        "authentication is not enabled",
    ];
    let (error, is_answer) = match code {
        _ if is_lease_gone => (ConnectError::transient(text), true),
        _ if text.contains("invalid auth token") || text.contains("revision of auth store is old") => {
            // The token of the connection has expired. The next connection has another one.
            (ConnectError::transient(text), false)
        }
        UNAUTHENTICATED | PERMISSION_DENIED | INVALID_ARGUMENT | FAILED_PRECONDITION
            if code == UNAUTHENTICATED
                || code == PERMISSION_DENIED
                || denied.iter().any(|part| text.contains(part)) =>
        {
            let what = format!("it does not let this client in: {text}; {}", access_remedy(&text, keys));
            (ConnectError::denied(what), true)
        }
        RESOURCE_EXHAUSTED if text.contains("space exceeded") => {
            let what = format!("{text}; compact and defragment it, then disarm the alarm (etcdctl alarm disarm)");
            (ConnectError::transient(what), true)
        }
        // `request is too large`, or `received message larger than max`.
        RESOURCE_EXHAUSTED | INVALID_ARGUMENT if text.contains("too large") || text.contains("larger than max") => {
            let what = format!(
                "{text}; acquire fewer locks at once, use shorter names, or raise etcd's --max-request-bytes (1.5 MiB by default)"
            );
            (ConnectError::permanent(what), true)
        }
        RESOURCE_EXHAUSTED => (ConnectError::transient(text), true),
        INVALID_ARGUMENT | NOT_FOUND | FAILED_PRECONDITION | OUT_OF_RANGE => (ConnectError::permanent(text), true),
        _ if text.contains("no leader") => {
            (ConnectError::transient(format!("it has no leader: a {MAJORITY}")), false)
        }
        _ => {
            let error = security(status, has_certificate).unwrap_or_else(|| match StdError::source(status) {
                Some(_) => ConnectError::unreachable(status),
                None => ConnectError::transient(text),
            });
            (error, false)
        }
    };
    Classified { error, is_answer, is_lease_gone }
}

/// Returns what to do about a refusal with this message.
fn access_remedy(text: &str, keys: &str) -> String {
    if text.contains("authentication is not enabled") {
        "leave the user out of the URL, or run etcdctl auth enable".to_owned()
    } else if text.contains("authentication failed") {
        "the user or its password is wrong; the password is taken from the URL, or from PALISADE_SECRET".to_owned()
    } else if text.contains("user name is empty") {
        "name a user, as in etcd://USER@host, and set PALISADE_SECRET to its password".to_owned()
    } else if text.contains("permission denied") {
        format!(
            "give a role of the user the right to the keys: etcdctl role grant-permission ROLE --prefix=true readwrite {}",
            printable(keys)
        )
    } else {
        "connect with a user and a password that it accepts".to_owned()
    }
}

/// Finds a problem of encryption behind an error.
fn security(error: &(dyn StdError + 'static), has_certificate: bool) -> Option<ConnectError> {
    let found = SecurityError::behind_client(error, has_certificate)
        .or_else(|| is_not_tls(error).then_some(SecurityError::NotEncrypted));
    found.map(|error| error.connect_error(&TLS))
}

/// Whether the member accepted the connection and closed it, as it does if only one side encrypts.
pub(super) fn is_closed(error: &Error) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = match error {
        Error::GRpcStatus(status) => StdError::source(status),
        other => Some(other),
    };
    let mut is_closed = next.is_some();
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            is_closed = kinds.contains(&error.kind());
        }
        next = error.source();
    }
    is_closed
}
