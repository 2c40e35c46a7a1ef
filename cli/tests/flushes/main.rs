//! The order of system calls: nothing is acknowledged before the flush of its data has returned.
//!
//! The real binary runs under `strace`. Killing a process would not show a missing flush, because the page cache survives.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../serve/client.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod client;
mod embedded;
mod fence_http;
mod files;
#[path = "../fence_http/proxy.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod proxy;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod serve;
#[path = "../serve/service.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod service;
mod syscalls;
mod trace;
#[path = "../fence_http/upstream.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod upstream;
#[path = "../serve/web.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod web;
