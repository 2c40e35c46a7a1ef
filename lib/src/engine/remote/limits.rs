//! Limits of the rules that are checked before a request is sent.

use palisade_core::{Acquire, Label, Limit, Limits, Mode, Refusal, Value};

pub(crate) fn check_most(limit: Limit, value: u64) -> Result<(), Refusal> {
    let max = Limits::default().of(limit);
    if value > max { Err(Refusal::OverLimit { limit, max, value }) } else { Ok(()) }
}

pub(crate) fn check_least(limit: Limit, value: u64) -> Result<(), Refusal> {
    let min = Limits::default().of(limit);
    if value < min { Err(Refusal::UnderLimit { limit, min, value }) } else { Ok(()) }
}

pub(crate) fn check_label(label: &Label) -> Result<(), Refusal> {
    check_most(Limit::LabelBytes, label.as_str().len() as u64)
}

pub(crate) fn check_value(value: &Value) -> Result<(), Refusal> {
    check_most(Limit::ValueBytes, value.as_bytes().len() as u64)
}

/// Refuses an acquire that is invalid whatever the state of the locks.
pub(crate) fn check_acquire(acquire: &Acquire) -> Result<(), Refusal> {
    if acquire.wants.is_empty() {
        return Err(Refusal::NoLocks);
    }
    check_most(Limit::LocksPerRequest, acquire.wants.len() as u64)?;
    for (position, want) in acquire.wants.iter().enumerate() {
        check_most(Limit::NameBytes, want.lock.as_str().len() as u64)?;
        if let Mode::Permits { count, of } = want.mode {
            if of == 0 || of == u32::MAX {
                return Err(Refusal::BadLimit { limit: of });
            }
            if count == 0 || count > of {
                return Err(Refusal::BadPermits { count, of });
            }
        }
        if acquire.wants[..position].iter().any(|other| other.lock == want.lock) {
            return Err(Refusal::NamedTwice { lock: want.lock.clone() });
        }
    }
    if let Some(value) = &acquire.value {
        check_value(value)?;
        if acquire.wants.len() != 1 || acquire.wants[0].mode != Mode::Exclusive {
            return Err(Refusal::ValueNotPossible);
        }
    }
    Ok(())
}
