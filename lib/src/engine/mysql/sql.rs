//! How questions are written, and what is read of their answers.

use std::hash::{BuildHasher, RandomState};

use mysql_async::Row;
use palisade_core::{Acquire, LockName, Mode, Patience, Reentry};

/// What an exclusive holder takes.
pub(super) const ALL: u64 = u32::MAX as u64;

/// The call that asks for locks.
pub(super) fn request(ask: &Acquire, epoch: i32) -> String {
    let session = ask.caller.session.get();
    // What has no number needs one that nobody else has; below 0 it is never taken for a repeat.
    let number = ask.caller.number.map_or_else(|| -(chance() as i64 >> 1).abs().max(1), |number| number.get() as i64);
    let (waits, may_queue) = (u8::from(ask.patience == Patience::Wait), u8::from(ask.reentry == Reentry::Queue));
    let wants = ask.wants.iter().map(|want| {
        let name = hex(want.lock.as_str().as_bytes());
        match want.mode {
            Mode::Exclusive => format!("{name}:{ALL}:"),
            Mode::Shared => format!("{name}:1:"),
            Mode::Permits { count, of } => format!("{name}:{count}:{of}"),
        }
    });
    let mut order: Vec<_> = (0..ask.wants.len()).collect();
    order.sort_by_key(|part| &ask.wants[*part].lock);
    let order: Vec<_> = order.into_iter().map(|part| (part + 1).to_string()).collect();
    let delay = ask.delay.map_or("NULL".to_owned(), |delay| delay.as_ms().to_string());
    let value = ask.value.as_ref().map_or("NULL".to_owned(), |value| bytes(value.as_bytes()));
    format!(
        "CALL palisade_request({session}, {epoch}, {number}, '{}', '{}', {waits}, {may_queue}, {delay}, {value})",
        wants.collect::<Vec<_>>().join(","),
        order.join(","),
    )
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02X}");
        text
    })
}

/// Bytes, as SQL takes them whatever they are.
pub(super) fn bytes(bytes: &[u8]) -> String {
    format!("x'{}'", hex(bytes))
}

pub(super) fn name(lock: &LockName) -> String {
    bytes(lock.as_str().as_bytes())
}

/// A column as text; `None` for NULL, and for what is no text.
pub(super) fn text(row: &Row, column: usize) -> Option<String> {
    row.get_opt::<Option<String>, _>(column)?.ok()?
}

pub(super) fn number(row: &Row, column: usize) -> Option<u64> {
    row.get_opt::<Option<u64>, _>(column)?.ok()?
}

pub(super) fn blob(row: &Row, column: usize) -> Option<Vec<u8>> {
    row.get_opt::<Option<Vec<u8>>, _>(column)?.ok()?
}

fn chance() -> u64 {
    RandomState::new().hash_one(())
}
