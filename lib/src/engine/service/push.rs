//! What the service says unasked.

use std::sync::Arc;

use palisade_core::{Ending, Event, Force, Label, RequestNo, SessionEnd, SessionId, Token};
use redis_protocol::resp3::types::BytesFrame;

use super::lasting::AtService;
use super::reply::{Unexpected, is_nil, number, session, text, token};
use crate::engine::Failure;
use crate::engine::lasting::taken_unseen;

/// Something that happened.
#[derive(Debug)]
pub(super) enum Push {
    /// A request that waited is over: granted, or not.
    Waited { session: SessionId, number: RequestNo, outcome: Result<Token, Failure> },
    /// A grant of a session ended, not on its wish.
    Lost { session: SessionId, token: Token, how: Ending },
    /// A session ended.
    SessionEnded { session: SessionId, how: SessionEnd },
    /// Something that is watched.
    Event(Box<Event>),
    /// Something that a newer service says.
    Unknown,
}

pub(super) fn read(items: &[BytesFrame]) -> Result<Push, Unexpected> {
    let [what, rest @ ..] = items else { return Ok(Push::Unknown) };
    Ok(match (text(what)?, rest) {
        ("granted", [who, request, granted, ..]) if !is_nil(request) => {
            Push::Waited { session: session(who)?, number: request_no(request)?, outcome: Ok(token(granted)?) }
        }
        ("refused", [who, request, why, ..]) if !is_nil(request) => {
            let outcome = Err(refusal(text(why)?)?);
            Push::Waited { session: session(who)?, number: request_no(request)?, outcome }
        }
        ("lost", [who, grant, how, why @ ..]) => {
            let token = token(grant)?;
            Push::Lost { session: session(who)?, token, how: ending(token, text(how)?, why)? }
        }
        ("session-ended", [who, how, ..]) => {
            let how = if text(how)? == "closed" { SessionEnd::Closed } else { SessionEnd::Expired };
            Push::SessionEnded { session: session(who)?, how }
        }
        ("event", [_, detail, ..]) => {
            let event = serde_json::from_str(text(detail)?);
            Push::Event(event.map_err(|error| Unexpected(format!("an event cannot be read: {error}")))?)
        }
        _ => Push::Unknown,
    })
}

fn request_no(frame: &BytesFrame) -> Result<RequestNo, Unexpected> {
    Ok(RequestNo::new(number(frame)?)?)
}

fn refusal(why: &str) -> Result<Failure, Unexpected> {
    match why {
        "session-ended" => Ok(Failure::SessionEnded),
        "cancelled" => Ok(Failure::Refused(palisade_core::Refusal::NotWaiting)),
        detail => {
            let refusal = serde_json::from_str::<palisade_core::Refusal>(detail);
            refusal.map(Failure::from).map_err(|error| Unexpected(format!("a refusal cannot be read: {error}")))
        }
    }
}

fn ending(token: Token, how: &str, why: &[BytesFrame]) -> Result<Ending, Unexpected> {
    Ok(match (how, why) {
        ("expired", _) => Ending::SessionEnded(SessionEnd::Expired),
        ("closed", _) => Ending::SessionEnded(SessionEnd::Closed),
        ("forced", [by, reason, moved_to, ..]) => Ending::Forced(Arc::new(Force {
            by: Label::new(text(by)?),
            reason: Label::new(text(reason)?),
            moved_to: self::token(moved_to)?,
        })),
        _ => taken_unseen::<AtService>(token),
    })
}
