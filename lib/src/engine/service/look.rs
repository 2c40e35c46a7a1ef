//! A lock as the service shows it.

use palisade_core::{LockName, Mode, Value};
use redis_protocol::resp3::types::BytesFrame;

use super::reply::{Unexpected, bytes, field, items, number, optional, session, small, text, token};
use crate::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};

/// A page of a lock, and where the next one begins; 0 after the last.
pub(super) fn lock(frame: &BytesFrame) -> Result<(LockInfo, u64), Unexpected> {
    let name = text(field(frame, "name")?)?;
    let name = LockName::new(name).map_err(|bad| Unexpected(bad.to_string()))?;
    let limit = optional(field(frame, "limit")?, small)?;
    let holder = |frame| holder(frame, limit);
    let waiter = |frame| waiter(frame, limit);
    let info = LockInfo {
        name,
        limit,
        holders: items(field(frame, "holders")?)?.iter().map(holder).collect::<Result<_, _>>()?,
        waiters: items(field(frame, "waiters")?)?.iter().map(waiter).collect::<Result<_, _>>()?,
        value: optional(field(frame, "value")?, bytes)?.map(Value::new),
        history: items(field(frame, "history")?)?.iter().map(ended).collect::<Result<_, _>>()?,
    };
    Ok((info, number(field(frame, "cursor")?)?))
}

fn holder(frame: &BytesFrame, limit: Option<u32>) -> Result<HolderInfo, Unexpected> {
    Ok(HolderInfo {
        token: token(field(frame, "token")?)?,
        mode: mode(frame, limit)?,
        session: optional(field(frame, "session")?, session)?,
        label: optional(field(frame, "label")?, text)?.map(str::to_owned),
        held_for_ms: optional(field(frame, "held_for_ms")?, number)?,
        time_left_ms: optional(field(frame, "time_left_ms")?, number)?,
    })
}

fn waiter(frame: &BytesFrame, limit: Option<u32>) -> Result<WaiterInfo, Unexpected> {
    Ok(WaiterInfo {
        session: session(field(frame, "session")?)?,
        label: text(field(frame, "label")?)?.to_owned(),
        mode: mode(frame, limit)?,
    })
}

fn ended(frame: &BytesFrame) -> Result<EndedInfo, Unexpected> {
    Ok(EndedInfo {
        token: token(field(frame, "token")?)?,
        session: session(field(frame, "session")?)?,
        label: text(field(frame, "label")?)?.to_owned(),
        how: text(field(frame, "how")?)?.to_owned(),
    })
}

fn mode(frame: &BytesFrame, limit: Option<u32>) -> Result<Mode, Unexpected> {
    let mode = field(frame, "mode")?;
    match text(mode)? {
        "exclusive" => Ok(Mode::Exclusive),
        "shared" => Ok(Mode::Shared),
        "permits" => {
            let count = small(field(frame, "permits")?)?;
            Ok(Mode::Permits { count, of: limit.unwrap_or(count) })
        }
        _ => Err(Unexpected::instead_of("a mode", mode)),
    }
}
