//! The requests to the Lua code in Redis, its replies, and the messages that it publishes.

use std::sync::Arc;

use palisade_core::{
    Acquire, BadNumber, Delay, Departure, Ending, Event, Force, Kind, Label, Limit, LockName, LockNames, Mode,
    Patience, Reentry, Refusal, RequestNo, SessionEnd, SessionId, Ticket, Token, Value as Published,
};
use redis::{ToRedisArgs, Value};

use super::fast_path::{FastOperation, FastRequest};
use super::namespace::NamespaceState;
use super::{DataLost, RedisBackend};
use crate::engine::remote::{ClientState, Held, check_most};
use crate::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};

/// The permits of a lock that is not a semaphore. An exclusive holder takes all of them.
pub(super) const ALL: u32 = u32::MAX;

/// Describes data that this build cannot interpret.
#[derive(Debug)]
pub(super) struct Unexpected(pub(super) String);

type Read<T> = Result<T, Unexpected>;

impl From<BadNumber> for Unexpected {
    fn from(bad: BadNumber) -> Unexpected {
        Unexpected(bad.to_string())
    }
}

fn unexpected<T>(wanted: &str, found: &Value) -> Read<T> {
    Err(Unexpected(format!("{found:?} instead of {wanted}")))
}

// Requests.

/// A request to the Lua code.
#[derive(Debug, Clone)]
pub(super) enum Request {
    /// An acquire or a release that the fast path may serve.
    Fast(FastRequest),
    /// The name and the arguments.
    Other(&'static str, Vec<Vec<u8>>),
}

impl Request {
    pub(super) fn new(name: &'static str) -> Request {
        Request::Other(name, Vec::new())
    }

    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Request {
        if let Request::Other(_, args) = &mut self {
            arg.write_redis_args(args);
        }
        self
    }

    pub(super) fn locks<'a>(self, locks: impl IntoIterator<Item = &'a LockName>) -> Request {
        locks.into_iter().fold(self, |request, lock| request.arg(lock.as_str()))
    }

    /// An acquire that [`check_acquire`] accepts. `lowest` is the lowest request number that the client may repeat.
    pub(super) fn acquire(acquire: &Acquire, number: RequestNo, lowest: u64) -> Request {
        let session = acquire.caller.session;
        if let ([want], None, None, Reentry::Queue) =
            (&acquire.wants[..], acquire.delay, &acquire.value, acquire.reentry)
            && want.mode == Mode::Exclusive
        {
            let operation = FastOperation::Acquire(number, acquire.patience);
            return Request::Fast(FastRequest {
                session,
                lowest_repeatable: lowest,
                lock: want.lock.clone(),
                operation,
            });
        }
        let reentry = if acquire.reentry == Reentry::Refuse { "refuse" } else { "queue" };
        let delay = acquire.delay.map(|delay| delay.as_ms().to_string()).unwrap_or_default();
        let value = acquire.value.as_ref().map(|value| [b"=", value.as_bytes()].concat()).unwrap_or_default();
        let request = Request::new("acquire").arg(session.get()).arg(number.get());
        let request = request.arg(format!("{}.{lowest}", patience_word(acquire.patience))).arg(reentry);
        acquire.wants.iter().fold(request.arg(delay).arg(value), |request, want| {
            let (need, limit) = match want.mode {
                Mode::Exclusive => (ALL, ALL),
                Mode::Shared => (1, ALL),
                Mode::Permits { count, of } => (count, of),
            };
            request.arg(want.lock.as_str()).arg(need).arg(limit)
        })
    }

    /// `was_never_retried`: the grant's acquire was sent only once, so that no late copy of it can arrive.
    pub(super) fn release(held: &Held, lowest: u64, was_never_retried: bool) -> Request {
        let Held { session, lock, token } = held;
        if was_never_retried {
            let (session, lock, operation) = (*session, lock.clone(), FastOperation::Release(*token));
            return Request::Fast(FastRequest { session, lowest_repeatable: lowest, lock, operation });
        }
        Request::new("release").arg(session.get()).arg(lowest).arg(lock.as_str()).arg(token.get())
    }
}

pub(super) fn patience_word(patience: Patience) -> &'static str {
    if patience == Patience::Try { "try" } else { "wait" }
}

pub(super) fn check_label(label: &Label) -> Result<(), Refusal> {
    check_most(Limit::LabelBytes, label.as_str().len() as u64)
}

pub(super) fn check_value(value: &Published) -> Result<(), Refusal> {
    check_most(Limit::ValueBytes, value.as_bytes().len() as u64)
}

pub(super) fn check_permits(limit: u32) -> Result<(), Refusal> {
    if limit == 0 || limit == ALL { Err(Refusal::BadLimit { limit }) } else { Ok(()) }
}

/// Refuses an acquire that is invalid whatever the state of the locks.
pub(super) fn check_acquire(acquire: &Acquire) -> Result<(), Refusal> {
    if acquire.wants.is_empty() {
        return Err(Refusal::NoLocks);
    }
    check_most(Limit::LocksPerRequest, acquire.wants.len() as u64)?;
    for (position, want) in acquire.wants.iter().enumerate() {
        check_most(Limit::NameBytes, want.lock.as_str().len() as u64)?;
        if let Mode::Permits { count, of } = want.mode {
            check_permits(of)?;
            if count == 0 || count > of {
                return Err(Refusal::BadPermits { count, of });
            }
        }
        if acquire.wants[..position].iter().any(|other| other.lock == want.lock) {
            return Err(Refusal::NamedTwice { lock: want.lock.clone() });
        }
    }
    if let Some(delay) = acquire.delay {
        check_most(Limit::DelayMaxMs, delay.as_ms())?;
    }
    if let Some(value) = &acquire.value {
        check_value(value)?;
        if acquire.wants.len() != 1 || acquire.wants[0].mode != Mode::Exclusive {
            return Err(Refusal::ValueNotPossible);
        }
    }
    Ok(())
}

// Replies.

/// A reply of the Lua code.
#[derive(Debug)]
pub(super) enum Reply {
    /// For each session that was sent, those of its tokens that it still holds; `None` for a session that has ended.
    Attached(Vec<Option<Vec<Token>>>),
    Opened(SessionId),
    Granted(Token),
    /// The acquire waits. After `due_ms` the next session or lock-delay ends, which may free the lock.
    Queued {
        due_ms: Option<u64>,
    },
    Busy,
    Gone,
    Done,
    Forced {
        grants: u32,
        moved_to: Token,
    },
    Raised {
        is_new: bool,
    },
    Locks(Vec<LockInfo>),
    Polled {
        due_ms: Option<u64>,
        states: Vec<Reply>,
    },
    Watched,
    SessionEnded,
    Refused(Refusal),
    /// The request has not arrived.
    Unknown,
    DataLost(DataLost),
}

/// Reads a reply, and records the incarnation and the tokens in it in `namespace`.
pub(super) fn read_reply(value: &Value, namespace: &NamespaceState) -> Read<Reply> {
    // The fast path replies with a number.
    let (name, rest) = match value {
        Value::Int(0) => return Ok(Reply::Done),
        Value::Int(_) => ("granted".to_owned(), std::slice::from_ref(value)),
        other => match items(other)? {
            [name, rest @ ..] => (text(name)?, rest),
            [] => return unexpected("a reply", value),
        },
    };
    let update = |incarnation: &Value, last: &Value| -> Read<()> {
        namespace.update(text(incarnation)?, number(last)?);
        Ok(())
    };
    let token = |value: &Value| -> Read<Token> {
        let token: Token = number(value)?;
        namespace.note_token(token.get());
        Ok(token)
    };
    Ok(match (name.as_str(), rest) {
        ("attached", [incarnation, last, sessions, run_id]) => {
            update(incarnation, last)?;
            namespace.recorded_run_id.replace(text(run_id)?);
            Reply::Attached(list(sessions, |held| optional(held, |held| list(held, number)))?)
        }
        ("opened", [session, incarnation, last, run_id]) => {
            update(incarnation, last)?;
            namespace.recorded_run_id.replace(text(run_id)?);
            Reply::Opened(number(session)?)
        }
        ("granted", [granted]) => Reply::Granted(token(granted)?),
        ("queued", [_, due, ..]) => Reply::Queued { due_ms: number(due).ok() },
        ("queued", _) => Reply::Queued { due_ms: None },
        ("busy", _) => Reply::Busy,
        ("gone", _) => Reply::Gone,
        ("done", last) => {
            last.iter().try_for_each(|last| number(last).map(|last| namespace.note_token(last)))?;
            Reply::Done
        }
        ("forced", [grants, moved_to]) => Reply::Forced { grants: number(grants)?, moved_to: token(moved_to)? },
        ("raised", [is_new, incarnation, last]) => {
            update(incarnation, last)?;
            Reply::Raised { is_new: number::<u64>(is_new)? == 1 }
        }
        ("locks", [locks]) => Reply::Locks(list(locks, lock_info)?),
        ("polled", [due, states, last]) => {
            namespace.note_token(number(last)?);
            Reply::Polled { due_ms: number(due).ok(), states: list(states, |state| read_reply(state, namespace))? }
        }
        ("watched", [incarnation, last]) => {
            update(incarnation, last)?;
            Reply::Watched
        }
        ("ended", _) => Reply::SessionEnded,
        ("unknown", _) => Reply::Unknown,
        ("refused", why) => Reply::Refused(refusal(why)?),
        ("lost", [how, found @ ..]) => {
            let key = namespace.key.clone();
            Reply::DataLost(match (text(how)?.as_str(), found) {
                ("back", [found]) => namespace.tokens_went_back(number(found)?),
                ("taken", [token]) => DataLost::Taken { token: number(token)? },
                ("other", _) => DataLost::Recreated { key },
                _ => DataLost::Gone { key },
            })
        }
        _ => return unexpected("a reply", value),
    })
}

fn refusal(why: &[Value]) -> Read<Refusal> {
    let [code, rest @ ..] = why else { return Err(Unexpected("a refusal without a reason".to_owned())) };
    let kind = |limit: &Value| -> Read<Kind> {
        number(limit).map(|limit| if limit == ALL { Kind::Lock } else { Kind::Semaphore { limit } })
    };
    let over = |limit, max: &Value, value: &Value| -> Read<Refusal> {
        Ok(Refusal::OverLimit { limit, max: number(max)?, value: number(value)? })
    };
    Ok(match (text(code)?.as_str(), rest) {
        ("NeverGranted", [token, last]) => Refusal::NeverGranted { token: number(token)?, last: number(last)? },
        ("NotHeld", [lock, token]) => Refusal::NotHeld { lock: name(lock)?, token: number(token)? },
        ("OtherSession", [lock, token]) => Refusal::OtherSession { lock: name(lock)?, token: number(token)? },
        ("NumberReused", [request]) => Refusal::NumberReused { number: number(request)? },
        ("NumberForgotten", [request]) => Refusal::NumberForgotten { number: number(request)? },
        ("Withdrawn", [request]) => Refusal::Withdrawn { number: number(request)? },
        ("WrongKind", [lock, is, asked]) => {
            Refusal::WrongKind { lock: name(lock)?, is: kind(is)?, asked: kind(asked)? }
        }
        ("LimitDiffers", [lock, limit, asked]) => {
            Refusal::LimitDiffers { lock: name(lock)?, limit: number(limit)?, asked: number(asked)? }
        }
        ("AlreadyHeld", [lock, token]) => Refusal::AlreadyHeld { lock: name(lock)?, token: number(token)? },
        ("LocksPerSession", [max, value]) => over(Limit::LocksPerSession, max, value)?,
        ("WaitersPerLock", [max, value]) => over(Limit::WaitersPerLock, max, value)?,
        ("TokensExhausted", _) => Refusal::TokensExhausted { max: Token::MAX },
        ("ValueNotPossible", _) => Refusal::ValueNotPossible,
        ("NoHolder", [lock]) => Refusal::NoHolder { lock: name(lock)? },
        ("NoSuchLock", [lock]) => Refusal::NoSuchLock { lock: name(lock)? },
        ("ResizedBelow", [lock, limit]) => Refusal::ResizedBelow { lock: name(lock)?, limit: number(limit)? },
        (code, _) => return Err(Unexpected(format!("a refusal '{}'", code.escape_debug()))),
    })
}

fn lock_info(value: &Value) -> Read<LockInfo> {
    let [lock, limit, holders, waiters, published, history] = items(value)? else {
        return unexpected("a lock", value);
    };
    let limit: u32 = number(limit)?;
    let mode = |need: &Value| -> Read<Mode> {
        Ok(match (number(need)?, limit) {
            (ALL, ALL) => Mode::Exclusive,
            (_, ALL) => Mode::Shared,
            (count, of) => Mode::Permits { count, of },
        })
    };
    let holder = |value: &Value| {
        let [token, need, session, label, held, left] = items(value)? else { return unexpected("a holder", value) };
        Ok(HolderInfo {
            token: number(token)?,
            mode: mode(need)?,
            session: optional(session, number)?,
            label: optional(label, text)?,
            // Negative if the server's clock was set back.
            held_for_ms: number(held).ok(),
            time_left_ms: number(left).ok(),
        })
    };
    let waiter = |value: &Value| {
        let [session, label, need] = items(value)? else { return unexpected("a waiter", value) };
        Ok(WaiterInfo { session: number(session)?, label: text(label)?, mode: mode(need)? })
    };
    Ok(LockInfo {
        name: name(lock)?,
        limit: (limit != ALL).then_some(limit),
        holders: list(holders, holder)?,
        waiters: list(waiters, waiter)?,
        value: optional(published, |value| bytes(value).map(Published::new))?,
        history: list(history, ended_info)?,
    })
}

fn ended_info(value: &Value) -> Read<EndedInfo> {
    let [token, session, label, how] = items(value)? else { return unexpected("a grant that ended", value) };
    let how = match how {
        Value::Array(force) => match &force[..] {
            [by, reason, ..] => format!("forced by {}: {}", text(by)?, text(reason)?),
            _ => return unexpected("a forced release", value),
        },
        word => text(word)?,
    };
    Ok(EndedInfo { token: number(token)?, session: number(session)?, label: text(label)?, how })
}

pub(super) fn items(value: &Value) -> Read<&[Value]> {
    match value {
        Value::Array(items) => Ok(items),
        other => unexpected("a list", other),
    }
}

pub(super) fn list<T>(value: &Value, read: impl Fn(&Value) -> Read<T>) -> Read<Vec<T>> {
    items(value)?.iter().map(read).collect()
}

pub(super) fn bytes(value: &Value) -> Read<&[u8]> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        other => unexpected("text", other),
    }
}

/// Reads text. Bytes that are not UTF-8 are replaced: any client can write a label.
pub(super) fn text(value: &Value) -> Read<String> {
    Ok(String::from_utf8_lossy(bytes(value)?).into_owned())
}

pub(super) fn number<T: TryFrom<u64>>(value: &Value) -> Read<T> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    number.and_then(|number| T::try_from(number).ok()).map_or_else(|| unexpected("a number in range", value), Ok)
}

fn name(value: &Value) -> Read<LockName> {
    LockName::new(&text(value)?).map_err(|bad| Unexpected(bad.to_string()))
}

fn optional<T>(value: &Value, read: impl FnOnce(&Value) -> Read<T>) -> Read<Option<T>> {
    if *value == Value::Nil { Ok(None) } else { read(value).map(Some) }
}

/// Returns a setting from the reply to `INFO`.
pub(super) fn info<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let text = match info {
        Value::VerbatimString { text, .. } => text,
        other => str::from_utf8(bytes(other).ok()?).ok()?,
    };
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

// Pushes.

/// Passes a message on to its session, wait or watch.
pub(super) fn handle_push(client: &ClientState<RedisBackend>, channel: &[u8], message: &[u8]) {
    let handled = if channel.ends_with(b":events") {
        events(message).map(|events| client.watchers.borrow_mut().tell(&events))
    } else {
        handle_notice(client, &String::from_utf8_lossy(message))
    };
    if let Err(Unexpected(what)) = handled {
        tracing::warn!(what, "Redis sent a push that this build does not understand");
    }
}

/// Reads a message to this client: a grant (`g`), a wait ended by a resize (`z`), a forced release (`f`), an ended session (`e`).
fn handle_notice(client: &ClientState<RedisBackend>, message: &str) -> Read<()> {
    let mut words = message.splitn(4, ' ');
    let mut next = || words.next().ok_or_else(|| Unexpected(format!("too few words in '{message}'")));
    let (kind, session) = (next()?, parse(next()?)?);
    match kind {
        "g" => client.settle((session, parse(next()?)?), Ok(parse(next()?)?)),
        "z" => {
            let (number, rest) = (parse(next()?)?, next()?);
            let (limit, lock) = split(rest)?;
            let lock = LockName::new(lock).map_err(|bad| Unexpected(bad.to_string()))?;
            client.settle((session, number), Err(Refusal::ResizedBelow { lock, limit: parse(limit)? }.into()));
        }
        "f" => {
            let (token, rest) = (parse(next()?)?, next()?);
            let (moved_to, rest) = split(rest)?;
            let (length, rest) = split(rest)?;
            let labels = rest.split_at_checked(parse(length)?);
            let (by, reason) = labels.ok_or_else(|| Unexpected(format!("too short a label in '{message}'")))?;
            let force = Force { by: Label::new(by), reason: Label::new(reason), moved_to: parse(moved_to)? };
            client.grant_ended(session, token, Ending::Forced(Arc::new(force)));
        }
        "e" => client.session_ended(session, session_end(next()?)),
        _ => return Err(Unexpected(format!("an unknown word in '{message}'"))),
    }
    Ok(())
}

fn split(text: &str) -> Read<(&str, &str)> {
    text.split_once(' ').ok_or_else(|| Unexpected(format!("too few words in '{text}'")))
}

fn parse<T: TryFrom<u64>>(text: &str) -> Read<T> {
    let number = text.parse().ok().and_then(|number: u64| T::try_from(number).ok());
    number.ok_or_else(|| Unexpected(format!("'{text}' instead of a number")))
}

fn session_end(word: &str) -> SessionEnd {
    if word == "closed" { SessionEnd::Closed } else { SessionEnd::Expired }
}

/// Reads the events of one call, in order.
fn events(message: &[u8]) -> Read<Vec<Event>> {
    let json = serde_json::from_slice(message).map_err(|error| Unexpected(error.to_string()))?;
    list(&from_json(json), event)
}

/// Converts to the form in which Redis sends the same value in a reply.
fn from_json(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::String(text) => Value::BulkString(text.into_bytes()),
        serde_json::Value::Number(number) => number.as_i64().map_or(Value::Nil, Value::Int),
        serde_json::Value::Array(items) => Value::Array(items.into_iter().map(from_json).collect()),
        _ => Value::Nil,
    }
}

fn event(value: &Value) -> Read<Event> {
    let [kind, about, rest @ ..] = items(value)? else { return unexpected("an event", value) };
    let locks = || -> Read<LockNames> { items(about)?.iter().map(name).collect() };
    Ok(match (text(kind)?.as_str(), rest) {
        ("granted", [session, token, rank, request]) => Event::Granted {
            locks: locks()?,
            session: number(session)?,
            token: number(token)?,
            ticket: optional(rank, ticket)?,
            number: optional(request, number)?,
        },
        ("published", [token, value]) => {
            Event::Published { lock: name(about)?, token: number(token)?, value: unhex(bytes(value)?)? }
        }
        ("queued", [session, rank]) => {
            Event::Queued { ticket: ticket(rank)?, session: number(session)?, locks: locks()? }
        }
        ("left", [session, rank, why]) => {
            let why = match why {
                Value::Array(refused) => Departure::Refused(refusal(refused.get(1..).unwrap_or_default())?),
                word => match text(word)?.as_str() {
                    "cancelled" => Departure::Cancelled,
                    word => Departure::SessionEnded(session_end(word)),
                },
            };
            Event::LeftQueue { ticket: ticket(rank)?, session: number(session)?, locks: locks()?, why }
        }
        ("ended", [session, token, how]) => {
            let how = match how {
                Value::Array(_) => Ending::Forced(Arc::new(force(how)?)),
                word => match text(word)?.as_str() {
                    "released" => Ending::Released,
                    word => Ending::SessionEnded(session_end(word)),
                },
            };
            Event::GrantEnded { locks: locks()?, session: number(session)?, token: number(token)?, how }
        }
        ("withheld", [token, ms]) => {
            Event::Withheld { locks: locks()?, token: number(token)?, delay: Delay::from_ms(number(ms)?)? }
        }
        ("over", [token, by]) => {
            let force = optional(by, force)?.map(Arc::new);
            Event::DelayEnded { locks: locks()?, token: number(token)?, force }
        }
        ("resized", [limit]) => Event::Resized { lock: name(about)?, limit: number(limit)? },
        _ => return unexpected("an event", value),
    })
}

fn ticket(rank: &Value) -> Read<Ticket> {
    let ticket = serde_json::json!({ "arrival": number::<u64>(rank)?, "slot": 0 });
    serde_json::from_value(ticket).map_err(|error| Unexpected(error.to_string()))
}

fn force(value: &Value) -> Read<Force> {
    let [by, reason, moved_to] = items(value)? else { return unexpected("a forced release", value) };
    Ok(Force { by: Label::new(&text(by)?), reason: Label::new(&text(reason)?), moved_to: number(moved_to)? })
}

fn unhex(hex: &[u8]) -> Read<Published> {
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = hex.chunks(2).map(byte).collect();
    bytes.map(|bytes| Published::new(&bytes)).ok_or_else(|| Unexpected("a value that is not hexadecimal".to_owned()))
}
