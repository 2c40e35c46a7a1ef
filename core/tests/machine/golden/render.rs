//! Renders answers, events and states as lines of text.

use palisade_core::{
    Answer, Cursor, Departure, Ending, Event, GrantState, Limits, LockName, LockView, Machine, Mode, Refusal,
    SessionEnd, Ttl, Value,
};

use super::bindings::Bindings;

pub(crate) fn answer(answer: &Result<Answer, Refusal>) -> String {
    match answer {
        Ok(Answer::Opened { session }) => format!("opened as session {session}"),
        Ok(Answer::Granted { token }) => format!("granted, token {token}"),
        Ok(Answer::Queued { ticket }) => format!("queued, ticket {}", ticket.arrival()),
        Ok(Answer::Busy) => "busy".to_owned(),
        Ok(Answer::Forced { grants: 1, moved_to }) => format!("took 1 grant away, moved on to token {moved_to}"),
        Ok(Answer::Forced { grants, moved_to }) => format!("took {grants} grants away, moved on to token {moved_to}"),
        Ok(Answer::Done) => "done".to_owned(),
        Ok(Answer::Raised { last }) => format!("raised from {last}"),
        Ok(Answer::Matched { locks, others: 0 }) => format!("matched {locks}"),
        Ok(Answer::Matched { locks, others }) => format!("matched {locks}, {others} held otherwise"),
        Err(refusal) => format!("refused: {refusal}"),
    }
}

pub(crate) fn event(event: &Event, bindings: &Bindings, before: &Limits) -> String {
    match event {
        Event::SessionOpened { session, ttl } => {
            format!("session {} opened, ttl {}", bindings.name(*session), time(ttl.as_ms()))
        }
        Event::SessionEnded { session, how } => format!("session {} {}", bindings.name(*session), ended(*how)),
        Event::Queued { ticket, session, locks } => {
            format!("{} queued for {}, ticket {}", bindings.name(*session), names(locks), ticket.arrival())
        }
        Event::LeftQueue { ticket, session, locks, why } => {
            let (session, number) = (bindings.name(*session), ticket.arrival());
            format!("{session} left the queue for {}, ticket {number}: {}", names(locks), departure(why))
        }
        Event::Granted { locks, session, token, ticket, number } => {
            let waited = ticket.map(|ticket| format!(", ticket {}", ticket.arrival())).unwrap_or_default();
            let number = number.map(|number| format!(", request {number}")).unwrap_or_default();
            format!("{} granted to {}, token {token}{waited}{number}", names(locks), bindings.name(*session))
        }
        Event::GrantEnded { locks, session, token, how } => {
            format!("{} no longer held by {}, token {token}: {}", names(locks), bindings.name(*session), ending(how))
        }
        Event::Withheld { locks, token, delay } => {
            format!("{} withheld for {}, token {token}", names(locks), time(delay.as_ms()))
        }
        Event::DelayEnded { locks, token, force: None } => {
            format!("{} no longer withheld, token {token}", names(locks))
        }
        Event::DelayEnded { locks, token, force: Some(force) } => {
            let how = ending(&Ending::Forced(force.clone()));
            format!("{} no longer withheld, token {token}: {how}", names(locks))
        }
        Event::Published { lock, token, value: shown } => format!("{lock} showed {}, token {token}", value(shown)),
        Event::Resized { lock, limit } => format!("{lock} resized to {limit} permits"),
        Event::TokensRaised { above } => format!("tokens raised above {above}"),
        Event::Configured { limits } => format!("limits changed: {}", changes(before, limits)),
        Event::TtlChanged { session, ttl } => {
            format!("session {} has ttl {}", bindings.name(*session), time(ttl.as_ms()))
        }
    }
}

fn departure(why: &Departure) -> String {
    match why {
        Departure::Cancelled => "cancelled".to_owned(),
        Departure::SessionEnded(how) => format!("its session {}", ended(*how)),
        Departure::Refused(refusal) => format!("refused: {refusal}"),
    }
}

fn ending(how: &Ending) -> String {
    match how {
        Ending::Released => "released".to_owned(),
        Ending::SessionEnded(how) => format!("its session {}", ended(*how)),
        Ending::Forced(force) => {
            let (by, reason) = (force.by.as_str(), force.reason.as_str());
            format!("taken away by {by:?} because {reason:?}, moved on to token {}", force.moved_to)
        }
    }
}

fn ended(how: SessionEnd) -> &'static str {
    match how {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusively".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits { count, of } => format!("{count} of {of} permits"),
    }
}

fn value(value: &Value) -> String {
    format!("{:?}", String::from_utf8_lossy(value.as_bytes()))
}

fn names(locks: &[LockName]) -> String {
    locks.iter().map(LockName::as_str).collect::<Vec<_>>().join(" + ")
}

fn time(ms: u64) -> String {
    if ms == Ttl::ENDLESS.as_ms() {
        return "none".to_owned();
    }
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

/// Renders the fields that differ, with their new values.
fn changes(before: &Limits, now: &Limits) -> String {
    let fields = |limits: &Limits| {
        let text = format!("{limits:?}").replace("Limits { ", "").replace(" }", "");
        text.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let changed: Vec<_> = fields(before).into_iter().zip(fields(now)).filter(|(was, is)| was != is).collect();
    if changed.is_empty() {
        return "none".to_owned();
    }
    changed.into_iter().map(|(_, is)| is).collect::<Vec<_>>().join(", ")
}

/// Renders the state of a lock; the first line is its kind.
pub(crate) fn lock(view: Option<LockView<'_>>, bindings: &Bindings) -> Vec<String> {
    let Some(view) = view else { return vec!["not in use".to_owned()] };
    let mut lines = vec![format!("a {}", view.kind())];
    for grant in view.holders() {
        let (token, how) = (grant.token, mode(grant.mode));
        lines.push(match grant.state {
            GrantState::Held { session, .. } => format!("held by {}, token {token}, {how}", bindings.name(session)),
            GrantState::Withheld => format!("withheld, token {token}, {how}"),
        });
    }
    for waiter in view.waiters() {
        let (session, ticket) = (bindings.name(waiter.session), waiter.ticket.arrival());
        lines.push(format!("wanted by {session}, ticket {ticket}, {}", mode(waiter.mode)));
    }
    lines.extend(view.value().map(|shown| format!("shows {}", value(shown))));
    lines
}

/// Renders the number of past grants of a lock, then each of them.
pub(crate) fn history(view: Option<LockView<'_>>, bindings: &Bindings) -> Vec<String> {
    let past = view.into_iter().flat_map(|view| view.history());
    let lines = past.map(|past| {
        let (session, token) = (bindings.name(past.session), past.token);
        format!("held by {session}, token {token}, {}: {}", mode(past.mode), ending(&past.how))
    });
    let mut lines: Vec<_> = lines.collect();
    lines.insert(0, count(lines.len() as u32, "grant"));
    lines
}

/// Renders a summary, then all locks in use.
pub(crate) fn locks(machine: &Machine, bindings: &Bindings) -> Vec<String> {
    let mut lines = vec![summary(machine)];
    for (_, view) in machine.locks(Cursor::default()) {
        let mut shown = lock(Some(view), bindings).into_iter();
        lines.extend(shown.next().map(|kind| format!("{} is {kind}", view.name())));
        lines.extend(shown.map(|line| format!("  {line}")));
    }
    lines
}

/// Renders a summary, then all open sessions.
pub(crate) fn sessions(machine: &Machine, bindings: &Bindings) -> Vec<String> {
    let mut lines = vec![summary(machine)];
    for session in machine.sessions() {
        let (name, label) = (bindings.name(session.id()), session.label().as_str());
        let label = if label == name { String::new() } else { format!(", label {label:?}") };
        let (ttl, locks) = (time(session.ttl().as_ms()), count(session.lock_count(), "lock"));
        lines.push(format!("{name}: session {}, ttl {ttl}{label}, holds or wants {locks}", session.id()));
        lines.extend(session.grants().map(|(locks, token)| format!("  holds {}, token {token}", names(&locks))));
    }
    lines
}

/// Renders the number of withheld grants, then each of them.
pub(crate) fn withheld(machine: &Machine) -> Vec<String> {
    let lines = machine.withheld().map(|(locks, token, delay)| {
        format!("{} withheld for {}, token {token}", names(&locks), time(delay.as_ms()))
    });
    let mut lines: Vec<_> = lines.collect();
    lines.insert(0, count(lines.len() as u32, "grant"));
    lines
}

/// Renders the whole machine in one line.
pub(crate) fn summary(machine: &Machine) -> String {
    let (sessions, locks) = (count(machine.session_count(), "session"), count(machine.lock_count(), "lock"));
    match machine.last_token() {
        Some(token) => format!("{sessions}, {locks}, last token {token}"),
        None => format!("{sessions}, {locks}, no token yet"),
    }
}

fn count(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
