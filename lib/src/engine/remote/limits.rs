//! Limits of the rules that are checked before a request is sent.

use palisade_core::{Limit, Limits, Refusal};

pub(crate) fn check_most(limit: Limit, value: u64) -> Result<(), Refusal> {
    let max = Limits::default().of(limit);
    if value > max { Err(Refusal::OverLimit { limit, max, value }) } else { Ok(()) }
}

pub(crate) fn check_least(limit: Limit, value: u64) -> Result<(), Refusal> {
    let min = Limits::default().of(limit);
    if value < min { Err(Refusal::UnderLimit { limit, min, value }) } else { Ok(()) }
}
