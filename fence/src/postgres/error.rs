//! Maps the database's errors.

use palisade_core::Token;
use serde_json::Value;
use tokio_postgres::error::DbError;

use super::change::Failed;
use crate::{ErrorKind, Seq};

/// Maps an error. `may_be_committed`: whether a COMMIT was sent before it.
pub(super) fn kind(error: tokio_postgres::Error, may_be_committed: bool) -> ErrorKind {
    match error.as_db_error().cloned() {
        Some(db_error) => refusal(&db_error).unwrap_or_else(|| failure(&db_error, error, may_be_committed)),
        None if may_be_committed => ErrorKind::unknown(format!("the connection is lost: {error}"), error),
        None => ErrorKind::unreached(format!("the connection is lost: {error}"), error),
    }
}

/// Maps the error of a closure, before any COMMIT.
pub(super) fn kind_of_failed(failed: Failed) -> ErrorKind {
    match failed.downcast::<tokio_postgres::Error>() {
        Ok(error) => kind(*error, false),
        Err(own) => ErrorKind::Rejected { what: own.to_string(), source: Some(own) },
    }
}

/// Returns the stored outcome, if the error says that the number is used up. `Some(None)`: nothing was written under it.
pub(super) fn stored(error: &tokio_postgres::Error) -> Option<Option<Vec<u8>>> {
    let db_error = error.as_db_error().filter(|db_error| db_error.code().code() == "PF004")?;
    let detail: Value = serde_json::from_str(db_error.detail()?).ok()?;
    match detail.get("outcome") {
        None => Some(None),
        Some(hex) => bytes(hex.as_str()?).map(Some),
    }
}

/// Maps an error of the fence.
fn refusal(db_error: &DbError) -> Option<ErrorKind> {
    let detail: Value = db_error.detail().and_then(|detail| serde_json::from_str(detail).ok()).unwrap_or_default();
    let seen = || Token::new(detail.get("seen")?.as_u64()?).ok();
    let expected = || Seq::new(detail.get("expected")?.as_u64()?).ok();
    match db_error.code().code() {
        "PF001" => Some(ErrorKind::Stale { seen: seen()? }),
        "PF002" => Some(ErrorKind::NotSealed),
        "PF005" => Some(ErrorKind::Gap { expected: expected()? }),
        "PF007" => Some(ErrorKind::Superseded { seen: seen()? }),
        "PF003" | "PF004" | "PF006" | "PF008" => Some(ErrorKind::misuse(in_words(db_error))),
        "3F000" | "42883" | "42P01" if db_error.message().contains("palisade_fence") => Some(ErrorKind::misuse(
            "the schema palisade_fence is not installed in this database, or is older than this program: `palisade fence postgres \
             --install`",
        )),
        "42501" if db_error.message().contains("palisade_fence") => Some(ErrorKind::misuse(format!(
            "{}: GRANT USAGE ON SCHEMA palisade_fence, and EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence, to this role",
            db_error.message()
        ))),
        _ => None,
    }
}

/// Maps any other error of the database.
fn failure(db_error: &DbError, error: tokio_postgres::Error, may_be_committed: bool) -> ErrorKind {
    let (what, code) = (in_words(db_error), db_error.code().code());
    match code {
        // The server ends the connection, at any point.
        _ if code.starts_with("57P") || code.starts_with("08") || code.starts_with("XX") || code == "25P03" => {
            let what = format!("the server has ended it: {what}");
            match may_be_committed {
                true => ErrorKind::unknown(what, error),
                false => ErrorKind::unreached(what, error),
            }
        }
        // Rolled back, for a transient reason: a conflict, a timeout, or no space.
        "40001" | "40P01" | "55P03" | "57014" => ErrorKind::unreached(what, error),
        _ if code.starts_with("53") => ErrorKind::unreached(what, error),
        "25006" | "28000" | "28P01" | "3D000" => ErrorKind::misuse(what),
        "25P02" => ErrorKind::Rejected {
            what: "an earlier statement of this transaction has failed, so it was rolled back".to_owned(),
            source: Some(error.into()),
        },
        _ => ErrorKind::Rejected { what, source: Some(error.into()) },
    }
}

fn in_words(db_error: &DbError) -> String {
    let hint = db_error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}{hint} (SQLSTATE {})", db_error.message(), db_error.code().code())
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        hex.chars().map(|digit| digit.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    Some(digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
