//! `palisade fence http`, as a separate process in front of a real service.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crashes;
mod encrypted;
mod limits;
mod passing;
pub(crate) mod proxy;
mod refused;
mod signed;
pub(crate) mod upstream;
