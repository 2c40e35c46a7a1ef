//! The fences, without a store.

#[cfg(all(feature = "http", feature = "signed", feature = "sqlite"))]
mod http;
mod messages;
mod schedules;
#[cfg(feature = "signed")]
mod signed;
