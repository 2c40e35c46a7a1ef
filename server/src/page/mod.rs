//! The live page: a copy of all locks that follows the engine, and what browsers get of it.
//!
//! A [`Board`] has the copy, one for all pages. It takes everything from a [`Source`]: the node of a service, or a client of any
//! engine. An event only says which lock has changed; the board then reads that lock, so that it never shows a guess. A sweep of
//! the whole list finds what no event reports, such as keep-alives.

mod board;
mod feed;
pub(crate) mod lock;
mod moments;
mod numbers;
mod source;

pub use crate::net::page::{Standalone, serve_page};
pub use board::Board;
pub(crate) use feed::{Details, Reader, details, stream};
pub use lock::{Ended, Holder, Lock, Waiter, text};
pub use numbers::Counters;
pub use source::{Broken, Changes, Member, Source, WatchedItem};
