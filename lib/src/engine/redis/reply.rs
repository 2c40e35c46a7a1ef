//! Reading what Redis answers.

use palisade_core::{BadNumber, LockName, SessionId, Token};
use redis::Value;

use crate::engine::{Failure, Unavailable};

/// An answer that this build does not understand.
#[derive(Debug)]
pub(super) struct Unexpected(pub(super) String);

impl Unexpected {
    pub(super) fn instead_of(what: &str, found: &Value) -> Unexpected {
        Unexpected(format!("instead of {what}: {found:?}"))
    }
}

impl From<BadNumber> for Unexpected {
    fn from(bad: BadNumber) -> Unexpected {
        Unexpected(bad.to_string())
    }
}

impl From<Unexpected> for Failure {
    fn from(Unexpected(what): Unexpected) -> Failure {
        Unavailable::new(format!("Redis gave an answer that this build does not understand: {what}"))
            .permanent()
            .into()
    }
}

pub(super) fn items(value: &Value) -> Result<&[Value], Unexpected> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(Unexpected::instead_of("a list", other)),
    }
}

pub(super) fn bytes(value: &Value) -> Result<&[u8], Unexpected> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        other => Err(Unexpected::instead_of("text", other)),
    }
}

/// What an answer to `INFO` says of this name.
pub(super) fn info<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let text = match info {
        Value::VerbatimString { text, .. } => text,
        other => str::from_utf8(bytes(other).ok()?).ok()?,
    };
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Text. Whatever is none in it is shown as such: labels come from any client.
pub(super) fn text(value: &Value) -> Result<String, Unexpected> {
    Ok(String::from_utf8_lossy(bytes(value)?).into_owned())
}

pub(super) fn number(value: &Value) -> Result<u64, Unexpected> {
    let found = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    found.ok_or_else(|| Unexpected::instead_of("a number", value))
}

pub(super) fn small(value: &Value) -> Result<u32, Unexpected> {
    u32::try_from(number(value)?).map_err(|_| Unexpected::instead_of("a small number", value))
}

pub(super) fn token(value: &Value) -> Result<Token, Unexpected> {
    Ok(Token::new(number(value)?)?)
}

pub(super) fn session(value: &Value) -> Result<SessionId, Unexpected> {
    Ok(SessionId::new(number(value)?)?)
}

pub(super) fn name(value: &Value) -> Result<LockName, Unexpected> {
    LockName::new(&text(value)?).map_err(|bad| Unexpected(bad.to_string()))
}

pub(super) fn optional<T>(
    value: &Value,
    read: impl FnOnce(&Value) -> Result<T, Unexpected>,
) -> Result<Option<T>, Unexpected> {
    if *value == Value::Nil { Ok(None) } else { read(value).map(Some) }
}
