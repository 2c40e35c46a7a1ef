//! A lock as the rules show it.

use palisade_core::{Mode, Value as Published};
use redis::Value;

use super::answer::ALL;
use super::reply::{Unexpected, bytes, items, name, number, optional, session, small, text, token};
use crate::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};

pub(super) fn lock(value: &Value) -> Result<LockInfo, Unexpected> {
    let [called, limit, holders, waiters, published, history] = items(value)? else {
        return Err(Unexpected::instead_of("a lock", value));
    };
    let limit = small(limit)?;
    Ok(LockInfo {
        name: name(called)?,
        limit: (limit != ALL).then_some(limit),
        holders: items(holders)?.iter().map(|value| holder(value, limit)).collect::<Result<_, _>>()?,
        waiters: items(waiters)?.iter().map(|value| waiter(value, limit)).collect::<Result<_, _>>()?,
        value: optional(published, |value| bytes(value).map(Published::new))?,
        history: items(history)?.iter().map(ended).collect::<Result<_, _>>()?,
    })
}

fn mode(need: u32, limit: u32) -> Mode {
    match (need, limit) {
        (ALL, ALL) => Mode::Exclusive,
        (_, ALL) => Mode::Shared,
        (count, of) => Mode::Permits { count, of },
    }
}

fn holder(value: &Value, limit: u32) -> Result<HolderInfo, Unexpected> {
    let [granted, need, owner, label, held, left] = items(value)? else {
        return Err(Unexpected::instead_of("a holder", value));
    };
    Ok(HolderInfo {
        token: token(granted)?,
        mode: mode(small(need)?, limit),
        session: optional(owner, session)?,
        label: optional(label, text)?,
        // A clock that was set back may make it negative.
        held_for_ms: number(held).ok(),
        time_left_ms: number(left).ok(),
    })
}

fn waiter(value: &Value, limit: u32) -> Result<WaiterInfo, Unexpected> {
    let [owner, label, need] = items(value)? else { return Err(Unexpected::instead_of("a waiter", value)) };
    Ok(WaiterInfo { session: session(owner)?, label: text(label)?, mode: mode(small(need)?, limit) })
}

fn ended(value: &Value) -> Result<EndedInfo, Unexpected> {
    let [granted, owner, label, how] = items(value)? else {
        return Err(Unexpected::instead_of("a grant that ended", value));
    };
    let how = match how {
        Value::Array(force) => match &force[..] {
            [by, reason, ..] => format!("forced by {}: {}", text(by)?, text(reason)?),
            _ => return Err(Unexpected::instead_of("who took it away", value)),
        },
        word => text(word)?,
    };
    Ok(EndedInfo { token: token(granted)?, session: session(owner)?, label: text(label)?, how })
}
