//! Reads the texts that the SQL schemas of PostgreSQL and MySQL write in the same format.

use std::sync::Arc;

use palisade_core::{Ending, Force, Label, Mode, Refusal, RequestNo, SessionEnd, SessionId, Token};

use super::info::in_words;
use super::remote::{AcquireReply, ConnectError, Peer, Push};
use super::{EndedInfo, Failure, HolderInfo, LockInfo, WaiterInfo};

/// The number of permits that an exclusive holder takes.
pub(super) const ALL: u64 = u32::MAX as u64;

/// Converts a claim's number of permits to a mode. `permits` is the limit of a semaphore.
fn mode(permits: Option<u32>, need: u64) -> Option<Mode> {
    Some(match permits {
        None if need == ALL => Mode::Exclusive,
        None => Mode::Shared,
        Some(of) => Mode::Permits { count: u32::try_from(need).ok()?, of },
    })
}

/// The permits of a lock that a mode takes, and those of a semaphore.
pub(super) fn permits(mode: Mode) -> (u64, Option<u32>) {
    match mode {
        Mode::Exclusive => (ALL, None),
        Mode::Shared => (1, None),
        Mode::Permits { count, of } => (count.into(), Some(of)),
    }
}

/// Reads the reply to an acquire that is neither a grant nor a refusal.
pub(super) fn not_granted(peer: &Peer, reply: Option<&str>) -> Result<AcquireReply, Failure> {
    match reply {
        Some("queued") => Ok(AcquireReply::Queued),
        Some("busy") => Ok(AcquireReply::Busy),
        // The session is attached to a newer connection, which repeats the acquire.
        Some("outdated") => Err(ConnectError::transient("a newer connection has taken over").at(peer).failure(false)),
        other => Err(peer.unexpected(format_args!("'{}'", other.unwrap_or("nothing").escape_debug()))),
    }
}

/// `g SESSION NUMBER TOKEN`, `l SESSION TOKEN ENDING`, `r SESSION NUMBER REFUSAL`, or `s SESSION ENDING`; `None` for a notice
/// of a newer schema.
pub(super) fn notice(text: &str, refusal: impl Fn(&str) -> Option<Refusal>) -> Option<Push> {
    let mut words = text.splitn(4, ' ');
    let (kind, session) = (words.next()?, SessionId::new(words.next()?.parse().ok()?).ok()?);
    if kind == "s" {
        let how = if words.next()? == "closed" { SessionEnd::Closed } else { SessionEnd::Expired };
        return Some(Push::SessionEnded { session, how });
    }
    let (number, rest) = (words.next()?.parse().ok()?, words.next()?);
    let wait = |outcome| Some(Push::WaitEnded { session, number: RequestNo::new(number).ok()?, outcome });
    match kind {
        "g" => wait(Ok(Token::new(rest.parse().ok()?).ok()?)),
        "r" => wait(Err(refusal(rest)?)),
        "l" => Some(Push::GrantEnded { session, token: Token::new(number).ok()?, how: ending(rest.split(' '))? }),
        _ => None,
    }
}

/// A holder or a waiter, as the schemas describe it.
pub(super) struct Claim<'a> {
    /// `held`, `withheld` or `waiting`.
    pub(super) state: &'a str,
    pub(super) need: u64,
    pub(super) token: Option<Token>,
    pub(super) session: SessionId,
    /// In hex.
    pub(super) label: Option<&'a str>,
    pub(super) held_for_ms: Option<u64>,
    pub(super) time_left_ms: Option<u64>,
}

impl Claim<'_> {
    pub(super) fn add_to(self, lock: &mut LockInfo) -> Option<()> {
        let Claim { state, need, session, held_for_ms, time_left_ms, .. } = self;
        let mode = mode(lock.limit, need)?;
        let label = self.label.and_then(label).map(|label| label.as_str().to_owned());
        if state == "waiting" {
            lock.waiters.push(WaiterInfo { session, label: label.unwrap_or_default(), mode });
            return Some(());
        }
        let is_held = state == "held";
        let (session, label) = (is_held.then_some(session), label.filter(|_| is_held));
        lock.holders.push(HolderInfo { token: self.token?, mode, session, label, held_for_ms, time_left_ms });
        Some(())
    }
}

/// Whether this build, which knows version `known` of a schema, can use the one that is installed.
pub(super) fn is_usable(schema: &str, found: (i32, i32), known: i32, replace: &str) -> Result<bool, ConnectError> {
    let (version, usable_from) = found;
    let problem = match () {
        () if usable_from > known => format!(
            "which clients from version {usable_from} on can use, and this one knows version {known}; use a newer palisade"
        ),
        () if version < known => format!("and this build needs version {known} and cannot upgrade it; {replace}"),
        () => return Ok(true),
    };
    Err(ConnectError::permanent(format!("{schema} there has version {version}, {problem}")))
}

/// Explains a denial of a call that few users may make.
pub(super) fn explain_denial(failure: Failure, why: &str) -> Failure {
    if matches!(failure, Failure::Denied(_)) { Failure::Denied(why.to_owned()) } else { failure }
}

/// Refuses a server with other data, or with an earlier state of them: it could give tokens twice.
pub(super) fn other_data(how: &str, raise: &str) -> ConnectError {
    ConnectError::permanent(format!(
        "{how}: tokens that were given may be given again. Make sure that they are not ({raise}), then start this client \
         again"
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_notice_is_read() {
        let session = SessionId::new(7).unwrap();
        let (number, token) = (RequestNo::new(3).unwrap(), Token::new(9).unwrap());
        let read = |text: &str| notice(text, |refusal| (refusal == "no words").then_some(Refusal::NoLocks));
        assert_eq!(read("g 7 3 9"), Some(Push::WaitEnded { session, number, outcome: Ok(token) }));
        assert_eq!(read("s 7 expired"), Some(Push::SessionEnded { session, how: SessionEnd::Expired }));
        let force = Force { by: Label::new("me\0"), reason: Label::new("why"), moved_to: token };
        let lost = Push::GrantEnded { session, token, how: Ending::Forced(Arc::new(force)) };
        for hex in ["6d6500", "6D6500"] {
            assert_eq!(read(&format!("l 7 9 forced {hex} 776879 9")).as_ref(), Some(&lost));
        }
        let outcome = Err(Refusal::NoLocks);
        assert_eq!(read("r 7 3 no words"), Some(Push::WaitEnded { session, number, outcome }));
        for text in [
            "",
            "g",
            "g 7",
            "g 0 0 0",
            "g a b c",
            "x 1 2 3",
            "l",
            "l 7",
            "l 0 0 expired",
            "l 7 9 forced zz",
            "r 7 3 new",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
