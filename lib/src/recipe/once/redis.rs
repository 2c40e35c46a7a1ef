//! Records in Redis.

use std::sync::LazyLock;
use std::time::Duration;

use palisade_core::Token;
use redis::{FromRedisValue, Script, Value};

use super::{Attempt, Begun, Finished, OnceStore, Record};
use crate::recipe::store::Redis;
use crate::{Error, ErrorKind};

/// A part of the keys.
const RECIPE: &str = "once";
static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("once.lua")));

impl OnceStore for Redis {
    async fn find(&self, key: &str) -> Result<Option<Record>, Error> {
        let at = ("read the record of", key);
        let reply = self.call(at, SCRIPT.key(self.key(RECIPE, key)).arg("find")).await?;
        let [token, request, outcome] = fields(reply, at)?;
        let Some(token) = token else { return Ok(None) };
        let token = Some(parse_token(&token, at)?);
        Ok(Some(Record { token, request: request.filter(|request| !request.is_empty()), outcome, is_expired: false }))
    }

    async fn begin(&self, key: &str, attempt: &Attempt) -> Result<Begun, Error> {
        let at = ("begin", key);
        let mut script = SCRIPT.key(self.key(RECIPE, key));
        script.arg("begin").arg(attempt.token.get()).arg(attempt.request.as_deref().unwrap_or_default());
        let reply = self.call(at, script.arg(milliseconds(attempt.keep_unfinished()))).await?;
        let [word, detail, _] = fields(reply, at)?;
        Ok(match (word.as_deref(), detail) {
            (Some(b"run"), None) => Begun::Run { previous: None },
            (Some(b"run"), Some(previous)) => Begun::Run { previous: Some(parse_token(&previous, at)?) },
            (Some(b"done"), Some(outcome)) => Begun::Done(outcome),
            (Some(b"superseded"), Some(by)) => Begun::Superseded { by: parse_token(&by, at)? },
            (Some(b"other"), _) => Begun::OtherRequest,
            _ => return Err(unexpected(at)),
        })
    }

    async fn finish(&self, key: &str, attempt: &Attempt, outcome: &[u8]) -> Result<Finished, Error> {
        let at = ("keep the outcome of", key);
        let mut script = SCRIPT.key(self.key(RECIPE, key));
        script.arg("finish").arg(attempt.token.get()).arg(outcome);
        let reply = self.call(at, script.arg(milliseconds(attempt.keep))).await?;
        let [word, by, _] = fields(reply, at)?;
        Ok(match word.as_deref() {
            Some(b"kept") => Finished::Kept,
            Some(b"refused") => Finished::Refused { by: by.map(|by| parse_token(&by, at)).transpose()? },
            _ => return Err(unexpected(at)),
        })
    }
}

fn milliseconds(keep: Duration) -> u64 {
    u64::try_from(keep.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the first three parts of a reply.
fn fields(reply: Value, at: (&'static str, &str)) -> Result<[Option<Vec<u8>>; 3], Error> {
    let mut parts = Vec::<Option<Vec<u8>>>::from_redis_value(reply).map_err(|_| unexpected(at))?;
    parts.resize(3, None);
    parts.try_into().map_err(|_| unexpected(at))
}

fn parse_token(text: &[u8], at: (&'static str, &str)) -> Result<Token, Error> {
    let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.and_then(|number| Token::new(number).ok()).ok_or_else(|| unexpected(at))
}

fn unexpected((operation, key): (&'static str, &str)) -> Error {
    let what =
        "its key holds something else than a record; another program uses keys like palisade:{…}:once:…".to_owned();
    let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: false, source: None };
    Error::new(kind, "redis", operation).on(key)
}
