//! Words that both protocols use for the same thing.

use palisade_core::{
    Departure, Ending, Event, LockName, LockNames, Mode, Refusal, SessionEnd, SessionId, Token, Value,
};

/// The refusal of a service without keys.
pub(super) const NOT_SIGNING: &str =
    "this service signs no tokens; start it with --sign, or set sign = true under [serve]";
/// The reply to a wait that ends because the service stops.
pub(super) const CLOSING: &str =
    "the service is stopping: the wait was ended and nothing is held; ask again when it is back";
/// The refusal of a node that does not lead.
pub(super) const NOT_LEADER: &str = "this node does not lead, or not yet: nothing was changed; ask again soon";

/// Returns the stable code of a refusal.
pub(super) fn refusal_code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoSuchSession { .. } => "NOSESSION",
        Refusal::NoSuchLock { .. } | Refusal::NoHolder { .. } | Refusal::NotHeld { .. } => "NOTHELD",
        Refusal::NotWithheld { .. } | Refusal::OtherSession { .. } | Refusal::NeverGranted { .. } => "NOTHELD",
        Refusal::OverLimit { .. } | Refusal::UnderLimit { .. } | Refusal::TokensExhausted { .. } => "LIMIT",
        Refusal::RaiseTooHigh { .. } => "LIMIT",
        Refusal::AlreadyHeld { .. } | Refusal::NoSecret { .. } | Refusal::PartOfGrant { .. } => "HELD",
        Refusal::AlreadyGranted { .. } => "GRANTED",
        Refusal::NotWaiting | Refusal::Withdrawn { .. } => "CANCELLED",
        Refusal::NumberReused { .. } | Refusal::NumberForgotten { .. } | Refusal::SessionExists { .. } => "STALE",
        Refusal::WrongKind { .. } | Refusal::LimitDiffers { .. } | Refusal::ResizedBelow { .. } => "KIND",
        Refusal::NoLocks
        | Refusal::NamedTwice { .. }
        | Refusal::BadPermits { .. }
        | Refusal::BadLimit { .. }
        | Refusal::NoReason { .. }
        | Refusal::ValueNotPossible
        | Refusal::SecretNotPossible
        | Refusal::ForOneRequest { .. } => "BADARG",
    }
}

/// Returns the word for a mode, and the permits of a semaphore.
pub(crate) fn mode_word(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permits { count, .. } => ("permits", Some(count)),
    }
}

/// Returns the word for the end of a grant.
pub(crate) fn ending(how: &Ending) -> String {
    match how {
        Ending::Released => "released".to_owned(),
        Ending::SessionEnded(SessionEnd::Closed) => "closed".to_owned(),
        Ending::SessionEnded(SessionEnd::Expired) => "expired".to_owned(),
        Ending::Forced(force) => format!("forced by {}: {}", force.by.as_str(), force.reason.as_str()),
    }
}

/// An event about locks, with the fields that its kind has.
#[derive(Debug, Default)]
pub(crate) struct EventReport {
    pub(crate) kind: &'static str,
    pub(crate) locks: LockNames,
    pub(crate) session: Option<SessionId>,
    pub(crate) token: Option<Token>,
    /// Why a request left the queue.
    pub(crate) why: Option<String>,
    /// How a grant ended.
    pub(crate) how: Option<String>,
    pub(crate) delay_ms: Option<u64>,
    pub(crate) value: Option<Value>,
    pub(crate) limit: Option<u32>,
}

impl EventReport {
    /// Returns the report of an event; `None` for one about sessions or settings.
    pub(crate) fn of(event: &Event) -> Option<EventReport> {
        let report = EventReport::default();
        let one = |lock: &LockName| LockNames::from([lock.clone()]);
        Some(match event {
            Event::Queued { session, locks, .. } => {
                EventReport { kind: "queued", locks: locks.clone(), session: Some(*session), ..report }
            }
            Event::LeftQueue { session, locks, why, .. } => {
                let (locks, why) = (locks.clone(), Some(departure(why)));
                EventReport { kind: "left-queue", locks, session: Some(*session), why, ..report }
            }
            Event::Granted { locks, session, token, .. } => {
                let (session, token) = (Some(*session), Some(*token));
                EventReport { kind: "granted", locks: locks.clone(), session, token, ..report }
            }
            Event::GrantEnded { locks, session, token, how } => {
                let (session, token, how) = (Some(*session), Some(*token), Some(ending(how)));
                EventReport { kind: "ended", locks: locks.clone(), session, token, how, ..report }
            }
            Event::Withheld { locks, token, delay } => {
                let (token, delay_ms) = (Some(*token), Some(delay.as_ms()));
                EventReport { kind: "withheld", locks: locks.clone(), token, delay_ms, ..report }
            }
            Event::DelayEnded { locks, token, .. } => {
                EventReport { kind: "delay-ended", locks: locks.clone(), token: Some(*token), ..report }
            }
            Event::Published { lock, token, value } => {
                let (token, value) = (Some(*token), Some(value.clone()));
                EventReport { kind: "published", locks: one(lock), token, value, ..report }
            }
            Event::Resized { lock, limit } => {
                EventReport { kind: "resized", locks: one(lock), limit: Some(*limit), ..report }
            }
            Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::TokensRaised { .. }
            | Event::Configured { .. }
            | Event::TtlChanged { .. } => return None,
        })
    }
}

fn departure(why: &Departure) -> String {
    match why {
        Departure::Cancelled => "cancelled".to_owned(),
        Departure::SessionEnded(SessionEnd::Closed) => "closed".to_owned(),
        Departure::SessionEnded(SessionEnd::Expired) => "expired".to_owned(),
        Departure::Refused(refusal) => refusal.to_string(),
    }
}
