//! The calls as SQL, and the rows and texts that the procedures return. A text consists of words separated by spaces. Names,
//! labels and values in it are in hex.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::str::Split;

use mysql_async::Row;
use mysql_async::prelude::FromValue;
use palisade_core::{
    Acquire, Departure, Ending, Event, LockName, LockNames, Patience, Reentry, Refusal, RequestNo, SessionEnd,
    SessionId, Ticket, Token, Value,
};

use super::MysqlBackend;
use crate::engine::LockInfo;
use crate::engine::remote::ClientState;
use crate::engine::sql_text::{ALL, Claim, bytes, ended_info, ending, notice, permits};

/// Returns the call that acquires locks.
pub(super) fn acquire_call(acquire: &Acquire, epoch: i32) -> String {
    let session = acquire.caller.session.get();
    // An acquire without a number gets a random negative one, so that MySQL does not take it for a repeat.
    let random = || -(RandomState::new().hash_one(()) as i64 >> 1).abs().max(1);
    let number = acquire.caller.number.map_or_else(random, |number| number.get() as i64);
    let waits = u8::from(acquire.patience == Patience::Wait);
    let may_queue = u8::from(acquire.reentry == Reentry::Queue);
    let wants = acquire.wants.iter().map(|want| {
        let (need, of) = permits(want.mode);
        let of = of.map(|of| of.to_string()).unwrap_or_default();
        format!("{}:{need}:{of}", hex(want.lock.as_str().as_bytes()))
    });
    let mut order: Vec<_> = (0..acquire.wants.len()).collect();
    order.sort_by_key(|part| &acquire.wants[*part].lock);
    let order: Vec<_> = order.into_iter().map(|part| (part + 1).to_string()).collect();
    let delay = acquire.delay.map_or("NULL".to_owned(), |delay| delay.as_ms().to_string());
    let value = acquire.value.as_ref().map_or("NULL".to_owned(), |value| literal(value.as_bytes()));
    format!(
        "CALL palisade_request({session}, {epoch}, {number}, '{}', '{}', {waits}, {may_queue}, {delay}, {value})",
        wants.collect::<Vec<_>>().join(","),
        order.join(","),
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02X}");
        text
    })
}

/// Any bytes as an SQL literal.
pub(super) fn literal(bytes: impl AsRef<[u8]>) -> String {
    format!("x'{}'", hex(bytes.as_ref()))
}

/// A column; `None` for NULL, and for another type.
fn column<T: FromValue>(row: &Row, at: usize) -> Option<T> {
    row.get_opt::<Option<T>, _>(at)?.ok()?
}

pub(super) fn text(row: &Row, at: usize) -> Option<String> {
    column(row, at)
}

pub(super) fn number(row: &Row, at: usize) -> Option<u64> {
    column(row, at)
}

/// A column with a session, a token or the number of an acquire.
pub(super) fn id<T: TryFrom<u64>>(row: &Row, at: usize) -> Option<T> {
    T::try_from(number(row, at)?).ok()
}

/// Reads a grant as `palisade_attach` returns it.
pub(super) fn attached_grant(row: &Row) -> Option<(Token, (LockName, Option<RequestNo>))> {
    Some((id(row, 3)?, (LockName::new(&text(row, 1)?).ok()?, id(row, 2))))
}

/// Passes a notice on to its session or wait.
pub(super) fn handle_notice(client: &ClientState<MysqlBackend>, text: &str) {
    match notice(text, |refusal| Words(refusal.split(' ')).resized()) {
        Some(push) => client.handle_push(push),
        None => tracing::debug!(text, "MySQL has a notice that this build does not understand"),
    }
}

/// The query for the notices of a session.
pub(super) fn notices_query(session: SessionId) -> String {
    format!("SELECT id, said FROM palisade_notice WHERE session = {session} ORDER BY id")
}

/// Passes notices on. Returns the call that removes them from the store.
pub(super) fn handle_notices(client: &ClientState<MysqlBackend>, session: SessionId, rows: &[Row]) -> Option<String> {
    for row in rows {
        handle_notice(client, &text(row, 1).unwrap_or_default());
    }
    rows.last().and_then(|last| Some(forget_notices(session, number(last, 0)?)))
}

/// The call that removes the notices of a session up to this one.
pub(super) fn forget_notices(session: SessionId, last: u64) -> String {
    format!("CALL palisade_heard({session}, {last})")
}

/// Settles the waits of this client that a call has granted, given the events of the call.
pub(super) fn settle_granted(client: &ClientState<MysqlBackend>, events: Option<String>) {
    for (session, number, token) in events.iter().flat_map(|events| events.lines()).filter_map(granted) {
        client.settle((session, number), Ok(token));
    }
}

/// Reads a grant to a wait among the events of a call.
fn granted(line: &str) -> Option<(SessionId, RequestNo, Token)> {
    let mut words = Words(line.strip_prefix("granted ")?.split(' '));
    words.text()?;
    let (session, token) = (words.id()?, words.id()?);
    Some((session, words.id()?, token))
}

/// Reads one line of an event's row; `None` for one of a newer schema.
pub(super) fn event(line: &str) -> Option<Event> {
    let mut words = Words(line.split(' '));
    let kind = words.text()?;
    let names: Option<Vec<_>> = words.text()?.split(',').map(lock).collect();
    let locks = LockNames::from_vec(names?);
    Some(match kind {
        "queued" => {
            let session = words.id()?;
            Event::Queued { ticket: ticket(session, words.id()?)?, session, locks }
        }
        "left" => {
            let session = words.id()?;
            Event::LeftQueue { ticket: ticket(session, words.id()?)?, session, locks, why: words.departure()? }
        }
        "granted" => {
            let (session, token) = (words.id()?, words.id()?);
            let number = words.text()?.parse::<u64>().ok().and_then(|number| RequestNo::new(number).ok());
            let has_waited = words.text()? == "1";
            let ticket = number.filter(|_| has_waited).and_then(|number| ticket(session, number));
            Event::Granted { locks, session, token, ticket, number }
        }
        "ended" => Event::GrantEnded { locks, session: words.id()?, token: words.id()?, how: ending(&mut words.0)? },
        "withheld" => Event::Withheld { locks, token: words.id()?, delay: words.id()? },
        "delay-ended" => {
            let token = words.id()?;
            let force = match ending(&mut words.0) {
                Some(Ending::Forced(force)) => Some(force),
                _ => None,
            };
            Event::DelayEnded { locks, token, force }
        }
        "published" => {
            let (lock, token) = (locks.first()?.clone(), words.id()?);
            Event::Published { lock, token, value: Value::new(&bytes(words.text()?)?) }
        }
        "resized" => Event::Resized { lock: locks.first()?.clone(), limit: words.text()?.parse().ok()? },
        _ => return None,
    })
}

struct Words<'a>(Split<'a, char>);

impl<'a> Words<'a> {
    fn text(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn id<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.text()?.parse().ok()?).ok()
    }

    fn resized(&mut self) -> Option<Refusal> {
        if self.text()? != "resized" {
            return None;
        }
        Some(Refusal::ResizedBelow { lock: lock(self.text()?)?, limit: self.text()?.parse().ok()? })
    }

    fn departure(&mut self) -> Option<Departure> {
        Some(match self.0.clone().next()? {
            "cancelled" => Departure::Cancelled,
            "closed" => Departure::SessionEnded(SessionEnd::Closed),
            "expired" => Departure::SessionEnded(SessionEnd::Expired),
            _ => Departure::Refused(self.resized()?),
        })
    }
}

fn lock(hex: &str) -> Option<LockName> {
    LockName::new(&String::from_utf8(bytes(hex)?).ok()?).ok()
}

/// Makes the ticket of a wait from its session and number, which identify it.
fn ticket(session: SessionId, number: RequestNo) -> Option<Ticket> {
    let slot = session.get() % u64::from(u32::MAX);
    serde_json::from_value(serde_json::json!({ "arrival": number.get(), "slot": slot })).ok()
}

/// Returns the query for one lock.
pub(super) fn lock_query(lock: &LockName) -> String {
    locks_query(&format!("l.name = {}", literal(lock.as_str())))
}

/// Returns the query for all locks whose names have this prefix.
pub(super) fn prefix_query(prefix: &str) -> String {
    let first = literal(prefix);
    locks_query(&format!("l.name >= {first} AND LEFT(l.name, {}) = {first}", prefix.len()))
}

/// Returns a row for each holder and each waiter, sorted by lock.
fn locks_query(filter: &str) -> String {
    let lives = "s.ended IS NULL AND s.deadline > UTC_TIMESTAMP(6)";
    let ms = |from: &str, to: &str| format!("TIMESTAMPDIFF(MICROSECOND, {from}, {to}) DIV 1000");
    let now = "UTC_TIMESTAMP(6)";
    format!(
        "SELECT l.name AS name, l.permits, l.history, IF(l.withheld_until IS NULL, 'held', 'withheld') AS state, {ALL}, \
         l.token AS token, l.session, HEX(s.label), {held}, {left}, l.value, 0 AS arrival \
         FROM palisade_lock l LEFT JOIN palisade_session s ON s.id = l.session WHERE {filter} AND l.session IS NOT NULL \
         AND (l.withheld_until > {now} OR (l.withheld_until IS NULL AND {lives})) \
         UNION ALL SELECT l.name, l.permits, l.history, IF(c.waits, 'waiting', IF(c.withheld_until IS NULL, 'held', \
         'withheld')), c.need, c.token, c.session, HEX(s.label), {c_held}, {c_left}, c.value, c.arrival \
         FROM palisade_lock l JOIN palisade_claim c ON c.name = l.name LEFT JOIN palisade_session s ON s.id = c.session \
         WHERE {filter} AND (c.withheld_until > {now} OR (c.withheld_until IS NULL AND {lives})) \
         ORDER BY name, state = 'waiting', arrival, token",
        held = ms("l.since", now),
        left = ms(now, "COALESCE(l.withheld_until, s.deadline)"),
        c_held = ms("c.since", now),
        c_left = ms(now, "COALESCE(c.withheld_until, s.deadline)"),
    )
}

/// Reads the rows of a query for locks. One unreadable row must not hide the others.
pub(super) fn locks(rows: &[Row]) -> Vec<LockInfo> {
    let mut locks: Vec<LockInfo> = Vec::new();
    for row in rows {
        if add(&mut locks, row).is_none() {
            let name = column::<Vec<u8>>(row, 0).unwrap_or_default().escape_ascii().to_string();
            tracing::warn!(name, "MySQL describes a lock in a way that this build cannot read");
        }
    }
    for lock in &mut locks {
        lock.holders.sort_by_key(|holder| holder.token);
    }
    locks
}

fn add(locks: &mut Vec<LockInfo>, row: &Row) -> Option<()> {
    let name = LockName::new(&text(row, 0)?).ok()?;
    if locks.last().is_none_or(|last| last.name != name) {
        let limit = number(row, 1).map(u32::try_from).transpose().ok()?;
        let history = text(row, 2).unwrap_or_default().lines().filter_map(ended_info).collect();
        locks.push(LockInfo { name, limit, holders: Vec::new(), waiters: Vec::new(), value: None, history });
    }
    let lock = locks.last_mut()?;
    let (state, label) = (text(row, 3)?, text(row, 7));
    if state == "held"
        && let Some(value) = column::<Vec<u8>>(row, 10)
    {
        lock.value = Some(Value::new(&value));
    }
    let claim = Claim {
        state: &state,
        need: number(row, 4)?,
        token: id(row, 5),
        session: id(row, 6)?,
        label: label.as_deref(),
        held_for_ms: number(row, 8),
        time_left_ms: number(row, 9),
    };
    claim.add_to(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_text_is_read() {
        let session = SessionId::new(7).unwrap();
        let (number, token) = (RequestNo::new(3).unwrap(), Token::new(9).unwrap());
        assert_eq!(granted("granted 61 7 9 3 1"), Some((session, number, token)));
        let refused = Words("resized 612062 2".split(' ')).resized();
        assert!(matches!(refused, Some(Refusal::ResizedBelow { limit: 2, .. })));
        assert_eq!(Words("new 61 2".split(' ')).resized(), None);
        let event = event("granted 61,62 7 9 3 0");
        assert!(matches!(event, Some(Event::Granted { ticket: None, locks, .. }) if locks.len() == 2));
    }

    #[test]
    fn an_unknown_text_is_ignored() {
        for line in ["", "granted", "granted 61", "new 61 7", "ended zz 7 9 released", "left 61 7 3 new"] {
            assert_eq!(event(line), None, "{line}");
        }
        // The last one is a grant of an acquire without a number, which does not wait.
        for line in
            ["", "granted", "granted 61", "granted 61 1 2", "x", "ended 61 7 8 released", "granted 61 7 9 -4 1"]
        {
            assert_eq!(granted(line), None, "{line}");
        }
    }
}
