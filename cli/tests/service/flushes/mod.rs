//! The order of system calls: nothing is acknowledged before the flush of its data has returned.
//!
//! The real binary runs under `strace`. Killing a process would not show a missing flush, because the page cache survives.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod embedded;
mod fence_http;
mod files;
mod serve;
mod syscalls;
mod trace;
