//! The commands of Redis that lock libraries use on their keys. A key is a lock, and its value is the secret of the holder.

use palisade_core::{LockNames, Secret, Ttl};

use super::channels::{Announcement, Subscription};
use super::command::{BadRequest, Command, Reader, bad, usage};
use super::form::{Form, Missing, Shown, Word};
use super::scripts::{Meaning, Script};
use crate::request::{Extension, Query, Request};

/// Why a command of Redis is refused that does not lock.
const NO_DATABASE: &str = "this is a lock service, not a database: a lock is taken with SET key value NX PX ms";

/// A script that a client sends, with the keys and arguments of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// How the client names the script.
    pub by: CalledBy,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

/// How a client names a script.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CalledBy {
    Text(Vec<u8>),
    Digest(Vec<u8>),
}

pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Command, BadRequest> {
    let missing = |word| Missing { refused: word, free: word };
    let one_or_zero = |locks| Form::done_or(Word::Number(1), Word::Number(0), locks);
    let (request, form) = match reader.command {
        "SET" => set(reader)?,
        "GET" => (
            held([reader.lock()?], None),
            Form::Held { secret: None, shown: Shown::Secret, missing: missing(Word::Nil) },
        ),
        "EXISTS" => {
            let mut locks = LockNames::from([reader.lock()?]);
            while !reader.words.is_empty() {
                locks.push(reader.lock()?);
            }
            (held(locks, None), Form::Held { secret: None, shown: Shown::Count, missing: missing(Word::Nil) })
        }
        "PTTL" | "TTL" => {
            let shown = Shown::TimeLeft(if reader.command == "TTL" { 1000 } else { 1 });
            (held([reader.lock()?], None), Form::Held { secret: None, shown, missing: missing(Word::Number(-2)) })
        }
        "DEL" | "UNLINK" => (Request::DropHeld { lock: reader.lock()? }, one_or_zero(1)),
        "DELEX" => {
            let lock = reader.lock()?;
            if !reader.take("IFEQ") {
                return Err(usage(reader.command));
            }
            let secret = Secret::new(reader.next()?);
            (Request::ReleaseHeld { locks: LockNames::from([lock]), secret }, one_or_zero(1))
        }
        "PEXPIRE" | "EXPIRE" => {
            let lock = reader.lock()?;
            let ttl = ttl(reader, if reader.command == "EXPIRE" { 1000 } else { 1 })?;
            (Request::ExpireHeld { lock, ttl }, one_or_zero(1))
        }
        "LOCK TOKEN" => {
            let (lock, secret) = (reader.lock()?, Some(Secret::new(reader.next()?)));
            (held([lock], secret.as_ref()), Form::Held { secret, shown: Shown::Token, missing: missing(Word::Nil) })
        }
        "EVAL" => return call(reader, CalledBy::Text),
        "EVALSHA" => return call(reader, CalledBy::Digest),
        "SCRIPT LOAD" => return Ok(Command::LoadScript(reader.next()?.to_vec())),
        "SCRIPT EXISTS" => {
            let digests = std::mem::take(&mut reader.words).iter().map(|digest| digest.to_vec()).collect();
            return Ok(Command::FindScripts(digests));
        }
        "SUBSCRIBE" | "PSUBSCRIBE" => {
            let is_pattern = reader.command == "PSUBSCRIBE";
            let mut names = vec![reader.next()?];
            names.extend(std::mem::take(&mut reader.words));
            let subscription = |name: &[u8]| Subscription { name: name.to_vec(), is_pattern };
            return Ok(Command::Subscribe(names.into_iter().map(subscription).collect()));
        }
        "UNSUBSCRIBE" | "PUNSUBSCRIBE" => {
            let names = std::mem::take(&mut reader.words).iter().map(|name| name.to_vec()).collect();
            return Ok(Command::Unsubscribe { is_pattern: reader.command == "PUNSUBSCRIBE", names });
        }
        "SELECT" => match reader.number("database")? {
            0 => return Ok(Command::Ignored),
            other => return Err(bad("database", other.to_string().as_bytes(), "is not there: there is only 0")),
        },
        _ => return Err(usage(reader.command)),
    };
    Ok(Command::Keyed(request, form))
}

fn held(locks: impl Into<LockNames>, secret: Option<&Secret>) -> Request {
    Request::Query(Query::Held { locks: locks.into(), secret: secret.cloned() })
}

fn ttl(reader: &mut Reader<'_>, unit: u64) -> Result<Ttl, BadRequest> {
    reader.parsed("time", |number| Ttl::from_ms(number.saturating_mul(unit)))
}

/// When a SET sets.
#[derive(PartialEq)]
enum Condition {
    Always,
    /// The lock is free.
    Free,
    /// The lock is held, with this value.
    Held(Secret),
}

fn set(reader: &mut Reader<'_>) -> Result<(Request, Form), BadRequest> {
    let (lock, value) = (reader.lock()?, Secret::new(reader.next()?));
    let (mut condition, mut time, mut keeps_time, mut shows_value) = (Condition::Always, None, false, false);
    while !reader.words.is_empty() {
        if condition == Condition::Always && reader.take("NX") {
            condition = Condition::Free;
        } else if condition == Condition::Always && reader.take("XX") {
            condition = Condition::Held(value.clone());
        } else if condition == Condition::Always && reader.take("IFEQ") {
            condition = Condition::Held(Secret::new(reader.next()?));
        } else if time.is_none() && !keeps_time && reader.take("PX") {
            time = Some(ttl(reader, 1)?);
        } else if time.is_none() && !keeps_time && reader.take("EX") {
            time = Some(ttl(reader, 1000)?);
        } else if time.is_none() && reader.take("KEEPTTL") {
            keeps_time = true;
        } else if reader.take("GET") {
            shows_value = true;
        } else {
            return Err(usage(reader.command));
        }
    }
    let refused = |why: &str| Err(BadRequest::NotALock(format!("{why}; {NO_DATABASE}")));
    match condition {
        Condition::Always => refused("SET without NX would overwrite the lock of another client"),
        Condition::Free if keeps_time || shows_value => refused("SET with NX has neither KEEPTTL nor GET here"),
        Condition::Free => {
            let locks = LockNames::from([lock]);
            let form = Form::done_or(Word::Ok, Word::Nil, 1);
            Ok((Request::take(locks, value, time.unwrap_or(Ttl::ENDLESS), false), form))
        }
        Condition::Held(expected) if expected != value => refused("SET cannot change the value of a lock"),
        Condition::Held(_) => {
            let shown = if shows_value { Shown::Secret } else { Shown::Word(Word::Ok) };
            let missing = Missing { refused: Word::Nil, free: Word::Nil };
            match time {
                Some(ttl) if !shows_value => {
                    let (locks, time) = (LockNames::from([lock]), Extension::For(ttl));
                    Ok((Request::ExtendHeld { locks, secret: value, time }, Form::done_or(Word::Ok, Word::Nil, 1)))
                }
                Some(_) => refused("SET with a time has no GET here"),
                None if keeps_time => {
                    Ok((held([lock], Some(&value)), Form::Held { secret: Some(value), shown, missing }))
                }
                None => refused("SET with XX needs a time, or KEEPTTL"),
            }
        }
    }
}

fn call(reader: &mut Reader<'_>, by: fn(Vec<u8>) -> CalledBy) -> Result<Command, BadRequest> {
    let by = by(reader.next()?.to_vec());
    let count = reader.number("numkeys")?;
    let words = std::mem::take(&mut reader.words);
    let count =
        usize::try_from(count).ok().filter(|count| *count <= words.len()).ok_or_else(|| usage(reader.command))?;
    let owned = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect();
    let (keys, arguments) = words.split_at(count);
    Ok(Command::Eval(Call { by, keys: owned(keys), arguments: owned(arguments) }))
}

/// Returns the request that a call of a known script stands for, and the form of its reply.
pub(super) fn request_of(call: &Call, script: &Script) -> Result<(Request, Form), BadRequest> {
    let mut reader = Reader { words: &call.keys.iter().map(Vec::as_slice).collect::<Vec<_>>(), command: "EVAL" };
    let mut locks = LockNames::new();
    while !reader.words.is_empty() {
        locks.push(reader.lock()?);
    }
    let count = locks.len();
    let Some(first) = locks.first().cloned() else { return Err(usage("EVAL")) };
    let arguments: Vec<&[u8]> = call.arguments.iter().map(Vec::as_slice).collect();
    let argument = |number: usize| arguments.get(number - 1).copied().ok_or_else(|| usage("EVAL"));
    let ttl_at = |number: usize| ttl(&mut Reader { words: &[argument(number)?], command: "EVAL" }, 1);
    let secret = Secret::new(argument(1)?);
    let announce = |number| Ok(Announcement { channel: argument(number)?.to_vec(), lock: first.clone() });
    Ok(match script.meaning {
        Meaning::Take { ttl, renews, outcomes } => {
            (Request::take(locks, secret, ttl_at(ttl)?, renews), Meaning::form(outcomes, count, None))
        }
        Meaning::Release { outcomes, channel } => {
            let announcement = channel.map(&announce).transpose()?;
            (Request::ReleaseHeld { locks, secret }, Meaning::form(outcomes, count, announcement))
        }
        Meaning::Extend { ttl, outcomes } => {
            let time = Extension::For(ttl_at(ttl)?);
            (Request::ExtendHeld { locks, secret, time }, Meaning::form(outcomes, count, None))
        }
        Meaning::AddTime { outcomes } => {
            let time = match argument(3)? {
                b"0" => Extension::Add(Reader { words: &[argument(2)?], command: "EVAL" }.number("time")?),
                _ => Extension::Replace(ttl_at(2)?),
            };
            (Request::ExtendHeld { locks, secret, time }, Meaning::form(outcomes, count, None))
        }
        Meaning::Drop { outcomes } => {
            let announcement = Some(announce(1)?);
            (Request::DropHeld { lock: first }, Meaning::form(outcomes, count, announcement))
        }
        Meaning::TimeLeft { unit, missing } => {
            (held(locks, Some(&secret)), Meaning::time_left(unit, missing, secret))
        }
    })
}
