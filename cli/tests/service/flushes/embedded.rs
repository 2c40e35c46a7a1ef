//! `embedded:` through `palisade acquire`.

use std::path::Path;

use super::trace::{Flushes, Trace, Tracing};
use crate::common::process::Process;
use crate::sandbox::Sandbox;

/// Runs `palisade acquire`, and returns its trace.
fn acquire(sandbox: &Sandbox, lock: &str) -> Option<Trace> {
    let command = sandbox.command(&["acquire", lock, "--ttl", "60s"]);
    let output = sandbox.path().join(format!("trace-{lock}"));
    let (mut command, tracing) = Tracing::of(&command, output, 5000, Flushes::Quick)?;
    // It writes its few lines into a pipe.
    let (mut process, _stdout) = Process::start_reading(&mut command);
    assert!(process.wait().success());
    Some(tracing.end(process.pid()))
}

/// Whether this file must survive a power cut: the database, its log, and the files of sessions without a process.
fn must_survive(sandbox: &Sandbox, path: &Path) -> bool {
    let Ok(path) = path.strip_prefix(sandbox.path()) else { return false };
    let is_session = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    match path.to_string_lossy().split('/').collect::<Vec<_>>()[..] {
        ["locks.db" | "locks.db-wal" | "locks.db-sessions"] => true,
        ["locks.db-sessions", name] => is_session(name),
        _ => false,
    }
}

#[test]
fn no_token_is_printed_before_its_commit_is_flushed() {
    let sandbox = Sandbox::new();
    // The first command makes the files, the second one finds them.
    for lock in ["first-lock", "second-lock"] {
        let Some(trace) = acquire(&sandbox, lock) else { return };
        let printed = trace.first("the token is printed", |call| call.is_write() && call.has("PALISADE_TOKEN="));
        trace.assert_durable_at(printed, lock, |path| must_survive(&sandbox, path));
        let is_session_flush = |call: &super::syscalls::Call| {
            call.is_flush() && call.target.as_ref().is_some_and(|target| target.contains("/locks.db-sessions/"))
        };
        let flushed = trace.first("the session's file is flushed", is_session_flush);
        assert!(flushed.entry < printed.entry, "the session's file is flushed before its token is printed");
    }
}
