//! What PostgreSQL says unasked: the payloads of notifications, and the lines of `palisade.look_up`.

use std::sync::Arc;

use palisade_core::{
    Delay, Departure, Ending, Event, Force, Label, LockName, LockNames, Refusal, RequestNo, SessionEnd, SessionId,
    Ticket, Token, Value,
};
use serde::Deserialize;

/// Something that happened.
#[derive(Debug, PartialEq)]
pub(super) enum Push {
    Granted {
        session: SessionId,
        number: RequestNo,
        token: Token,
    },
    /// A wait that is refused after all.
    Refused {
        session: SessionId,
        number: RequestNo,
        refusal: Refusal,
    },
    /// It may be the turn of a wait for several locks: whoever waits should look.
    Turn,
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

/// `None` for what a newer schema says.
pub(super) fn read(text: &str) -> Option<Push> {
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
            how: ending(words.next()?)?,
        },
        "s" => Push::SessionEnded {
            session: SessionId::new(number()?).ok()?,
            how: if words.next()? == "closed" { SessionEnd::Closed } else { SessionEnd::Expired },
        },
        "t" => Push::Turn,
        "w" => Push::Event(Box::new(serde_json::from_str::<Told>(rest).ok()?.into_event()?)),
        "m" => Push::Missed,
        _ => return None,
    })
}

/// `released`, `closed`, `expired`, or `forced BY REASON TOKEN` with both texts in hex.
pub(super) fn ending(text: &str) -> Option<Ending> {
    let mut words = text.split(' ');
    Some(match words.next()? {
        "released" => Ending::Released,
        "closed" => Ending::SessionEnded(SessionEnd::Closed),
        "expired" => Ending::SessionEnded(SessionEnd::Expired),
        "forced" => Ending::Forced(Arc::new(Force {
            by: label(words.next()?)?,
            reason: label(words.next()?)?,
            moved_to: Token::new(words.next()?.parse().ok()?).ok()?,
        })),
        _ => return None,
    })
}

pub(super) fn label(hex: &str) -> Option<Label> {
    Some(Label::new(&String::from_utf8_lossy(&bytes(hex)?)))
}

pub(super) fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<_>> = hex.bytes().map(|digit| char::from(digit).to_digit(16)).collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8)).collect())
}

/// An event, as the functions write it.
#[derive(Deserialize)]
struct Told {
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

impl Told {
    fn into_event(self) -> Option<Event> {
        let locks = LockNames::from_vec(self.locks);
        let ticket = self.ticket.and_then(ticket);
        let (session, token) = (self.session, self.token);
        Some(match self.is.as_str() {
            "queued" => Event::Queued { ticket: ticket?, session: session?, locks },
            "left" => Event::LeftQueue { ticket: ticket?, session: session?, locks, why: departure(&self.why?)? },
            "granted" => Event::Granted { locks, session: session?, token: token?, ticket, number: self.number },
            "ended" => Event::GrantEnded { locks, session: session?, token: token?, how: ending(&self.how?)? },
            "withheld" => Event::Withheld { locks, token: token?, delay: Delay::from_ms(self.delay?).ok()? },
            "delay-ended" => {
                let force = match self.how.as_deref().and_then(ending) {
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

/// A ticket is nothing but its number here.
fn ticket(arrival: u64) -> Option<Ticket> {
    serde_json::from_value(serde_json::json!({ "arrival": arrival, "slot": 0 })).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
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
    fn what_nobody_understands_is_nothing() {
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
