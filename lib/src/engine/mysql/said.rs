//! What the procedures write: notices, events, and who was granted what. Words with spaces in between, names and texts
//! in hex.

use std::sync::Arc;

use palisade_core::{
    Delay, Departure, Ending, Event, Force, Label, LockName, LockNames, Refusal, RequestNo, SessionEnd, SessionId,
    Ticket, Token, Value,
};

/// What a session is told.
#[derive(Debug, PartialEq)]
pub(super) enum Told {
    /// A request was granted.
    Granted { session: SessionId, number: RequestNo, token: Token },
    /// A grant was taken away.
    Lost { session: SessionId, token: Token, how: Ending },
    /// A wait is refused after all.
    Refused { session: SessionId, number: RequestNo, refusal: Refusal },
}

type Words<'a> = std::str::Split<'a, char>;

/// `g SESSION NUMBER TOKEN`, `l SESSION TOKEN ENDING`, or `r SESSION NUMBER resized LOCK LIMIT`. `None` for what a newer schema says.
pub(super) fn told(text: &str) -> Option<Told> {
    let mut words = text.split(' ');
    Some(match words.next()? {
        "g" => {
            Told::Granted { session: session(&mut words)?, number: request(&mut words)?, token: token(&mut words)? }
        }
        "l" => Told::Lost { session: session(&mut words)?, token: token(&mut words)?, how: ending(&mut words)? },
        "r" => {
            let (session, number) = (session(&mut words)?, request(&mut words)?);
            Told::Refused { session, number, refusal: resized(&mut words)? }
        }
        _ => return None,
    })
}

/// The waits that were granted, among the events of a call.
pub(super) fn granted(events: &str) -> Vec<(SessionId, RequestNo, Token)> {
    let grant = |line: &str| {
        let mut words = line.strip_prefix("granted ")?.split(' ').skip(1);
        let session = SessionId::new(words.next()?.parse().ok()?).ok()?;
        let token = Token::new(words.next()?.parse().ok()?).ok()?;
        Some((session, RequestNo::new(words.next()?.parse().ok()?).ok()?, token))
    };
    events.lines().filter_map(grant).collect()
}

/// One line of an event's row.
pub(super) fn event(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let what = words.next()?;
    let names: Option<Vec<_>> = words.next()?.split(',').map(lock).collect();
    let locks = LockNames::from_vec(names?);
    Some(match what {
        "queued" => {
            let (session, number) = (session(&mut words)?, request(&mut words)?);
            Event::Queued { ticket: ticket(session, number)?, session, locks }
        }
        "left" => {
            let (session, number) = (session(&mut words)?, request(&mut words)?);
            let why = departure(&mut words)?;
            Event::LeftQueue { ticket: ticket(session, number)?, session, locks, why }
        }
        "granted" => {
            let (session, token) = (session(&mut words)?, token(&mut words)?);
            let number = words.next()?.parse().ok().and_then(|number: u64| RequestNo::new(number).ok());
            let has_waited = words.next()? == "1";
            let ticket = number.filter(|_| has_waited).and_then(|number| ticket(session, number));
            Event::Granted { locks, session, token, ticket, number }
        }
        "ended" => {
            let (session, token) = (session(&mut words)?, token(&mut words)?);
            Event::GrantEnded { locks, session, token, how: ending(&mut words)? }
        }
        "withheld" => {
            let token = token(&mut words)?;
            Event::Withheld { locks, token, delay: Delay::from_ms(words.next()?.parse().ok()?).ok()? }
        }
        "delay-ended" => {
            let token = token(&mut words)?;
            let force = match ending(&mut words) {
                Some(Ending::Forced(force)) => Some(force),
                _ => None,
            };
            Event::DelayEnded { locks, token, force }
        }
        "published" => {
            let token = token(&mut words)?;
            let value = Value::new(&bytes(words.next()?)?);
            Event::Published { lock: locks.first()?.clone(), token, value }
        }
        "resized" => Event::Resized { lock: locks.first()?.clone(), limit: words.next()?.parse().ok()? },
        _ => return None,
    })
}

fn session(words: &mut Words<'_>) -> Option<SessionId> {
    SessionId::new(words.next()?.parse().ok()?).ok()
}

fn token(words: &mut Words<'_>) -> Option<Token> {
    Token::new(words.next()?.parse().ok()?).ok()
}

fn request(words: &mut Words<'_>) -> Option<RequestNo> {
    RequestNo::new(words.next()?.parse().ok()?).ok()
}

fn lock(hex: &str) -> Option<LockName> {
    LockName::new(&String::from_utf8(bytes(hex)?).ok()?).ok()
}

fn resized(words: &mut Words<'_>) -> Option<Refusal> {
    if words.next()? != "resized" {
        return None;
    }
    Some(Refusal::ResizedBelow { lock: lock(words.next()?)?, limit: words.next()?.parse().ok()? })
}

fn departure(words: &mut Words<'_>) -> Option<Departure> {
    Some(match words.clone().next()? {
        "cancelled" => Departure::Cancelled,
        "closed" => Departure::SessionEnded(SessionEnd::Closed),
        "expired" => Departure::SessionEnded(SessionEnd::Expired),
        _ => Departure::Refused(resized(words)?),
    })
}

/// `released`, `closed`, `expired`, or `forced BY REASON TOKEN`.
pub(super) fn ending(words: &mut Words<'_>) -> Option<Ending> {
    Some(match words.next()? {
        "released" => Ending::Released,
        "closed" => Ending::SessionEnded(SessionEnd::Closed),
        "expired" => Ending::SessionEnded(SessionEnd::Expired),
        "forced" => Ending::Forced(Arc::new(Force {
            by: label(words.next()?)?,
            reason: label(words.next()?)?,
            moved_to: token(words)?,
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

/// A wait is named by its session and its number.
fn ticket(session: SessionId, number: RequestNo) -> Option<Ticket> {
    let slot = session.get() % u64::from(u32::MAX);
    serde_json::from_value(serde_json::json!({ "arrival": number.get(), "slot": slot })).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let session = SessionId::new(7).unwrap();
        let (number, token) = (RequestNo::new(3).unwrap(), Token::new(9).unwrap());
        assert_eq!(
            granted("ended 61 7 8 released\ngranted 61 7 9 3 1\ngranted 61 7 9 -4 1\n"),
            [(session, number, token)]
        );
        let force = Force { by: Label::new("me\0"), reason: Label::new("why"), moved_to: token };
        let lost = Told::Lost { session, token, how: Ending::Forced(Arc::new(force)) };
        assert_eq!(told("l 7 9 forced 6D6500 776879 9"), Some(lost));
        let refused = told("r 7 3 resized 612062 2");
        assert!(matches!(refused, Some(Told::Refused { refusal: Refusal::ResizedBelow { limit: 2, .. }, .. })));
        let event = event("granted 61,62 7 9 3 0");
        assert!(matches!(event, Some(Event::Granted { ticket: None, locks, .. }) if locks.len() == 2));
    }

    #[test]
    fn what_nobody_understands_is_nothing() {
        for text in ["", "l", "l 7", "l 0 0 expired", "x 1 2 3", "l 7 9 forced zz", "r 7 3 new 61 2"] {
            assert_eq!(told(text), None, "{text}");
        }
        for line in ["", "granted", "granted 61", "new 61 7", "ended zz 7 9 released", "left 61 7 3 new"] {
            assert_eq!(event(line), None, "{line}");
        }
        assert_eq!(granted("granted\ngranted 61\ngranted 61 1 2\n\nx"), []);
    }
}
