//! What Redis says unasked: on this client's own channel, and on that of everything that happens.

use std::sync::Arc;

use palisade_core::{
    Delay, Departure, Ending, Event, Force, Label, LockName, LockNames, Refusal, RequestNo, SessionEnd, SessionId,
    Ticket, Token, Value as Published,
};
use serde_json::Value;

use super::reply::Unexpected;
use crate::engine::Failure;

/// Something that happened to a session of this client.
#[derive(Debug)]
pub(super) enum Push {
    /// A request that waited is over: granted, or not.
    Waited { session: SessionId, number: RequestNo, outcome: Result<Token, Failure> },
    /// A grant was taken away.
    Forced { session: SessionId, token: Token, force: Force },
    /// A session ended.
    SessionEnded { session: SessionId, how: SessionEnd },
}

fn bad(what: &str) -> Unexpected {
    Unexpected(format!("{what} in a push"))
}

/// The next word, and the rest.
fn word(text: &str) -> Result<(&str, &str), Unexpected> {
    text.split_once(' ').ok_or_else(|| bad("too few words"))
}

fn number<T: TryFrom<u64>>(text: &str) -> Result<T, Unexpected> {
    text.parse::<u64>().ok().and_then(|number| T::try_from(number).ok()).ok_or_else(|| bad("no number"))
}

pub(super) fn read(message: &str) -> Result<Push, Unexpected> {
    let (what, rest) = word(message)?;
    let (session, rest) = word(rest)?;
    let session = number(session)?;
    Ok(match what {
        "g" => {
            let (request, token) = word(rest)?;
            Push::Waited { session, number: number(request)?, outcome: Ok(number(token)?) }
        }
        "z" => {
            let (request, rest) = word(rest)?;
            let (limit, lock) = word(rest)?;
            let refusal = Refusal::ResizedBelow { lock: name(lock)?, limit: number(limit)? };
            Push::Waited { session, number: number(request)?, outcome: Err(refusal.into()) }
        }
        "f" => {
            let (token, rest) = word(rest)?;
            let (moved, rest) = word(rest)?;
            let (length, rest) = word(rest)?;
            let (by, reason) =
                rest.split_at_checked(number::<usize>(length)?).ok_or_else(|| bad("a name that is too short"))?;
            let force = Force { by: Label::new(by), reason: Label::new(reason), moved_to: number(moved)? };
            Push::Forced { session, token: number(token)?, force }
        }
        "e" => Push::SessionEnded { session, how: session_end(rest) },
        _ => return Err(bad("an unknown word")),
    })
}

fn name(text: &str) -> Result<LockName, Unexpected> {
    LockName::new(text).map_err(|_| bad("no name"))
}

fn session_end(word: &str) -> SessionEnd {
    if word == "closed" { SessionEnd::Closed } else { SessionEnd::Expired }
}

/// What happened in one call of anybody's, in order.
pub(super) fn events(message: &[u8]) -> Result<Vec<Event>, Unexpected> {
    let all: Vec<Vec<Value>> = serde_json::from_slice(message).map_err(|error| Unexpected(error.to_string()))?;
    all.iter().map(|parts| event(parts)).collect()
}

fn event(parts: &[Value]) -> Result<Event, Unexpected> {
    let [what, about, rest @ ..] = parts else { return Err(bad("an empty event")) };
    Ok(match (what.as_str().unwrap_or_default(), rest) {
        ("granted", [session, token, ticket_no, number]) => Event::Granted {
            locks: names(about)?,
            session: counted(session)?,
            token: counted(token)?,
            ticket: if ticket_no.is_string() { Some(ticket(ticket_no)?) } else { None },
            number: if number.is_string() { Some(counted(number)?) } else { None },
        },
        ("published", [token, value]) => {
            Event::Published { lock: name(said(about)?)?, token: counted(token)?, value: unhexed(said(value)?)? }
        }
        ("queued", [session, rank]) => {
            Event::Queued { ticket: ticket(rank)?, session: counted(session)?, locks: names(about)? }
        }
        ("left", [session, rank, why]) => Event::LeftQueue {
            ticket: ticket(rank)?,
            session: counted(session)?,
            locks: names(about)?,
            why: departure(why)?,
        },
        ("ended", [session, token, how]) => Event::GrantEnded {
            locks: names(about)?,
            session: counted(session)?,
            token: counted(token)?,
            how: match how {
                Value::String(word) if word == "released" => Ending::Released,
                Value::String(word) => Ending::SessionEnded(session_end(word)),
                force => Ending::Forced(Arc::new(forced(force)?)),
            },
        },
        ("withheld", [token, ms]) => {
            let delay = ms.as_u64().and_then(|ms| Delay::from_ms(ms).ok()).ok_or_else(|| bad("no delay"))?;
            Event::Withheld { locks: names(about)?, token: counted(token)?, delay }
        }
        ("over", [token, force]) => {
            let force = if force.is_array() { Some(Arc::new(forced(force)?)) } else { None };
            Event::DelayEnded { locks: names(about)?, token: counted(token)?, force }
        }
        ("resized", [limit]) => {
            let limit = limit.as_u64().and_then(|limit| u32::try_from(limit).ok()).ok_or_else(|| bad("no limit"))?;
            Event::Resized { lock: name(said(about)?)?, limit }
        }
        _ => return Err(bad("an unknown event")),
    })
}

fn said(value: &Value) -> Result<&str, Unexpected> {
    value.as_str().ok_or_else(|| bad("no text"))
}

fn counted<T: TryFrom<u64>>(value: &Value) -> Result<T, Unexpected> {
    number(said(value)?)
}

fn names(value: &Value) -> Result<LockNames, Unexpected> {
    value.as_array().ok_or_else(|| bad("no locks"))?.iter().map(|lock| name(said(lock)?)).collect()
}

fn ticket(rank: &Value) -> Result<Ticket, Unexpected> {
    let ticket = serde_json::json!({ "arrival": number::<u64>(said(rank)?)?, "slot": 0 });
    serde_json::from_value(ticket).map_err(|_| bad("no ticket"))
}

fn departure(why: &Value) -> Result<Departure, Unexpected> {
    match why {
        Value::String(word) if word == "cancelled" => Ok(Departure::Cancelled),
        Value::String(word) => Ok(Departure::SessionEnded(session_end(word))),
        Value::Array(refused) => match &refused[..] {
            [_, _, lock, limit] => {
                let limit = limit.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| bad("no limit"))?;
                Ok(Departure::Refused(Refusal::ResizedBelow { lock: name(said(lock)?)?, limit }))
            }
            _ => Err(bad("an unknown refusal")),
        },
        _ => Err(bad("an unknown reason")),
    }
}

fn forced(value: &Value) -> Result<Force, Unexpected> {
    match value.as_array().map(Vec::as_slice) {
        Some([by, reason, moved]) => {
            Ok(Force { by: Label::new(said(by)?), reason: Label::new(said(reason)?), moved_to: counted(moved)? })
        }
        _ => Err(bad("nobody who took it away")),
    }
}

fn unhexed(text: &str) -> Result<Published, Unexpected> {
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(|| bad("no hexadecimal digit"));
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Ok((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => Err(bad("half a byte")),
    });
    Ok(Published::new(&pairs.collect::<Result<Vec<u8>, _>>()?))
}
