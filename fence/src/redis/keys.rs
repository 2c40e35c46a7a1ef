//! The keys that one mark protects.

use std::fmt;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue, ToRedisArgs, Value};

use super::answer::Failure;
use super::command::Command;
use super::connection::Connection;
use crate::name::check_name;
use crate::{Error, ErrorKind, Mark, Pass, Resource, Sealed, Seq, Token};

const LONGEST_NAME: usize = 255;
/// No keys except the mark's.
const NONE: &[&str] = &[];

/// Keys that one mark protects, at `palisade:{name}`. All clones are the same keys.
#[derive(Clone)]
pub struct Keys {
    connection: Arc<Connection>,
    name: Arc<str>,
    mark: Arc<str>,
}

impl Keys {
    pub(super) fn new(connection: Arc<Connection>, name: &str) -> Result<Keys, Error> {
        let mark = format!("palisade:{{{name}}}").into();
        let keys = Keys { connection, name: name.into(), mark };
        let what = match check_name(name, LONGEST_NAME) {
            Err(what) => what,
            Ok(()) if name.contains(['{', '}']) => {
                "a resource's name has no braces here, which decide the hash slot; leave them out".to_owned()
            }
            Ok(()) => return Ok(keys),
        };
        Err(keys.error(ErrorKind::misuse(what), "use"))
    }

    /// Gives a mark to data that were never fenced. Sealing refuses such data, because they look like data whose mark was
    /// lost. Call it once, when the data are first fenced, with a token that is newer than any that was used.
    ///
    /// # Errors
    ///
    /// As sealing: a newer token has sealed it; the server cannot be reached.
    pub async fn adopt(&self, token: Token) -> Result<(), Error> {
        self.raise_unless_data(NONE, token).await.map(|_| ())
    }

    /// Reads the mark; `None` if the keys were never sealed.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn mark(&self) -> Result<Option<Mark>, Error> {
        let failed = |failure: Failure| self.error(failure.kind(), "read the mark of");
        let answer = self.connection.call(&self.call("palisade_mark", NONE)).await.map_err(failed)?;
        match answer {
            Value::Array(numbers) if numbers.is_empty() => Ok(None),
            Value::Array(numbers) => match numbers[..] {
                [Value::Int(token), Value::Int(seq)] => self.mark_of(token, seq).map(Some),
                _ => Err(self.unexpected_answer("read the mark of")),
            },
            _ => Err(self.unexpected_answer("read the mark of")),
        }
    }

    /// Returns whether the key of the resource's name exists. If it does without a [mark](Keys::mark), the mark was lost, or
    /// the data were never fenced. Changes nothing.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or does not permit it.
    pub async fn has_data(&self) -> Result<bool, Error> {
        let mut call = redis::cmd("EXISTS");
        call.arg(&*self.name);
        match self.connection.call(&call).await.map_err(|failure| self.error(failure.kind(), "inspect"))? {
            Value::Int(count) => Ok(count > 0),
            _ => Err(self.unexpected_answer("inspect")),
        }
    }

    /// Raises the mark. Refuses if one of these keys exists without a mark.
    async fn raise_unless_data(&self, data_keys: &[&str], token: Token) -> Result<Mark, Error> {
        let mut call = self.call("palisade_seal", data_keys);
        call.arg(token.get());
        match self.connection.call(&call).await {
            Ok(Value::Int(seq)) => self.mark_of(token.get().cast_signed(), seq),
            Ok(_) => Err(self.unexpected_answer("seal").under(token)),
            Err(failure) => Err(self.error(failure.kind(), "seal").under(token)),
        }
    }

    /// Returns a call of one of the functions, up to its keys.
    fn call<K: ToRedisArgs>(&self, function: &str, keys: &[K]) -> Cmd {
        let mut call = redis::cmd("FCALL");
        call.arg(function).arg(keys.len() + 1).arg(&*self.mark).arg(keys);
        call
    }

    /// Returns a call on the keys of a command; without any, on the key of the resource's name.
    fn call_on(&self, function: &str, command: &Command) -> Cmd {
        match command.keys.is_empty() {
            true => self.call(function, &[&*self.name]),
            false => self.call(function, &command.keys),
        }
    }

    fn mark_of(&self, token: i64, seq: i64) -> Result<Mark, Error> {
        let token = u64::try_from(token).ok().and_then(|token| Token::new(token).ok());
        let seq = u64::try_from(seq).ok().and_then(|seq| Seq::new(seq).ok());
        match (token, seq) {
            (Some(token), Some(seq)) => Ok(Mark { token, seq }),
            _ => Err(self.unexpected_answer("inspect")),
        }
    }

    /// Returns the error of an answer that our functions never give.
    fn unexpected_answer(&self, operation: &'static str) -> Error {
        let what = "the server's answer has an unexpected form; check with `palisade fence redis` that its functions are Palisade's";
        self.error(ErrorKind::unknown(what, "another kind of answer was expected"), operation)
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, self.name(), operation)
    }
}

impl Resource for Keys {
    type Query = Command;
    type Answer = Value;
    type Change = Command;
    type Outcome = Value;

    fn name(&self) -> String {
        format!("redis {} on {}", self.name, self.connection.address())
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        self.raise_unless_data(&[&self.name], token).await
    }

    async fn read(&self, pass: &Pass, query: Command) -> Result<Value, Error> {
        let mut call = self.call_on("palisade_read", &query);
        call.arg(pass.token.get()).arg(query.name).arg(query.args);
        let answer = self.connection.call(&call).await;
        answer.map_err(|failure| self.error(failure.kind(), "read").under(pass.token))
    }

    async fn write(&self, pass: &Pass, change: Option<Command>) -> Result<Option<Value>, Error> {
        let stamp = [pass.token.get(), pass.seq.get(), pass.author.get()];
        let failed = |failure: Failure| self.error(failure.kind(), "write").under(pass.token);
        let Some(change) = change else {
            let mut call = self.call("palisade_settle", NONE);
            call.arg(&stamp);
            return match self.connection.call(&call).await.map_err(failed)? {
                Value::Array(mut outcome) if outcome.len() < 2 => Ok(outcome.pop()),
                _ => Err(self.unexpected_answer("write").under(pass.token)),
            };
        };
        let mut call = self.call_on("palisade_write", &change);
        call.arg(&stamp).arg(change.name).arg(change.args);
        match self.connection.call(&call).await {
            Ok(outcome) => Ok(Some(outcome)),
            Err(failure) if failure.is_settled() => Ok(None),
            Err(failure) => Err(failed(failure)),
        }
    }
}

crate::sealable!(Keys);

/// The commonest commands; [`read`](Sealed::read) and [`write`](Sealed::write) take any [`Command`].
impl Sealed<Keys> {
    /// Returns a key's value.
    ///
    /// # Errors
    ///
    /// As [`read`](Sealed::read).
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let value = self.read(Command::new("GET").key(key)).await?;
        self.parse(value, "read")
    }

    /// Returns a field of a key's hash.
    ///
    /// # Errors
    ///
    /// As [`read`](Sealed::read).
    pub async fn hget(&self, key: impl AsRef<[u8]>, field: impl ToRedisArgs) -> Result<Option<Vec<u8>>, Error> {
        let value = self.read(Command::new("HGET").key(key).arg(field)).await?;
        self.parse(value, "read")
    }

    /// Sets a key's value.
    ///
    /// # Errors
    ///
    /// As [`write`](Sealed::write).
    pub async fn set(&mut self, key: impl AsRef<[u8]>, value: impl ToRedisArgs) -> Result<(), Error> {
        self.write(Command::new("SET").key(key).arg(value)).await.map(|_| ())
    }

    /// Sets a field of a key's hash. Returns whether it is new.
    ///
    /// # Errors
    ///
    /// As [`write`](Sealed::write).
    pub async fn hset(
        &mut self,
        key: impl AsRef<[u8]>,
        field: impl ToRedisArgs,
        value: impl ToRedisArgs,
    ) -> Result<bool, Error> {
        let outcome = self.write(Command::new("HSET").key(key).arg(field).arg(value)).await?;
        self.parse(outcome, "write")
    }

    /// Adds to a key's number, and returns the sum.
    ///
    /// # Errors
    ///
    /// As [`write`](Sealed::write).
    pub async fn incr(&mut self, key: impl AsRef<[u8]>, by: i64) -> Result<i64, Error> {
        let outcome = self.write(Command::new("INCRBY").key(key).arg(by)).await?;
        self.parse(outcome, "write")
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// As [`write`](Sealed::write).
    pub async fn del(&mut self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let outcome = self.write(Command::new("DEL").key(key)).await?;
        self.parse(outcome, "write")
    }

    fn parse<T: FromRedisValue>(&self, value: Value, operation: &'static str) -> Result<T, Error> {
        redis::from_redis_value(value).map_err(|_| self.resource().unexpected_answer(operation).under(self.token()))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keys").field(&self.name()).finish()
    }
}
