//! Locks and events as clients see them.

use palisade_core::{
    Departure, Ending, Event, GrantState, GrantView, Kind, LockName, LockNames, LockView, Mode, SessionEnd,
};
use palisade_core::{SessionId, Token};

use crate::resp::Reply;

/// What only the host knows of a grant: how long it has been held, and how long its session lives yet.
pub(super) struct Times {
    pub(super) held_for_ms: Option<u64>,
    pub(super) time_left_ms: Option<u64>,
}

/// Which of a lock's holders and waiters are shown.
pub(super) struct Page {
    /// How many are left out, of the holders and then of the waiters.
    pub(super) skipped: usize,
    /// How many are shown.
    pub(super) count: usize,
}

/// Once an answer has so many bytes, the rest is left to the next page.
pub(super) const PAGE_BYTES: usize = 1 << 20;
/// How many holders and waiters a page shows unless it is told otherwise, and at most.
pub(super) const PAGE_COUNT: u32 = 1000;
/// How many of them a list shows of each lock.
pub(super) const LISTED: usize = 16;

/// A lock, with a page of its holders and waiters. The cursor is 0 where nobody follows.
pub(super) fn lock(view: LockView<'_>, page: &Page, times: impl Fn(Option<SessionId>, Token) -> Times) -> Reply {
    let (mut shown, mut bytes) = (0, 0);
    let mut has_room = |entry: &Reply| {
        let has_room = shown < page.count && (shown == 0 || bytes < PAGE_BYTES);
        (shown, bytes) = (shown + usize::from(has_room), bytes + entry.weight());
        has_room
    };
    let holder_count = view.holder_count() as usize;
    let holders = view.holders().skip(page.skipped).map(|grant| holder(&grant, &times));
    let holders: Vec<_> = holders.take_while(&mut has_room).collect();
    let skipped = page.skipped.saturating_sub(holder_count);
    let are_all_shown = page.skipped + holders.len() >= holder_count;
    let waiters = view.waiters().skip(skipped).map(|waiter| {
        let mut fields = vec![("session", Reply::Number(waiter.session.get()))];
        fields.push(("label", Reply::text(waiter.label.as_str())));
        fields.extend(mode(waiter.mode));
        Reply::Map(fields)
    });
    let waiters: Vec<_> = waiters.take_while(|waiter| are_all_shown && has_room(waiter)).collect();
    let next = page.skipped + holders.len() + waiters.len();
    let is_last = next >= holder_count + view.waiter_count() as usize;
    let cursor = if is_last { 0 } else { next as u64 };
    let history = view.history().map(|ended| {
        Reply::Map(vec![
            ("token", Reply::Number(ended.token.get())),
            ("session", Reply::Number(ended.session.get())),
            ("label", Reply::text(ended.label.as_str())),
            ("how", Reply::text(ending(&ended.how))),
        ])
    });
    let limit = match view.kind() {
        Kind::Lock => Reply::Nil,
        Kind::Semaphore { limit } => Reply::Number(limit.into()),
    };
    Reply::Map(vec![
        ("name", Reply::text(view.name().as_str())),
        ("limit", limit),
        ("holder_count", Reply::Number(holder_count as u64)),
        ("waiter_count", Reply::Number(view.waiter_count().into())),
        ("holders", Reply::Array(holders)),
        ("waiters", Reply::Array(waiters)),
        ("cursor", Reply::Number(cursor)),
        ("value", view.value().map_or(Reply::Nil, |value| Reply::Bytes(value.as_bytes().to_vec()))),
        ("history", Reply::Array(history.collect())),
    ])
}

fn holder(grant: &GrantView<'_>, times: impl Fn(Option<SessionId>, Token) -> Times) -> Reply {
    let (session, label) = match grant.state {
        GrantState::Held { session, label } => (Some(session), Reply::text(label.as_str())),
        GrantState::Withheld => (None, Reply::Nil),
    };
    let Times { held_for_ms, time_left_ms } = times(session, grant.token);
    let mut fields = vec![("token", Reply::Number(grant.token.get()))];
    fields.extend(mode(grant.mode));
    fields.push(("session", session.map_or(Reply::Nil, |session| Reply::Number(session.get()))));
    fields.push(("label", label));
    fields.push(("held_for_ms", held_for_ms.map_or(Reply::Nil, Reply::Number)));
    fields.push(("time_left_ms", time_left_ms.map_or(Reply::Nil, Reply::Number)));
    Reply::Map(fields)
}

fn mode(mode: Mode) -> [(&'static str, Reply); 2] {
    match mode {
        Mode::Exclusive => [("mode", Reply::Text("exclusive")), ("permits", Reply::Nil)],
        Mode::Shared => [("mode", Reply::Text("shared")), ("permits", Reply::Nil)],
        Mode::Permits { count, .. } => [("mode", Reply::Text("permits")), ("permits", Reply::Number(count.into()))],
    }
}

pub(super) fn ending(how: &Ending) -> String {
    match how {
        Ending::Released => "released".to_owned(),
        Ending::SessionEnded(SessionEnd::Closed) => "closed".to_owned(),
        Ending::SessionEnded(SessionEnd::Expired) => "expired".to_owned(),
        Ending::Forced(force) => format!("forced by {}: {}", force.by.as_str(), force.reason.as_str()),
    }
}

/// An event about fewer locks: those that may be seen.
pub(super) fn narrowed(event: &Event, sees: impl Fn(&LockName) -> bool) -> Event {
    let mut event = event.clone();
    match &mut event {
        Event::Queued { locks, .. }
        | Event::LeftQueue { locks, .. }
        | Event::Granted { locks, .. }
        | Event::GrantEnded { locks, .. }
        | Event::Withheld { locks, .. }
        | Event::DelayEnded { locks, .. } => locks.retain(|lock| sees(lock)),
        _ => {}
    }
    event
}

/// An event about locks; `None` for one that is about sessions or settings.
pub(super) fn event(event: &Event) -> Option<(LockNames, Vec<Reply>)> {
    let names = |locks: &LockNames| Reply::Array(locks.iter().map(|lock| Reply::text(lock.as_str())).collect());
    let number = |number: u64| Reply::Number(number);
    let one = |lock: &LockName| LockNames::from([lock.clone()]);
    Some(match event {
        Event::Queued { session, locks, .. } => {
            (locks.clone(), fields("queued", names(locks), [("session", number(session.get()))]))
        }
        Event::LeftQueue { session, locks, why, .. } => {
            let why = match why {
                Departure::Cancelled => "cancelled".to_owned(),
                Departure::SessionEnded(SessionEnd::Closed) => "closed".to_owned(),
                Departure::SessionEnded(SessionEnd::Expired) => "expired".to_owned(),
                Departure::Refused(refusal) => refusal.to_string(),
            };
            let more = [("session", number(session.get())), ("why", Reply::text(why))];
            (locks.clone(), fields("left-queue", names(locks), more))
        }
        Event::Granted { locks, session, token, .. } => {
            let more = [("session", number(session.get())), ("token", number(token.get()))];
            (locks.clone(), fields("granted", names(locks), more))
        }
        Event::GrantEnded { locks, session, token, how } => {
            let (session, token) = (number(session.get()), number(token.get()));
            let more = [("session", session), ("token", token), ("how", Reply::text(ending(how)))];
            (locks.clone(), fields("ended", names(locks), more))
        }
        Event::Withheld { locks, token, delay } => {
            let more = [("token", number(token.get())), ("delay_ms", number(delay.as_ms()))];
            (locks.clone(), fields("withheld", names(locks), more))
        }
        Event::DelayEnded { locks, token, .. } => {
            (locks.clone(), fields("delay-ended", names(locks), [("token", number(token.get()))]))
        }
        Event::Published { lock, token, value } => {
            let more = [("token", number(token.get())), ("value", Reply::Bytes(value.as_bytes().to_vec()))];
            (one(lock), fields("published", names(&one(lock)), more))
        }
        Event::Resized { lock, limit } => {
            (one(lock), fields("resized", names(&one(lock)), [("limit", number((*limit).into()))]))
        }
        Event::SessionOpened { .. }
        | Event::SessionEnded { .. }
        | Event::TokensRaised { .. }
        | Event::Configured { .. } => return None,
    })
}

fn fields<const N: usize>(what: &'static str, locks: Reply, more: [(&'static str, Reply); N]) -> Vec<Reply> {
    let mut map = vec![("event", Reply::Text(what)), ("locks", locks)];
    map.extend(more);
    vec![Reply::Text("event"), Reply::Map(map)]
}
