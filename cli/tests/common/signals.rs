//! Signals that are ignored where the tests run: SIGINT in a background job of a script, SIGHUP under `nohup`.
//!
//! Children inherit ignored signals, and `palisade` keeps ignoring them. Children do not inherit handlers.

use std::fs;
use std::sync::Once;

use tokio::signal::unix::{SignalKind, signal};

/// Installs handlers for ignored signals, so that commands started by tests begin with default signals.
pub(crate) fn handle_ignored_signals() {
    static ONCE: Once = Once::new();
    // On a separate thread: the caller may be a task of a runtime, where another runtime cannot be dropped.
    ONCE.call_once(|| std::thread::spawn(handle_ignored_on_this_thread).join().expect("the signals are handled"));
}

fn handle_ignored_on_this_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _within = runtime.enter();
    let kinds = [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ];
    let ignored = ignored();
    // A handler stays for as long as the process lives.
    for kind in kinds.into_iter().filter(|kind| ignored & (1 << (kind.as_raw_value() - 1)) != 0) {
        drop(signal(kind).expect("it can be handled"));
    }
}

/// Returns the signals that this process ignores, one bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
}
