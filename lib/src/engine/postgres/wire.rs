//! The texts that PostgreSQL's functions return: notification payloads, rows of `palisade.look_up`, and locks as JSON.

use palisade_core::{
    Delay, Departure, Ending, Event, LockName, LockNames, RequestNo, SessionEnd, SessionId, Ticket, Token, Value,
};
use serde::Deserialize;

use super::PostgresBackend;
use crate::engine::LockInfo;
use crate::engine::remote::{ClientState, Push};
use crate::engine::sql_text::{Claim, bytes, ended_info, ending, notice};

/// Handles a notification, or a row of `palisade.look_up`.
pub(super) fn handle_push(client: &ClientState<PostgresBackend>, text: &str) {
    // A set of locks may be grantable now.
    if text == "t" || text.starts_with("t ") {
        return client.extra.notify_one();
    }
    match read(text) {
        Some(push) => client.handle_push(push),
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
    match text.split_once(' ').unwrap_or((text, "")) {
        ("w", event) => Some(Push::Event(Box::new(serde_json::from_str::<EventText>(event).ok()?.into_event()?))),
        ("m", _) => Some(Push::Missed),
        _ => notice(text, |refusal| serde_json::from_str(refusal).ok()),
    }
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
        let ClaimText { state, need, token, session, label, held_ms, left_ms } = claim;
        let [held_for_ms, time_left_ms] = [held_ms, left_ms].map(|ms| ms.map(|ms| ms.max(0.0) as u64));
        let (state, label) = (state.as_str(), label.as_deref());
        Claim { state, need, token, session, label, held_for_ms, time_left_ms }.add_to(&mut info)?;
    }
    info.holders.sort_by_key(|holder| holder.token);
    Some(info)
}

#[cfg(test)]
mod tests {
    use palisade_core::Refusal;

    use super::*;

    #[test]
    fn every_kind_of_push_is_read() {
        let refused = read(r#"r 7 3 {"ResizedBelow" : {"lock" : "a b", "limit" : 2}}"#);
        let Some(Push::WaitEnded { outcome: Err(refusal), .. }) = refused else { panic!("{refused:?}") };
        assert!(matches!(refusal, Refusal::ResizedBelow { limit: 2, .. }));
        let event = read(r#"w {"is" : "granted", "locks" : ["a"], "session" : 7, "token" : 9, "ticket" : null}"#);
        assert!(matches!(event, Some(Push::Event(event)) if matches!(*event, Event::Granted { ticket: None, .. })));
        assert_eq!(read("m"), Some(Push::Missed));
    }

    #[test]
    fn an_unknown_push_is_ignored() {
        for text in ["", "x 1 2 3", "w {}", "w {\"is\":\"new\",\"locks\":[]}", "r 7 3 {}"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
