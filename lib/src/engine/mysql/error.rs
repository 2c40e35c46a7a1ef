//! MySQL's errors: permanent or transient, and whether the call may have taken effect.

use std::io;
use std::sync::Arc;

use mysql_async::{DriverError, Error, IoError};

use super::config::TLS;
use crate::engine::Failure;
use crate::engine::remote::{ConnectError, Peer, SecurityError, printable};

/// A deadlock, and a row lock that did not become free in time. MySQL has rolled back.
const CONTENTION: [u16; 2] = [1213, 1205];
/// The user has no rights on the database of the URL.
const NO_DATABASE_RIGHTS: u16 = 1044;
/// Missing rights: on a database, a table, a column, a procedure, and global ones.
const DENIED: [u16; 5] = [NO_DATABASE_RIGHTS, 1142, 1143, 1370, 1227];
/// The server's limit of prepared statements is reached.
const TOO_MANY_PREPARED: u16 = 1461;
/// A wrong user or password, or a connection without the encryption that the user needs.
const LOGIN_REJECTED: u16 = 1045;
/// A table or a procedure does not exist.
const MISSING: [u16; 2] = [1146, 1305];
/// The server is read-only, as a replica is.
const READ_ONLY: [u16; 3] = [1290, 1792, 1836];
/// `KILL QUERY`, and the limits of MariaDB and MySQL on a statement's time.
const INTERRUPTED: [u16; 3] = [1317, 1969, 3024];
/// A procedure begins a transaction while one is open, which an interrupted call has left.
const IN_TRANSACTION: u16 = 1568;
/// Too many connections, a shutdown, a killed connection, a full disk, a transaction left by an interrupted call.
const TRANSIENT: [u16; 8] = [1040, 1203, 1053, 1077, 1080, 1927, 1021, IN_TRANSACTION];
/// Those of [`TRANSIENT`] that can arrive during a commit.
const MAY_HAVE_TAKEN_EFFECT: [u16; 3] = [1053, 1080, 1927];

impl From<Error> for ConnectError {
    fn from(error: Error) -> ConnectError {
        if let Error::Driver(DriverError::NoClientSslFlagFromServer) = error {
            return SecurityError::NotEncrypted.connect_error(&TLS);
        }
        if let Some(error) = SecurityError::behind(&error) {
            return error.connect_error(&TLS);
        }
        let text = message(&error);
        let transient: [&[u16]; 5] = [&CONTENTION, &MISSING, &READ_ONLY, &INTERRUPTED, &TRANSIENT];
        let connect_error = match &error {
            Error::Server(server) if server.code == LOGIN_REJECTED => ConnectError::permanent(format!(
                "{text}; give a user and a password that it accepts, the password in PALISADE_SECRET or MYSQL_PWD. If it \
                 requires encryption, add ?ssl-mode=required; if it requires a certificate, add {}",
                TLS.identity()
            )),
            Error::Server(server) if server.code == NO_DATABASE_RIGHTS => ConnectError::permanent(format!(
                "{text}; grant it what the locks need: GRANT EXECUTE ON database.* TO user, and SELECT on the tables \
                 palisade_… (docs/engines/mysql.md lists them)"
            )),
            Error::Server(server) if !transient.concat().contains(&server.code) => ConnectError::permanent(text),
            Error::Io(IoError::Tls(_)) => ConnectError::permanent(text),
            _ => ConnectError::transient(text),
        };
        connect_error.because(Arc::new(error))
    }
}

/// The error in one line.
pub(crate) fn message(error: &Error) -> String {
    let text = match error {
        Error::Server(error) => error.message.clone(),
        Error::Io(IoError::Io(error)) if is_broken(error.kind()) => format!("cannot be reached: {error}"),
        Error::Io(IoError::Io(error)) => {
            format!("cannot be reached: {error}. Is it running, and is the address right?")
        }
        other => other.to_string(),
    };
    printable(&text)
}

/// Whether a connection was there before.
fn is_broken(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn has_code(error: &Error, codes: &[u16]) -> bool {
    matches!(error, Error::Server(error) if codes.contains(&error.code))
}

/// Whether another transaction has caused the error, so that the same statement can be sent again at once.
pub(crate) fn is_contention(error: &Error) -> bool {
    has_code(error, &CONTENTION)
}

/// Whether the connection may have a transaction open: an interrupted procedure may skip the handler that rolls back. Closing
/// the connection rolls it back.
pub(super) fn leaves_transaction(error: &Error) -> bool {
    has_code(error, &INTERRUPTED) || has_code(error, &[IN_TRANSACTION])
}

pub(crate) fn is_denied(error: &Error) -> bool {
    has_code(error, &DENIED)
}

pub(crate) fn is_missing(error: &Error) -> bool {
    has_code(error, &MISSING)
}

/// The failure of a call whose statement failed. MySQL has rolled back after an error, unless the call was ended from outside.
pub(super) fn failure(peer: &Peer, error: Error) -> Failure {
    let message = message(&error);
    if is_denied(&error) {
        return Failure::Denied(format!(
            "{peer}: {message}; the locks need EXECUTE on the database and SELECT on its tables palisade_…"
        ));
    }
    if has_code(&error, &[TOO_MANY_PREPARED]) {
        return Failure::Denied(format!("{peer}: {message}"));
    }
    let may_have_taken_effect = match &error {
        Error::Server(error) => MAY_HAVE_TAKEN_EFFECT.contains(&error.code) || INTERRUPTED.contains(&error.code),
        _ => true,
    };
    let connect_error = if is_missing(&error) {
        let what = format!(
            "{message}: the tables and procedures palisade_… are gone, or are just being replaced. If a dump was restored \
             without --routines, its tokens may be given again, too: run palisade engine mysql schema | mysql DATABASE, \
             then palisade tokens raise --above TOKEN --url URL, with the highest token that a resource has seen"
        );
        ConnectError::transient(what).because(Arc::new(error))
    } else if has_code(&error, &READ_ONLY) {
        let what = format!("{message}; it is a replica, or read-only: connect to the primary");
        ConnectError::transient(what).because(Arc::new(error))
    } else {
        error.into()
    };
    connect_error.at(peer).failure(may_have_taken_effect)
}
