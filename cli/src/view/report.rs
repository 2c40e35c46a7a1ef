//! Locks as JSON. Labels and reasons are not escaped for a terminal here.

use std::fmt;

use palisade::Mode;
use palisade::engine::{EndedInfo, HolderInfo, LockInfo, Value, WaiterInfo};
use serde::Serialize;

use super::format;
use crate::text;

/// The version of all reports of this folder, for programs: increased when a field changes its name, place or meaning.
pub(super) const SCHEMA: u32 = 1;

#[derive(Default, Serialize)]
pub(super) struct Lock<'a> {
    name: &'a str,
    permits: Option<Permits>,
    holders: Vec<Holder<'a>>,
    waiters: Vec<Waiter<'a>>,
    value: Option<Published<'a>>,
    history: &'a [EndedInfo],
}

#[derive(Serialize)]
struct Permits {
    taken: u64,
    of: u32,
}

#[derive(Serialize)]
struct Holder<'a> {
    label: Option<&'a str>,
    session: Option<u64>,
    /// Null if the engine has no tokens.
    token: Option<u64>,
    #[serde(flatten)]
    mode: ModeFields,
    withheld: bool,
    held_for_ms: Option<u64>,
    time_left_ms: Option<u64>,
}

#[derive(Serialize)]
struct Waiter<'a> {
    label: &'a str,
    session: u64,
    #[serde(flatten)]
    mode: ModeFields,
}

#[derive(Serialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
enum ModeFields {
    Exclusive,
    Shared,
    Permits { permits: u32 },
}

/// The value that a holder publishes: as text if it is UTF-8, else as hexadecimal bytes. `Display` escapes it for a terminal.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Published<'a> {
    Text(&'a str),
    Hex(String),
}

impl Lock<'_> {
    /// Returns a lock without holders and waiters.
    pub(super) fn unused(name: &str) -> Lock<'_> {
        Lock { name, ..Lock::default() }
    }
}

impl<'a> Lock<'a> {
    /// Converts a lock. `has_tokens`: whether the engine has tokens.
    pub(super) fn of(lock: &'a LockInfo, has_tokens: bool) -> Lock<'a> {
        Lock {
            name: lock.name.as_str(),
            permits: lock.limit.map(|of| Permits { taken: format::permits_taken(lock), of }),
            holders: lock.holders.iter().map(|holder| Holder::of(holder, has_tokens)).collect(),
            waiters: lock.waiters.iter().map(Waiter::from).collect(),
            value: lock.value.as_ref().map(Published::from),
            history: &lock.history,
        }
    }
}

impl<'a> Holder<'a> {
    fn of(holder: &'a HolderInfo, has_tokens: bool) -> Holder<'a> {
        Holder {
            label: holder.label.as_deref(),
            session: holder.session.map(u64::from),
            token: has_tokens.then(|| holder.token.get()),
            mode: holder.mode.into(),
            withheld: holder.session.is_none(),
            held_for_ms: holder.held_for_ms,
            time_left_ms: holder.time_left_ms,
        }
    }
}

impl<'a> From<&'a WaiterInfo> for Waiter<'a> {
    fn from(waiter: &'a WaiterInfo) -> Waiter<'a> {
        Waiter { label: &waiter.label, session: waiter.session.get(), mode: waiter.mode.into() }
    }
}

impl From<Mode> for ModeFields {
    fn from(mode: Mode) -> ModeFields {
        match mode {
            Mode::Exclusive => ModeFields::Exclusive,
            Mode::Shared => ModeFields::Shared,
            Mode::Permits { count, .. } => ModeFields::Permits { permits: count },
        }
    }
}

impl<'a> From<&'a Value> for Published<'a> {
    fn from(value: &'a Value) -> Published<'a> {
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => Published::Text(text),
            Err(_) => Published::Hex(value.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }
}

impl fmt::Display for Published<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Published::Text(value) => f.write_str(&text::plain(value)),
            Published::Hex(digits) => write!(f, "0x{digits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_as_text_if_it_is_utf8() {
        let shown = |bytes: &[u8]| Published::from(&Value::new(bytes)).to_string();
        assert_eq!(shown(b"10.0.0.7\x1b[2J"), "10.0.0.7\\u{1b}[2J");
        assert_eq!(shown(&[0xff, 0x00]), "0xff00");
    }
}
