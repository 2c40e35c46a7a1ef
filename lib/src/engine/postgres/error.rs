//! PostgreSQL's errors: permanent or transient, and whether the call may have taken effect.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::config::TLS;
use crate::engine::Failure;
use crate::engine::remote::{ConnectError, Peer, SecurityError, printable};

impl From<tokio_postgres::Error> for ConnectError {
    fn from(error: tokio_postgres::Error) -> ConnectError {
        // The driver reports a server without TLS by this text alone.
        let no_tls = "server does not support TLS";
        if std::error::Error::source(&error).is_some_and(|source| source.to_string() == no_tls) {
            return SecurityError::NotEncrypted.connect_error(&TLS);
        }
        if let Some(error) = SecurityError::behind(&error) {
            return error.connect_error(&TLS);
        }
        let text = message(&error);
        if text.ends_with("password missing") {
            let what = "it requires a password; set the environment variable PALISADE_SECRET or PGPASSWORD";
            return ConnectError::permanent(what).because(Arc::new(error));
        }
        let connect_error = match error.code() {
            // The same code is for a role that does not exist.
            Some(_) if text.contains("pg_hba.conf") => ConnectError::permanent(format!(
                "{text}; its pg_hba.conf has no entry for this client. To encrypt the connection, add ?sslmode=require; to \
                 present a certificate, add {}",
                TLS.identity()
            )),
            Some(_) if text.contains("client certificate") => {
                ConnectError::permanent(format!("{text}; pass one with {}", TLS.identity()))
            }
            Some(code) if !is_transient(code) => ConnectError::permanent(text),
            _ => ConnectError::transient(text),
        };
        connect_error.because(Arc::new(error))
    }
}

/// The error in one line: PostgreSQL's message and hint, if there are any.
pub(crate) fn message(error: &tokio_postgres::Error) -> String {
    let text = match error.as_db_error() {
        Some(db) => match db.hint() {
            Some(hint) => format!("{}. {hint}", db.message()),
            None => db.message().to_owned(),
        },
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(inner) = source {
                let more = inner.to_string();
                if !text.contains(&more) {
                    text = format!("{text}: {more}");
                }
                source = inner.source();
            }
            text
        }
    };
    printable(&text)
}

/// Whether the same call may succeed later without a change by the operator.
fn is_transient(code: &SqlState) -> bool {
    // Connection, resources, operator intervention, rollback, locked row, I/O, a prepared statement unknown to the pooler, and
    // a standby that may become the primary.
    ["08", "53", "57", "40", "55", "58", "26"].iter().any(|class| code.code().starts_with(class))
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
}

/// The failure of a call whose statement failed. After an error reply, PostgreSQL has rolled back.
pub(in crate::engine) fn failure(peer: &Peer, error: tokio_postgres::Error) -> Failure {
    let Some(code) = error.code().cloned() else {
        return ConnectError::from(error).at(peer).failure(true);
    };
    if code == SqlState::INSUFFICIENT_PRIVILEGE {
        let what = format!(
            "{}; the role that installed the locks can allow it: SELECT palisade.allow('role')",
            message(&error)
        );
        return Failure::Denied(format!("{peer}: {what}"));
    }
    let missing = [SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
    if missing.contains(&code) {
        let what = format!("{}: the schema 'palisade' is gone, or was changed by hand", message(&error));
        return ConnectError::transient(what).because(Arc::new(error)).at(peer).failure(false);
    }
    // A backend that an operator terminates may be in the middle of its commit.
    let may_have_taken_effect = code.code().starts_with("57P0") || code.code().starts_with("08");
    ConnectError::from(error).at(peer).failure(may_have_taken_effect)
}
