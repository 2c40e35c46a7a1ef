//! Locks as people see them.

use mysql_async::Row;
use palisade_core::{LockName, Mode, SessionId, Token, Value};

use super::said;
use super::sql::{ALL, blob, bytes, number, text};
use crate::engine::info::in_words;
use crate::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};

/// The question for one lock.
pub(super) fn one(lock: &LockName) -> String {
    question(&format!("l.name = {}", bytes(lock.as_str().as_bytes())))
}

/// The question for all locks whose names begin so.
pub(super) fn all(prefix: &str) -> String {
    let first = bytes(prefix.as_bytes());
    question(&format!("l.name >= {first} AND LEFT(l.name, {}) = {first}", prefix.len()))
}

/// A row for each holder and each waiter, sorted by lock.
fn question(which: &str) -> String {
    let lives = "s.ended IS NULL AND s.deadline > UTC_TIMESTAMP(6)";
    let ms = |from: &str, to: &str| format!("TIMESTAMPDIFF(MICROSECOND, {from}, {to}) DIV 1000");
    let now = "UTC_TIMESTAMP(6)";
    format!(
        "SELECT l.name AS name, l.permits, l.history, IF(l.withheld_until IS NULL, 'held', 'withheld') AS state, {ALL}, \
         l.token AS token, l.session, HEX(s.label), {held}, {left}, l.value, 0 AS arrival \
         FROM palisade_lock l LEFT JOIN palisade_session s ON s.id = l.session WHERE {which} AND l.session IS NOT NULL \
         AND (l.withheld_until > {now} OR (l.withheld_until IS NULL AND {lives})) \
         UNION ALL SELECT l.name, l.permits, l.history, IF(c.waits, 'waiting', IF(c.withheld_until IS NULL, 'held', \
         'withheld')), c.need, c.token, c.session, HEX(s.label), {c_held}, {c_left}, c.value, c.arrival \
         FROM palisade_lock l JOIN palisade_claim c ON c.name = l.name LEFT JOIN palisade_session s ON s.id = c.session \
         WHERE {which} AND (c.withheld_until > {now} OR (c.withheld_until IS NULL AND {lives})) \
         ORDER BY name, state = 'waiting', arrival, token",
        held = ms("l.since", now),
        left = ms(now, "COALESCE(l.withheld_until, s.deadline)"),
        c_held = ms("c.since", now),
        c_left = ms(now, "COALESCE(c.withheld_until, s.deadline)"),
    )
}

/// The locks of these rows. A row that cannot be read, written by hand or by a newer version, does not hide the others.
pub(super) fn locks(rows: &[Row]) -> Vec<LockInfo> {
    let mut locks: Vec<LockInfo> = Vec::new();
    for row in rows {
        if add(&mut locks, row).is_none() {
            let name = blob(row, 0).unwrap_or_default().escape_ascii().to_string();
            tracing::warn!(name, "a row of a lock in MySQL cannot be read, and is left out");
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
        let limit = match number(row, 1) {
            Some(permits) => Some(u32::try_from(permits).ok()?),
            None => None,
        };
        let history = text(row, 2).unwrap_or_default().lines().filter_map(ended).collect();
        locks.push(LockInfo { name, limit, holders: Vec::new(), waiters: Vec::new(), value: None, history });
    }
    place(locks.last_mut()?, row)
}

fn place(lock: &mut LockInfo, row: &Row) -> Option<()> {
    let (state, mode) = (text(row, 3)?, mode(lock.limit, number(row, 4)?)?);
    let session = SessionId::new(number(row, 6)?).ok()?;
    let label = text(row, 7).as_deref().and_then(said::label).map(|label| label.as_str().to_owned());
    if state == "waiting" {
        lock.waiters.push(WaiterInfo { session, label: label.unwrap_or_default(), mode });
        return Some(());
    }
    let is_held = state == "held";
    if is_held && let Some(value) = blob(row, 10) {
        lock.value = Some(Value::new(&value));
    }
    lock.holders.push(HolderInfo {
        token: Token::new(number(row, 5)?).ok()?,
        mode,
        session: is_held.then_some(session),
        label: label.filter(|_| is_held),
        held_for_ms: number(row, 8),
        time_left_ms: number(row, 9),
    });
    Some(())
}

fn mode(permits: Option<u32>, need: u64) -> Option<Mode> {
    Some(match permits {
        None if need == ALL => Mode::Exclusive,
        None => Mode::Shared,
        Some(of) => Mode::Permits { count: u32::try_from(need).ok()?, of },
    })
}

/// `TOKEN,SESSION,NEED,LABEL,HOW`.
fn ended(text: &str) -> Option<EndedInfo> {
    let mut words = text.splitn(5, ',');
    let token = Token::new(words.next()?.parse().ok()?).ok()?;
    let session = SessionId::new(words.next()?.parse().ok()?).ok()?;
    words.next()?;
    let label = said::label(words.next()?)?.as_str().to_owned();
    Some(EndedInfo { token, session, label, how: in_words(&said::ending(&mut words.next()?.split(' '))?) })
}
