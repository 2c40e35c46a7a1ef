//! Maps the server's errors.

use mysql_async::Error as Cause;

use crate::ErrorKind;

/// The stage at which an operation failed. It decides whether the operation may have taken effect.
pub(super) enum Failure {
    /// There was no connection.
    NotConnected(Cause),
    /// It failed before the COMMIT was sent: it is rolled back.
    Undone(Cause),
    /// It failed when it may have been committed.
    Open(Cause),
}

impl Failure {
    pub(super) fn kind(self) -> ErrorKind {
        match self {
            Failure::NotConnected(Cause::Server(server)) => {
                // Too many connections may go away; a wrong password does not.
                let is_retryable = server.state.starts_with("08");
                undone(format!("the server refuses: {}", server.message), is_retryable, Cause::Server(server))
            }
            Failure::NotConnected(cause) => {
                ErrorKind::unreached(format!("the server cannot be reached: {cause}"), cause)
            }
            Failure::Undone(Cause::Server(server)) => refused(Cause::Server(server)),
            Failure::Undone(cause) => undone(format!("the connection broke: {cause}"), true, cause),
            Failure::Open(cause) => {
                ErrorKind::unknown(format!("the server or the connection failed: {cause}"), cause)
            }
        }
    }
}

/// Maps the refusal of a statement. The class of its SQLSTATE tells the cause.
fn refused(cause: Cause) -> ErrorKind {
    let Cause::Server(server) = &cause else { return ErrorKind::unknown("it failed", cause) };
    match (server.state.get(..2), server.code) {
        // Constraints, values, syntax and rights, a view's check, errors of triggers.
        (Some("21" | "22" | "23" | "42" | "44" | "45"), _) => ErrorKind::Rejected {
            what: format!("the server says: {}", server.message),
            source: Some(Box::new(cause)),
        },
        (Some("25"), _) => ErrorKind::misuse(format!("a read cannot write: {}", server.message)),
        // A deadlock, or another transaction that holds the mark for too long.
        (Some("40"), _) | (_, 1205) => undone(format!("another transaction was in the way: {cause}"), true, cause),
        _ => undone(format!("the server cannot do it: {cause}"), false, cause),
    }
}

fn undone(what: String, is_retryable: bool, source: Cause) -> ErrorKind {
    ErrorKind::Unavailable { what, may_have_taken_effect: false, is_retryable, source: Some(Box::new(source)) }
}
