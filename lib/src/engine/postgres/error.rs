//! What PostgreSQL says when it does not do what was asked, in the terms that decide what to do next.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::tls;
use crate::engine::Failure;
use crate::engine::trouble::{self, Driver};

pub(super) type Trouble = trouble::Trouble<tokio_postgres::Error>;

impl Driver for tokio_postgres::Error {
    const DATABASE: &'static str = "PostgreSQL";
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Trouble {
        let (what, is_for_good) = match obstacle(&error) {
            Some(what) => (what, true),
            None => (said(&error), error.code().is_some_and(|code| !is_passing(code))),
        };
        Trouble { what, is_for_good, source: Some(Arc::new(error)) }
    }
}

/// What is in the way of whoever connects, and what to do about it.
fn obstacle(error: &tokio_postgres::Error) -> Option<String> {
    if error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) {
        return Some(format!(
            "{}; its pg_hba.conf says whom it lets in: lines are encrypted with ?sslmode=require, a certificate is shown \
             with {}",
            said(error),
            tls::OPTIONS.identity
        ));
    }
    // The driver has no other word for it.
    if std::error::Error::source(error).is_some_and(|source| source.to_string() == "server does not support TLS") {
        let what = "it does not encrypt; have that switched on there (ssl = on), or say ?sslmode=disable if nobody can \
             listen or interfere";
        return Some(what.to_owned());
    }
    crate::engine::tls::obstacle(error, &tls::OPTIONS)
}

/// What was said, in one line: PostgreSQL's own words where there are any.
pub(super) fn said(error: &tokio_postgres::Error) -> String {
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
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

/// Whether the same may work later without anybody doing anything.
fn is_passing(code: &SqlState) -> bool {
    // Connections, resources, operators' intervention, rolled back, locked, a statement that a pooler has not prepared, and a
    // standby that may become a primary.
    ["08", "53", "57", "40", "55", "58", "26"].iter().any(|class| code.code().starts_with(class))
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
}

/// What a call comes to whose statement failed: an error of PostgreSQL's own has rolled it back.
pub(super) fn failure(address: &str, error: tokio_postgres::Error) -> Failure {
    let Some(code) = error.code().cloned() else {
        return Trouble::from(error).failure(address, true);
    };
    if code == SqlState::INSUFFICIENT_PRIVILEGE {
        let what = format!("{}; whoever installed the locks can let it: SELECT palisade.allow('role')", said(&error));
        return Failure::Denied(format!("PostgreSQL at {address}: {what}"));
    }
    // Whoever was ended by an operator may have been in the midst of its commit.
    let may_have = code.code().starts_with("57P0") || code.code().starts_with("08");
    let trouble = Trouble::from(error);
    let is_gone = [SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
    if is_gone.contains(&code) {
        let what = format!("{trouble}: the schema 'palisade' is gone, or was changed by hand");
        return Trouble { what, is_for_good: false, ..trouble }.failure(address, false);
    }
    trouble.failure(address, may_have)
}
