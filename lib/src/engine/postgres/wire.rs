//! The texts that PostgreSQL's functions return: notification payloads, rows of `palisade.look_up`, and locks as JSON.

use palisade_core::{
    Delay, Departure, Ending, Event, LockName, LockNames, Refusal, RequestNo, SessionEnd, SessionId, Ticket, Token,
    Value,
};
use serde::Deserialize;

use super::PostgresBackend;
use crate::engine::remote::ClientState;
use crate::engine::sql_text::{bytes, ended_info, ending, label, mode};
use crate::engine::{HolderInfo, LockInfo, WaiterInfo};

/// A notification, or a row of `palisade.look_up`.
#[derive(Debug, PartialEq)]
enum Push {
    Granted {
        session: SessionId,
        number: RequestNo,
        token: Token,
    },
    /// A resize has refused a queued acquire.
    Refused {
        session: SessionId,
        number: RequestNo,
        refusal: Refusal,
    },
    /// The client should poll: an acquire may be grantable now.
    Poll,
    Lost {
        session: SessionId,
        token: Token,
        how: Ending,
    },
    SessionEnded {
        session: SessionId,
        how: SessionEnd,
    },
    Event(Box<Event>),
    Missed,
}

/// Passes a push on to its session, wait or watch.
pub(super) fn handle_push(client: &ClientState<PostgresBackend>, text: &str) {
    match read(text) {
        Some(Push::Granted { session, number, token }) => client.settle((session, number), Ok(token)),
        Some(Push::Refused { session, number, refusal }) => client.settle((session, number), Err(refusal.into())),
        Some(Push::Poll) => client.extra.notify_one(),
        Some(Push::Lost { session, token, how }) => client.grant_ended(session, token, how),
        Some(Push::SessionEnded { session, how }) => client.session_ended(session, how),
        Some(Push::Event(event)) => client.watchers.borrow_mut().tell(std::slice::from_ref(&event)),
        Some(Push::Missed) => client.note_missed_events(),
        None => tracing::debug!(text, "PostgreSQL sent a push that this build does not understand"),
    }
}

/// Reads a grant as `palisade.attach` returns it.
pub(super) fn attached_grant(row: &tokio_postgres::Row) -> Option<(Token, (LockName, Option<RequestNo>))> {
    let lock: Option<&str> = row.try_get(0).ok()?;
    let (number, token): (Option<i64>, Option<i64>) = (row.try_get(1).ok()?, row.try_get(2).ok()?);
    let number = number.and_then(|number| RequestNo::new(u64::try_from(number).ok()?).ok());
    Some((Token::new(u64::try_from(token?).ok()?).ok()?, (LockName::new(lock?).ok()?, number)))
}

/// Reads a push; `None` if a newer schema wrote it.
fn read(text: &str) -> Option<Push> {
    let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut words = rest.splitn(3, ' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(match what {
        "g" => Push::Granted {
            session: SessionId::new(number()?).ok()?,
            number: RequestNo::new(number()?).ok()?,
            token: Token::new(number()?).ok()?,
        },
        "r" => Push::Refused {
            session: SessionId::new(number()?).ok()?,
            number: RequestNo::new(number()?).ok()?,
            refusal: serde_json::from_str(words.next()?).ok()?,
        },
        "l" => Push::Lost {
            session: SessionId::new(number()?).ok()?,
            token: Token::new(number()?).ok()?,
            how: ending(words.next()?.split(' '))?,
        },
        "s" => Push::SessionEnded {
            session: SessionId::new(number()?).ok()?,
            how: if words.next()? == "closed" { SessionEnd::Closed } else { SessionEnd::Expired },
        },
        "t" => Push::Poll,
        "w" => Push::Event(Box::new(serde_json::from_str::<EventText>(rest).ok()?.into_event()?)),
        "m" => Push::Missed,
        _ => return None,
    })
}

/// An event as the functions write it.
#[derive(Deserialize)]
struct EventText {
    is: String,
    locks: Vec<LockName>,
    session: Option<SessionId>,
    token: Option<Token>,
    ticket: Option<u64>,
    number: Option<RequestNo>,
    how: Option<String>,
    why: Option<String>,
    value: Option<String>,
    delay: Option<u64>,
    limit: Option<u32>,
}

impl EventText {
    fn into_event(self) -> Option<Event> {
        let locks = LockNames::from_vec(self.locks);
        let ticket = self.ticket.and_then(ticket);
        let (session, token) = (self.session, self.token);
        Some(match self.is.as_str() {
            "queued" => Event::Queued { ticket: ticket?, session: session?, locks },
            "left" => Event::LeftQueue { ticket: ticket?, session: session?, locks, why: departure(&self.why?)? },
            "granted" => Event::Granted { locks, session: session?, token: token?, ticket, number: self.number },
            "ended" => {
                Event::GrantEnded { locks, session: session?, token: token?, how: ending(self.how?.split(' '))? }
            }
            "withheld" => Event::Withheld { locks, token: token?, delay: Delay::from_ms(self.delay?).ok()? },
            "delay-ended" => {
                let force = match self.how.as_deref().and_then(|how| ending(how.split(' '))) {
                    Some(Ending::Forced(force)) => Some(force),
                    _ => None,
                };
                Event::DelayEnded { locks, token: token?, force }
            }
            "published" => {
                let value = Value::new(&bytes(&self.value?)?);
                Event::Published { lock: locks.first()?.clone(), token: token?, value }
            }
            "resized" => Event::Resized { lock: locks.first()?.clone(), limit: self.limit? },
            _ => return None,
        })
    }
}

fn departure(why: &str) -> Option<Departure> {
    Some(match why {
        "cancelled" => Departure::Cancelled,
        "closed" => Departure::SessionEnded(SessionEnd::Closed),
        "expired" => Departure::SessionEnded(SessionEnd::Expired),
        refusal => Departure::Refused(serde_json::from_str(refusal).ok()?),
    })
}

fn ticket(arrival: u64) -> Option<Ticket> {
    serde_json::from_value(serde_json::json!({ "arrival": arrival, "slot": 0 })).ok()
}

/// A lock as `palisade.show` writes it.
#[derive(Deserialize)]
struct LockText {
    name: LockName,
    permits: Option<u32>,
    #[serde(rename = "places")]
    claims: Vec<ClaimText>,
    value: Option<String>,
    history: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ClaimText {
    state: String,
    need: u64,
    token: Option<Token>,
    session: SessionId,
    label: Option<String>,
    held_ms: Option<f64>,
    left_ms: Option<f64>,
}

/// Reads a lock; `None` if this build cannot read it.
pub(super) fn lock_info(json: &str) -> Option<LockInfo> {
    let LockText { name, permits, claims, value, history } = serde_json::from_str(json).ok()?;
    let mut info = LockInfo {
        name,
        limit: permits,
        holders: Vec::new(),
        waiters: Vec::new(),
        value: value.and_then(|value| Some(Value::new(&bytes(&value)?))),
        history: history.unwrap_or_default().iter().filter_map(|ended| ended_info(ended)).collect(),
    };
    for claim in claims {
        let mode = mode(permits, claim.need)?;
        let name = claim.label.as_deref().and_then(label).map(|label| label.as_str().to_owned());
        if claim.state == "waiting" {
            info.waiters.push(WaiterInfo { session: claim.session, label: name.unwrap_or_default(), mode });
            continue;
        }
        let is_held = claim.state == "held";
        info.holders.push(HolderInfo {
            token: claim.token?,
            mode,
            session: is_held.then_some(claim.session),
            label: name.filter(|_| is_held),
            held_for_ms: claim.held_ms.map(|ms| ms.max(0.0) as u64),
            time_left_ms: claim.left_ms.map(|ms| ms.max(0.0) as u64),
        });
    }
    info.holders.sort_by_key(|holder| holder.token);
    Some(info)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use palisade_core::{Force, Label};

    use super::*;

    #[test]
    fn every_kind_of_push_is_read() {
        let session = SessionId::new(7).unwrap();
        let (number, token) = (RequestNo::new(3).unwrap(), Token::new(9).unwrap());
        assert_eq!(read("g 7 3 9"), Some(Push::Granted { session, number, token }));
        assert_eq!(read("s 7 expired"), Some(Push::SessionEnded { session, how: SessionEnd::Expired }));
        let force = Force { by: Label::new("me\0"), reason: Label::new("why"), moved_to: token };
        let lost = Push::Lost { session, token, how: Ending::Forced(Arc::new(force)) };
        assert_eq!(read("l 7 9 forced 6d6500 776879 9"), Some(lost));
        let refused = read(r#"r 7 3 {"ResizedBelow" : {"lock" : "a b", "limit" : 2}}"#);
        assert!(matches!(refused, Some(Push::Refused { refusal: Refusal::ResizedBelow { limit: 2, .. }, .. })));
        let event = read(r#"w {"is" : "granted", "locks" : ["a"], "session" : 7, "token" : 9, "ticket" : null}"#);
        assert!(matches!(event, Some(Push::Event(event)) if matches!(*event, Event::Granted { ticket: None, .. })));
    }

    #[test]
    fn an_unknown_push_is_ignored() {
        for text in [
            "",
            "g",
            "g 7",
            "g 0 0 0",
            "g a b c",
            "x 1 2 3",
            "w {}",
            "w {\"is\":\"new\",\"locks\":[]}",
            "l 7 9 forced zz",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
