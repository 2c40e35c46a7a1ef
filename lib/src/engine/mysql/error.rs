//! What the server says when it does not do what was asked, in the terms that decide what to do next.

use std::sync::Arc;

use mysql_async::{DriverError, Error, IoError, ServerError};

use super::tls;
use crate::engine::Failure;
use crate::engine::trouble::{self, Driver};

/// A deadlock, and a row that somebody else has had for too long: nothing has happened.
const IN_THE_WAY: [u16; 2] = [1213, 1205];
/// Rights that are missing: on a database, on a table, on a procedure, and more than that.
const DENIED: [u16; 5] = [1044, 1142, 1143, 1370, 1227];
/// As many statements are prepared as the server allows.
const TOO_MANY_PREPARED: u16 = 1461;
/// A user that is not known, or not by this password, or not on such a line.
const NOT_LET_IN: u16 = 1045;
/// A table or a procedure that is not there.
const MISSING: [u16; 2] = [1146, 1305];
/// The server is read-only, as a replica is.
const READ_ONLY: [u16; 3] = [1290, 1792, 1836];
/// `KILL QUERY`, and MariaDB's and MySQL's limits on a statement's time.
const INTERRUPTED: [u16; 3] = [1317, 1969, 3024];
/// A transaction is open where a procedure begins its own: an interrupted call left it.
const IN_TRANSACTION: u16 = 1568;
/// Too many connections, a shutdown, a killed connection, a full disk, a transaction left by an interrupted call.
const PASSING: [u16; 8] = [1040, 1203, 1053, 1077, 1080, 1927, 1021, IN_TRANSACTION];
/// Those of them that can arrive during a commit.
const MAY_HAVE: [u16; 3] = [1053, 1080, 1927];

pub(super) type Trouble = trouble::Trouble<Error>;

impl Driver for Error {
    const DATABASE: &'static str = "MySQL";
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        if let Some(what) = obstacle(&error) {
            return Trouble { what, is_for_good: true, source: Some(Arc::new(error)) };
        }
        let is_for_good = match &error {
            Error::Server(said) => {
                !(IN_THE_WAY.contains(&said.code)
                    || MISSING.contains(&said.code)
                    || READ_ONLY.contains(&said.code)
                    || INTERRUPTED.contains(&said.code)
                    || PASSING.contains(&said.code))
            }
            Error::Io(IoError::Tls(_)) => true,
            _ => false,
        };
        Trouble { what: said(&error), is_for_good, source: Some(Arc::new(error)) }
    }
}

/// What is in the way of whoever connects, and what to do about it.
fn obstacle(error: &Error) -> Option<String> {
    match error {
        Error::Server(ServerError { code: NOT_LET_IN, .. }) => Some(format!(
            "{}; give a user and a password that it accepts. If it wants encrypted lines, say ?ssl-mode=required; if it \
             wants to see a certificate, {}",
            said(error),
            tls::OPTIONS.identity
        )),
        Error::Driver(DriverError::NoClientSslFlagFromServer) => Some(
            "it does not encrypt; have that switched on there (ssl-cert and ssl-key), or say ?ssl-mode=disabled if nobody \
             can listen or interfere"
                .to_owned(),
        ),
        error => crate::engine::tls::obstacle(error, &tls::OPTIONS),
    }
}

/// What was said, in one line.
pub(super) fn said(error: &Error) -> String {
    let text = match error {
        Error::Server(said) => said.message.clone(),
        Error::Io(IoError::Io(error)) => format!("cannot be reached: {error}"),
        other => other.to_string(),
    };
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

/// Whether somebody else was in the way, and the same can be asked again at once.
pub(super) fn is_in_the_way(error: &Error) -> bool {
    matches!(error, Error::Server(said) if IN_THE_WAY.contains(&said.code))
}

/// Whether the connection may have a transaction open. An interrupted procedure runs none of its handlers, so it does
/// not roll back; only the end of the connection does.
pub(super) fn leaves_transaction(error: &Error) -> bool {
    matches!(error, Error::Server(said) if INTERRUPTED.contains(&said.code) || said.code == IN_TRANSACTION)
}

/// Whether a right is missing.
pub(super) fn is_denied(error: &Error) -> bool {
    matches!(error, Error::Server(said) if DENIED.contains(&said.code))
}

/// Whether what was asked for is not there.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Server(said) if MISSING.contains(&said.code))
}

/// What a call comes to that failed: what the server itself says has undone it, unless it was ended from outside.
pub(super) fn failure(address: &str, error: Error) -> Failure {
    let Error::Server(ServerError { code, .. }) = &error else {
        return Trouble::from(error).failure(address, true);
    };
    let code = *code;
    if is_denied(&error) {
        let what = said(&error);
        return Failure::Denied(format!(
            "MySQL at {address}: {what}; the locks need EXECUTE on the database and SELECT on its tables palisade_…"
        ));
    }
    if code == TOO_MANY_PREPARED {
        return Failure::Denied(format!("MySQL at {address}: {}", said(&error)));
    }
    let is_missing = is_missing(&error);
    let mut trouble = Trouble::from(error);
    if is_missing {
        trouble.what = format!(
            "{trouble}: the tables and procedures palisade_… are gone, or are just being replaced. If a dump was restored \
             without --routines, its tokens may be given again, too: run palisade engine mysql schema | mysql DATABASE, \
             then palisade tokens raise --above TOKEN --url URL, with the highest token that a resource has seen"
        );
    } else if READ_ONLY.contains(&code) {
        trouble.what = format!("{trouble}; it is a replica, or read-only: connect to the primary");
    }
    trouble.failure(address, MAY_HAVE.contains(&code) || INTERRUPTED.contains(&code))
}
