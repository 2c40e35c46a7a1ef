//! Locks as text, for people.

use palisade::engine::{EndedInfo, HolderInfo, Level, LockInfo};
use palisade::{Mode, Palisade, Token};

use crate::text;

/// Shown for an unknown time, or a missing token.
const NOTHING: &str = "-";

/// Returns the holder's label.
pub(crate) fn holder(holder: &HolderInfo) -> String {
    match &holder.label {
        Some(label) => text::plain(label),
        None => "withheld after an expiry".to_owned(),
    }
}

/// Returns a token as text, if the engine has tokens. Other engines number their grants, and such a number must not look
/// like a token.
pub(crate) fn token(token: Token, has_tokens: bool) -> String {
    if has_tokens { token.to_string() } else { NOTHING.to_owned() }
}

/// Whether the engine has tokens.
pub(crate) fn has_tokens(palisade: &Palisade) -> bool {
    palisade.guarantees().level > Level::Advisory
}

/// Describes the mode of a holder or a waiter.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits { count: 1, .. } => "1 permit".to_owned(),
        Mode::Permits { count, .. } => format!("{count} permits"),
    }
}

/// Describes the holders of a lock in one cell: their count and the oldest one. The count comes first, because cells are
/// cut off.
pub(crate) fn holders(lock: &LockInfo) -> String {
    let Some(oldest) = lock.holders.first() else { return "none".to_owned() };
    let held = match (lock.limit, oldest.mode) {
        (Some(limit), _) => format!("{}/{limit} permits", permits_taken(lock)),
        (None, Mode::Shared) => "shared".to_owned(),
        (None, _) => return holder(oldest),
    };
    match lock.holders.len() {
        1 => format!("{held}: {}", holder(oldest)),
        several => format!("{held} by {several}: {}", holder(oldest)),
    }
}

/// Returns how many permits of a semaphore are taken.
pub(super) fn permits_taken(lock: &LockInfo) -> u64 {
    let taken = lock.holders.iter().map(|holder| match holder.mode {
        Mode::Permits { count, .. } => u64::from(count),
        Mode::Exclusive | Mode::Shared => 0,
    });
    taken.sum()
}

/// Describes a lock without holders and waiters.
pub(super) fn not_in_use(name: &str) -> String {
    format!("{name} is not in use: no holder, no waiters")
}

/// Describes the lock's state in one sentence.
pub(super) fn state_of(lock: &LockInfo) -> String {
    if !lock.is_in_use() {
        return not_in_use(lock.name.as_str());
    }
    let held = match (lock.limit, lock.holders.as_slice()) {
        (Some(limit), _) => format!("has {} of {limit} permits taken", permits_taken(lock)),
        (None, []) => "is not held".to_owned(),
        (None, [HolderInfo { label: None, .. }]) => "is withheld after an expiry".to_owned(),
        (None, [HolderInfo { mode: Mode::Shared, .. }, ..]) => format!("is shared by {}", lock.holders.len()),
        (None, _) => "is held".to_owned(),
    };
    match lock.waiters.len() {
        0 => format!("{} {held}, no waiters", lock.name),
        1 => format!("{} {held}, 1 waits", lock.name),
        waiting => format!("{} {held}, {waiting} wait", lock.name),
    }
}

/// Describes how a grant ended.
pub(super) fn ending(ended: &EndedInfo) -> String {
    text::plain(&ended.how)
}

/// Formats a time that the engine may not know.
pub(crate) fn time(ms: Option<u64>) -> String {
    ms.map_or_else(|| NOTHING.to_owned(), text::time_ms)
}

#[cfg(test)]
mod tests {
    use palisade::LockName;

    use super::*;

    fn lock(limit: Option<u32>, modes: &[Mode]) -> LockInfo {
        let holder = |(number, mode): (u64, &Mode)| HolderInfo {
            token: Token::new(number).unwrap(),
            mode: *mode,
            session: None,
            label: Some(format!("holder {number}")),
            held_for_ms: None,
            time_left_ms: None,
        };
        LockInfo {
            name: LockName::new("x").unwrap(),
            limit,
            holders: (1..).zip(modes).map(holder).collect(),
            waiters: Vec::new(),
            value: None,
            history: Vec::new(),
        }
    }

    #[test]
    fn holders_are_described_in_a_cell_and_in_a_sentence() {
        let permits = |count| Mode::Permits { count, of: 4 };
        let mut withheld = lock(None, &[Mode::Exclusive]);
        withheld.holders[0].label = None;
        for (lock, cell, sentence) in [
            (lock(None, &[]), "none", "x is not in use: no holder, no waiters"),
            (lock(None, &[Mode::Shared]), "shared: holder 1", "x is shared by 1, no waiters"),
            (lock(None, &[Mode::Shared; 3]), "shared by 3: holder 1", "x is shared by 3, no waiters"),
            (
                lock(Some(4), &[permits(1), permits(2)]),
                "3/4 permits by 2: holder 1",
                "x has 3 of 4 permits taken, no waiters",
            ),
            (withheld, "withheld after an expiry", "x is withheld after an expiry, no waiters"),
        ] {
            assert_eq!((holders(&lock).as_str(), state_of(&lock).as_str()), (cell, sentence));
        }
    }
}
