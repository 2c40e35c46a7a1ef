//! Maps the server's errors.

use redis::RedisError;

use crate::{ErrorKind, Seq, Token};

/// Why a call failed.
pub(super) enum Failure {
    /// Nothing was sent.
    NotConnected(RedisError),
    /// The server's error, or the connection's while it was awaited.
    Answered(RedisError),
}

impl Failure {
    /// Returns whether the number is settled: nothing was written under it, and nothing will be.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self, Failure::Answered(error) if error.code() == Some("SETTLED"))
    }

    pub(super) fn kind(self) -> ErrorKind {
        match self {
            Failure::NotConnected(error) if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                refused(format!("the server refuses the user or the password: {error}"), false, error)
            }
            Failure::NotConnected(error) => {
                ErrorKind::unreached(format!("the server cannot be reached: {error}"), error)
            }
            Failure::Answered(error) => answered(error),
        }
    }
}

fn answered(error: RedisError) -> ErrorKind {
    let Some(code) = error.code() else {
        return ErrorKind::unknown(format!("the connection broke: {error}"), error);
    };
    let detail = error.detail().unwrap_or_default();
    let number = detail.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    let token = number.and_then(|number| Token::new(number).ok());
    let seq = number.and_then(|number| Seq::new(number).ok());
    match (code, token, seq) {
        ("STALE", Some(seen), _) => ErrorKind::Stale { seen },
        ("SUPERSEDED", Some(seen), _) => ErrorKind::Superseded { seen },
        ("GAP", _, Some(expected)) => ErrorKind::Gap { expected },
        ("NOTSEALED", ..) => ErrorKind::NotSealed,
        ("REJECTED", ..) => ErrorKind::Rejected { what: format!("the server says: {detail}"), source: None },
        ("MISUSE", ..) => ErrorKind::misuse(detail),
        ("MARKLOST", ..) => ErrorKind::misuse(
            "its key holds data, but there is no mark: either the mark was lost, then look what else is, or the data were \
             never fenced; adopt() them with a token that is newer than any that was used",
        ),
        ("CROSSSLOT", ..) => ErrorKind::misuse(
            "in a cluster the keys must be in one hash slot: use the resource's name itself, or keys with {name} in them",
        ),
        ("WRONGTYPE", ..) => ErrorKind::misuse("the key of its mark, palisade:{name}, holds something else"),
        ("NOPERM" | "NOAUTH", ..) => refused(format!("the server does not permit it: {detail}"), false, error),
        (
            "ASK" | "BUSY" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "MISCONF" | "MOVED" | "NOREPLICAS" | "OOM"
            | "READONLY" | "TRYAGAIN",
            ..,
        ) => refused(format!("the server cannot do it now: {error}"), true, error),
        ("ERR", ..) if detail.starts_with("Function not found") => refused(
            "the functions are not installed there: `palisade fence redis --install URL`. If they were, this server has \
             lost its data, marks included"
                .to_owned(),
            false,
            error,
        ),
        _ => ErrorKind::unknown(format!("the server failed: {error}"), error),
    }
}

/// Returns the error of a refusal, after which nothing has changed.
fn refused(what: String, is_retryable: bool, source: RedisError) -> ErrorKind {
    ErrorKind::Unavailable { what, may_have_taken_effect: false, is_retryable, source: Some(Box::new(source)) }
}
