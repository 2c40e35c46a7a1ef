//! What the rules in Redis answer.

use palisade_core::{Kind, Limit, Refusal, RequestNo, SessionId, Token};
use redis::Value;

use super::reply::{Unexpected, items, name, number, session, small, text, token};
use crate::engine::LockInfo;

/// `all` permits: an ordinary lock.
pub(super) const ALL: u32 = u32::MAX;

/// An answer of the rules.
#[derive(Debug)]
pub(super) enum Answer {
    Hello {
        incarnation: String,
        last: u64,
        sessions: Vec<Option<Vec<Token>>>,
        run: String,
    },
    Opened {
        session: SessionId,
        incarnation: String,
        last: u64,
        run: String,
    },
    Granted {
        token: Token,
    },
    /// It waits; so many milliseconds from now something is due that may concern it.
    Queued {
        due_ms: Option<u64>,
    },
    Busy,
    Gone,
    /// It is done; the last token, where that was said in passing.
    Done {
        last: u64,
    },
    Forced {
        grants: u32,
        moved_to: Token,
    },
    Raised {
        is_new: bool,
        incarnation: String,
        last: u64,
    },
    Locks(Vec<LockInfo>),
    Polled {
        due_ms: Option<u64>,
        states: Vec<Answer>,
        last: u64,
    },
    Watched {
        incarnation: String,
        last: u64,
    },
    /// The session does not live any more.
    Ended,
    Refused(Refusal),
    /// Nothing is known of the request.
    Unknown,
    Lost(Lost),
}

/// How the rules find that data are lost.
#[derive(Debug)]
pub(super) enum Lost {
    Gone,
    MadeAnew,
    WentBack { found: u64 },
    Taken { token: u64 },
}

pub(super) fn read(value: &Value) -> Result<Answer, Unexpected> {
    // What is usual is answered by a number.
    match value {
        Value::Int(0) => return Ok(Answer::Done { last: 0 }),
        Value::Int(_) => return Ok(Answer::Granted { token: token(value)? }),
        _ => {}
    }
    let [what, rest @ ..] = items(value)? else { return Err(Unexpected::instead_of("an answer", value)) };
    Ok(match (text(what)?.as_str(), rest) {
        ("hello", [incarnation, last, sessions, run]) => {
            let held = |value: &Value| match value {
                Value::Nil => Ok(None),
                held => items(held)?.iter().map(token).collect::<Result<_, _>>().map(Some),
            };
            let sessions = items(sessions)?.iter().map(held).collect::<Result<_, _>>()?;
            Answer::Hello { incarnation: text(incarnation)?, last: number(last)?, sessions, run: text(run)? }
        }
        ("opened", [number_of, incarnation, last, run]) => Answer::Opened {
            session: session(number_of)?,
            incarnation: text(incarnation)?,
            last: number(last)?,
            run: text(run)?,
        },
        ("granted", [granted]) => Answer::Granted { token: token(granted)? },
        ("queued", [_, due, ..]) => Answer::Queued { due_ms: due_in(due) },
        ("queued", _) => Answer::Queued { due_ms: None },
        ("busy", _) => Answer::Busy,
        ("gone", _) => Answer::Gone,
        ("done", [last]) => Answer::Done { last: number(last)? },
        ("done", _) => Answer::Done { last: 0 },
        ("forced", [grants, moved]) => Answer::Forced { grants: small(grants)?, moved_to: token(moved)? },
        ("raised", [is_new, incarnation, last]) => {
            Answer::Raised { is_new: number(is_new)? == 1, incarnation: text(incarnation)?, last: number(last)? }
        }
        ("locks", [locks]) => Answer::Locks(items(locks)?.iter().map(super::look::lock).collect::<Result<_, _>>()?),
        ("polled", [due, states, last]) => {
            let states = items(states)?.iter().map(read).collect::<Result<_, _>>()?;
            Answer::Polled { due_ms: due_in(due), states, last: number(last)? }
        }
        ("watched", [incarnation, last]) => Answer::Watched { incarnation: text(incarnation)?, last: number(last)? },
        ("ended", _) => Answer::Ended,
        ("unknown", _) => Answer::Unknown,
        ("refused", why) => Answer::Refused(refusal(why)?),
        ("lost", [how, found @ ..]) => Answer::Lost(match (text(how)?.as_str(), found) {
            ("back", [found]) => Lost::WentBack { found: number(found)? },
            ("taken", [token]) => Lost::Taken { token: number(token)? },
            ("other", _) => Lost::MadeAnew,
            _ => Lost::Gone,
        }),
        _ => return Err(Unexpected::instead_of("an answer", value)),
    })
}

/// Nothing is due where the number is negative.
fn due_in(value: &Value) -> Option<u64> {
    match value {
        Value::Int(ms) => u64::try_from(*ms).ok(),
        _ => None,
    }
}

fn kind(limit: u32) -> Kind {
    if limit == ALL { Kind::Lock } else { Kind::Semaphore { limit } }
}

fn refusal(why: &[Value]) -> Result<Refusal, Unexpected> {
    let [code, rest @ ..] = why else { return Err(Unexpected("a refusal without a reason".to_owned())) };
    let request = |value: &Value| -> Result<RequestNo, Unexpected> { Ok(RequestNo::new(number(value)?)?) };
    let over = |limit, max: &Value, value: &Value| -> Result<Refusal, Unexpected> {
        Ok(Refusal::OverLimit { limit, max: number(max)?, value: number(value)? })
    };
    Ok(match (text(code)?.as_str(), rest) {
        ("NeverGranted", [given, last]) => Refusal::NeverGranted { token: token(given)?, last: number(last)? },
        ("NotHeld", [lock, given]) => Refusal::NotHeld { lock: name(lock)?, token: token(given)? },
        ("OtherSession", [lock, given]) => Refusal::OtherSession { lock: name(lock)?, token: token(given)? },
        ("NumberReused", [number]) => Refusal::NumberReused { number: request(number)? },
        ("NumberForgotten", [number]) => Refusal::NumberForgotten { number: request(number)? },
        ("Withdrawn", [number]) => Refusal::Withdrawn { number: request(number)? },
        ("WrongKind", [lock, is, asked]) => {
            Refusal::WrongKind { lock: name(lock)?, is: kind(small(is)?), asked: kind(small(asked)?) }
        }
        ("LimitDiffers", [lock, limit, asked]) => {
            Refusal::LimitDiffers { lock: name(lock)?, limit: small(limit)?, asked: small(asked)? }
        }
        ("AlreadyHeld", [lock, held]) => Refusal::AlreadyHeld { lock: name(lock)?, token: token(held)? },
        ("LocksPerSession", [max, value]) => over(Limit::LocksPerSession, max, value)?,
        ("WaitersPerLock", [max, value]) => over(Limit::WaitersPerLock, max, value)?,
        ("TokensExhausted", _) => Refusal::TokensExhausted { max: Token::MAX },
        ("ValueNotPossible", _) => Refusal::ValueNotPossible,
        ("NobodyHolds", [lock]) => Refusal::NobodyHolds { lock: name(lock)? },
        ("NoSuchLock", [lock]) => Refusal::NoSuchLock { lock: name(lock)? },
        ("ResizedBelow", [lock, limit]) => Refusal::ResizedBelow { lock: name(lock)?, limit: small(limit)? },
        (code, _) => return Err(Unexpected(format!("a refusal called {code}"))),
    })
}
