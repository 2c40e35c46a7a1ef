//! The service: a replicated log around the rules of `core`, its storage, its protocols. Imports `core` alone.
#![forbid(unsafe_code)]

pub mod replica;
pub mod storage;
