//! Reads the texts that the SQL schemas of PostgreSQL and MySQL write in the same format.

use std::sync::Arc;

use palisade_core::{Ending, Force, Label, Mode, Refusal, SessionEnd, SessionId, Token};

use super::info::in_words;
use super::remote::Peer;
use super::{EndedInfo, Failure};

/// The number of permits that an exclusive holder takes.
pub(super) const ALL: u64 = u32::MAX as u64;

/// Converts a claim's number of permits to a mode. `permits` is the limit of a semaphore.
pub(super) fn mode(permits: Option<u32>, need: u64) -> Option<Mode> {
    Some(match permits {
        None if need == ALL => Mode::Exclusive,
        None => Mode::Shared,
        Some(of) => Mode::Permits { count: u32::try_from(need).ok()?, of },
    })
}

/// Reads a refusal, which is JSON.
pub(super) fn refusal(peer: &Peer, detail: Option<&str>) -> Failure {
    match detail.map(serde_json::from_str::<Refusal>) {
        Some(Ok(refusal)) => refusal.into(),
        _ => peer.unexpected(format_args!("a refusal '{}'", detail.unwrap_or("").escape_debug())),
    }
}

/// Reads `released`, `closed`, `expired`, or `forced BY REASON TOKEN` with both texts in hex.
pub(super) fn ending<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Ending> {
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

/// Reads an entry of a lock's history: `TOKEN,SESSION,NEED,LABEL,HOW`.
pub(super) fn ended_info(text: &str) -> Option<EndedInfo> {
    let mut words = text.splitn(5, ',');
    let token = Token::new(words.next()?.parse().ok()?).ok()?;
    let session = SessionId::new(words.next()?.parse().ok()?).ok()?;
    words.next()?;
    let label = label(words.next()?)?.as_str().to_owned();
    Some(EndedInfo { token, session, label, how: in_words(&ending(words.next()?.split(' '))?) })
}

pub(super) fn label(hex: &str) -> Option<Label> {
    Some(Label::new(&String::from_utf8_lossy(&bytes(hex)?)))
}

pub(super) fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<_>> = hex.bytes().map(|digit| char::from(digit).to_digit(16)).collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8)).collect())
}
