//! The node's responses and pushes as RESP.

use palisade_core::{Departure, Ended, Ending, Event, Mode, Refusal, RequestNo, SessionEnd, Ttl};

use super::Reply;
use crate::net::words::{CLOSING, EventReport, NOT_LEADER, NOT_SIGNING, ending, mode_word, refusal_code};
use crate::node::{GrantReply, HolderReport, LeaderReport, LockReport, Push, Refused, Response, WaiterReport};

/// Returns the reply for a response. With details, a refusal is followed by its JSON, for programs.
pub(in crate::net) fn response(response: Response, is_detailed: bool) -> Reply {
    match response {
        Response::Done => Reply::Simple("OK"),
        Response::Opened { session, ttl } => {
            Reply::Map(vec![("session", Reply::Number(session.get())), ("ttl_ms", Reply::Number(ttl.as_ms()))])
        }
        Response::KeptAlive(kept) => {
            Reply::Array(kept.into_iter().map(|ttl| Reply::Number(ttl.map_or(0, Ttl::as_ms))).collect())
        }
        Response::Attached { session, ttl, held } => Reply::Map(vec![
            ("session", Reply::Number(session.get())),
            ("ttl_ms", Reply::Number(ttl.as_ms())),
            ("held", Reply::Array(held.into_iter().map(|token| Reply::Number(token.get())).collect())),
        ]),
        Response::Granted(GrantReply { token, session, ttl_ms }) => Reply::Map(vec![
            ("token", Reply::Number(token.get())),
            ("session", Reply::Number(session.get())),
            ("ttl_ms", Reply::Number(ttl_ms)),
        ]),
        Response::Queued => Reply::Simple("QUEUED"),
        Response::NotGranted => Reply::Nil,
        Response::Released => Reply::Number(1),
        Response::Matched { locks, .. } => Reply::Number(locks.into()),
        Response::Held(held) => Reply::Number(held.iter().flatten().count() as u64),
        Response::Cancelled { granted } => granted.map_or(Reply::Nil, |token| Reply::Number(token.get())),
        Response::Broken { grants, moved_to } => {
            Reply::Map(vec![("grants", Reply::Number(grants.into())), ("moved_to", Reply::Number(moved_to.get()))])
        }
        Response::TokensRaised(is_raised) => Reply::Number(is_raised.into()),
        Response::Lock(report) => report.map_or(Reply::Nil, |report| lock(*report)),
        Response::Locks { cursor, locks } => Reply::Map(vec![
            ("cursor", Reply::Number(cursor.into())),
            ("locks", Reply::Array(locks.into_iter().map(lock).collect())),
        ]),
        Response::Leader(report) => report.map_or(Reply::Nil, leader),
        Response::Signed(token) => Reply::text(token),
        // The server has signed them.
        Response::Claims(_) => Reply::Nil,
        Response::Refused(why) => refused(&why, is_detailed),
    }
}

pub(super) fn refused(why: &Refused, is_detailed: bool) -> Reply {
    match why {
        Refused::Unauthenticated => super::login::no_auth(),
        Refused::Denied(why) => Reply::Error("DENIED", why.clone()),
        Refused::Refusal(why) => refusal(why, is_detailed),
        Refused::NotSigning => Reply::Error("NOTSIGNING", NOT_SIGNING.to_owned()),
        Refused::OverBound(why) => Reply::Error("LIMIT", why.clone()),
        Refused::NotLeader => Reply::Error("NOTLEADER", NOT_LEADER.to_owned()),
        Refused::Closing => Reply::Error("CLOSING", CLOSING.to_owned()),
    }
}

fn refusal(refusal: &Refusal, is_detailed: bool) -> Reply {
    let mut message = refusal.to_string();
    if is_detailed && let Ok(detail) = serde_json::to_string(refusal) {
        message.push('\t');
        message.push_str(&detail);
    }
    Reply::Error(refusal_code(refusal), message)
}

/// Returns the push as RESP; `None` for an event that is not pushed to clients.
pub(in crate::net) fn push(push: &Push, is_detailed: bool) -> Option<Reply> {
    let request = |number: &Option<RequestNo>| number.map_or(Reply::Nil, |number| Reply::Number(number.get()));
    Some(Reply::Push(match push {
        Push::Granted { session, number, token } => {
            vec![Reply::Text("granted"), Reply::Number(session.get()), request(number), Reply::Number(token.get())]
        }
        Push::WaitEnded { session, number, why } => {
            let why = match why {
                Departure::Refused(refusal) if is_detailed => serde_json::to_string(refusal).unwrap_or_default(),
                Departure::Refused(refusal) => refusal.to_string(),
                Departure::Cancelled => "cancelled".to_owned(),
                Departure::SessionEnded(_) => "session-ended".to_owned(),
            };
            vec![Reply::Text("refused"), Reply::Number(session.get()), request(number), Reply::text(why)]
        }
        Push::Lost { session, token, how } => {
            let (how, details) = lost(how.as_ref());
            let mut fields = vec![Reply::Text("lost"), Reply::Number(session.get()), Reply::Number(token.get())];
            fields.push(Reply::Text(how));
            fields.extend(details);
            fields
        }
        Push::SessionEnded { session, how } => {
            let how = if *how == SessionEnd::Closed { "closed" } else { "expired" };
            vec![Reply::Text("session-ended"), Reply::Number(session.get()), Reply::Text(how)]
        }
        Push::Event(what) => {
            let mut fields = event(what)?;
            if is_detailed {
                fields.push(Reply::text(serde_json::to_string(&**what).unwrap_or_default()));
            }
            fields
        }
    }))
}

/// Renders how a grant was lost: a word, and for a force-release the operator, the reason and the new token.
fn lost(how: Option<&Ending>) -> (&'static str, [Reply; 3]) {
    let nothing = [Reply::Nil, Reply::Nil, Reply::Nil];
    match how {
        None => ("ended", nothing),
        Some(Ending::Forced(force)) => {
            let (by, reason) = (Reply::text(force.by.as_str()), Reply::text(force.reason.as_str()));
            ("forced", [by, reason, Reply::Number(force.moved_to.get())])
        }
        Some(Ending::SessionEnded(SessionEnd::Expired)) => ("expired", nothing),
        Some(Ending::SessionEnded(SessionEnd::Closed)) => ("closed", nothing),
        Some(Ending::Released) => ("released", nothing),
    }
}

fn lock(report: LockReport) -> Reply {
    Reply::Map(vec![
        ("name", Reply::text(report.name.as_str())),
        ("limit", report.limit.map_or(Reply::Nil, |limit| Reply::Number(limit.into()))),
        ("holder_count", Reply::Number(report.holder_count.into())),
        ("waiter_count", Reply::Number(report.waiter_count.into())),
        ("holders", Reply::Array(report.holders.into_iter().map(holder).collect())),
        ("waiters", Reply::Array(report.waiters.into_iter().map(waiter).collect())),
        ("cursor", Reply::Number(report.cursor.into())),
        ("value", report.value.map_or(Reply::Nil, |value| Reply::Bytes(value.as_bytes().to_vec()))),
        ("history", Reply::Array(report.history.iter().map(ended).collect())),
    ])
}

fn holder(report: HolderReport) -> Reply {
    let (session, label) = match report.session {
        Some((session, label)) => (Reply::Number(session.get()), Reply::text(label.as_str())),
        None => (Reply::Nil, Reply::Nil),
    };
    let mut fields = vec![("token", Reply::Number(report.token.get()))];
    fields.extend(mode(report.mode));
    fields.push(("session", session));
    fields.push(("label", label));
    fields.push(("held_for_ms", report.held_for_ms.map_or(Reply::Nil, Reply::Number)));
    fields.push(("time_left_ms", report.time_left_ms.map_or(Reply::Nil, Reply::Number)));
    Reply::Map(fields)
}

fn waiter(report: WaiterReport) -> Reply {
    let mut fields = vec![("session", Reply::Number(report.session.get()))];
    fields.push(("label", Reply::text(report.label.as_str())));
    fields.extend(mode(report.mode));
    Reply::Map(fields)
}

fn ended(ended: &Ended) -> Reply {
    Reply::Map(vec![
        ("token", Reply::Number(ended.token.get())),
        ("session", Reply::Number(ended.session.get())),
        ("label", Reply::text(ended.label.as_str())),
        ("how", Reply::text(ending(&ended.how))),
    ])
}

fn leader(report: LeaderReport) -> Reply {
    Reply::Map(vec![
        ("value", Reply::Bytes(report.value.as_bytes().to_vec())),
        ("token", Reply::Number(report.token.get())),
        ("session", Reply::Number(report.session.get())),
        ("label", Reply::text(report.label.as_str())),
    ])
}

fn mode(mode: Mode) -> [(&'static str, Reply); 2] {
    let (word, permits) = mode_word(mode);
    [("mode", Reply::Text(word)), ("permits", permits.map_or(Reply::Nil, |permits| Reply::Number(permits.into())))]
}

fn event(event: &Event) -> Option<Vec<Reply>> {
    let EventReport { kind, locks, session, token, why, how, delay_ms, value, limit } = EventReport::of(event)?;
    let names = locks.iter().map(|lock| Reply::text(lock.as_str())).collect();
    let mut fields = vec![("event", Reply::Text(kind)), ("locks", Reply::Array(names))];
    let optional = [
        ("session", session.map(|session| Reply::Number(session.get()))),
        ("token", token.map(|token| Reply::Number(token.get()))),
        ("why", why.map(Reply::text)),
        ("how", how.map(Reply::text)),
        ("delay_ms", delay_ms.map(Reply::Number)),
        ("value", value.map(|value| Reply::Bytes(value.as_bytes().to_vec()))),
        ("limit", limit.map(|limit| Reply::Number(limit.into()))),
    ];
    fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    Some(vec![Reply::Text("event"), Reply::Map(fields)])
}
