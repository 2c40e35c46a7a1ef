//! HTTP services: a layer that fences one, a client for it, and what a reverse proxy needs.
//!
//! A request carries the token in the header [`Fencing-Token`](FencingToken). The layer keeps a mark per resource
//! ([`Scope`] defines the resources) and answers stale requests itself, so that they never reach the service:
//!
//! | | status |
//! |---|---|
//! | no token | 428 |
//! | a newer token has sealed it | 412, with that token |
//! | not sealed with this token; not the next number | 409 |
//! | a repeat of the last write | what was answered the first time |
//! | it is unknown whether the last write was carried out | 500 |
//! | the service cannot be reached; nothing was sent to it | 502 |
//! | a path that could be read as another one | 400 |
//!
//! Each answer has the fence's verdict in the header [`Fencing-Verdict`](FencingVerdict). Refusals are problems (RFC
//! 9457) with a remedy.
//!
//! # What it cannot know
//!
//! The service's data and the marks are in two places. So the layer stores that a write was begun, passes it to the
//! service, and stores the answer. If the process dies in between, or the service fails without an answer, it is
//! unknown whether the write was carried out. It is never carried out again: from then on everything under that token
//! but reads is refused as unknown, until a newer token seals the resource. Behind a proxy the service might still be
//! working: during [`Limits::quarantine`] the resource refuses every seal, until the service cannot be working any
//! more. A service whose data are in a database should be fenced there: one transaction has no such gap.
//!
//! What a service does after it has answered, or while it streams a long answer, is not covered. `OPTIONS` is passed on
//! unfenced, and nothing is upgraded (no WebSockets).

mod answer;
mod client;
mod forward;
mod header;
mod layer;
mod marks;
mod pass;
mod path;
mod scope;
#[cfg(feature = "signed")]
mod signatures;
mod verdict;

pub use answer::{Answer, Body, BoxError};
pub use client::{Api, Call, Reply};
pub use forward::{Forward, NotSent};
pub use header::{BadHeader, FENCING_TOKEN, FencingToken, Step, mark_header};
pub use layer::{FenceLayer, Fenced, Limits};
#[cfg(feature = "postgres")]
pub use marks::PostgresMarks;
#[cfg(feature = "sqlite")]
pub use marks::SqliteMarks;
pub use marks::{MarkLock, MarkRecord, Marks, MarksError, MarksFuture, MemoryMarks, WriteState};
pub use scope::Scope;
#[cfg(feature = "signed")]
pub use signatures::{FENCING_SIGNATURE, Signatures};
pub use verdict::{FENCING_VERDICT, FencingVerdict};

/// The examples of its page are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing/http.md")]
struct Page;
