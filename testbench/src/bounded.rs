//! Bounds for everything that a test waits for. When a bound passes, the test fails and says what it waited for.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout_at};

/// The bound of a check, and of a wait outside of a check. Nothing that works takes this long, even on a machine with a load
/// of 60 and a disk that flushes ten times a second.
pub const BOUND: Duration = Duration::from_secs(300);

/// Between two tests of a condition.
const POLL: Duration = Duration::from_millis(5);

/// How much later than a named wait the whole check fails, so that the message with the name comes first.
const GRACE: Duration = Duration::from_secs(1);

thread_local! {
    /// The deadline of the check that runs on this thread.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Checks a promise on a runtime with one thread.
///
/// # Panics
///
/// The promise is broken, or the bound has passed.
pub fn check<T>(bound: Duration, promise: impl Future<Output = T>) -> T {
    run(Builder::new_current_thread().enable_all().build(), bound, promise)
}

/// Checks a promise whose tasks run on two other threads.
///
/// # Panics
///
/// The promise is broken, or the bound has passed.
pub fn check_on_threads<T>(bound: Duration, promise: impl Future<Output = T>) -> T {
    run(Builder::new_multi_thread().worker_threads(2).enable_all().build(), bound, promise)
}

/// Checks a promise whose work grows with a number that the environment can raise, such as `PROPTEST_CASES`.
///
/// # Panics
///
/// The promise is broken, or has taken longer than this time for each one, and ten minutes.
pub fn check_many(count: u32, each: Duration, promise: impl Future<Output = ()>) {
    check_on_threads(bound_for(count, each), promise);
}

/// Returns the bound of work that takes this time for each of `count`, and ten minutes more.
pub fn bound_for(count: u32, each: Duration) -> Duration {
    BOUND * 2 + each * count
}

/// Returns the number that an environment variable sets, or a default that is small enough for CI.
pub fn number_from_env(variable: &str, default: u32) -> u32 {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

fn run<T>(runtime: io::Result<Runtime>, bound: Duration, promise: impl Future<Output = T>) -> T {
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }

    let runtime = runtime.expect("a runtime");
    let deadline = Instant::now() + bound;
    let _restore = Restore(DEADLINE.replace(Some(deadline)));
    let checked = runtime.block_on(async { timeout_at((deadline + GRACE).into(), promise).await });
    checked.unwrap_or_else(|_| {
        // A task that blocks its thread would block the runtime's end too.
        runtime.shutdown_background();
        panic!("the test has not ended within {bound:?}: something that should happen does not");
    })
}

/// Waits for a future, at most until the check's deadline.
///
/// # Panics
///
/// The deadline has passed. The message names `what`.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = timeout_at(deadline().into(), future).await;
    waited.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// Waits until a condition is true, at most until the check's deadline.
///
/// # Panics
///
/// The deadline has passed. The message names `what`.
pub async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    until_some(what, async || is_true().await.then_some(())).await;
}

/// Waits until there is a value, at most until the check's deadline. Sleeps between two attempts, so that attempts which
/// fail at once cannot keep the deadline from being noticed.
///
/// # Panics
///
/// The deadline has passed. The message names `what`.
pub async fn until_some<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            match attempt().await {
                Some(value) => return value,
                None => sleep(POLL).await,
            }
        }
    };
    within(what, polling).await
}

/// Does the same on a thread that may block.
///
/// # Panics
///
/// The deadline has passed. The message names `what`.
pub fn block_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = deadline();
    while !is_true() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(POLL);
    }
}

fn deadline() -> Instant {
    DEADLINE.get().unwrap_or_else(|| Instant::now() + BOUND)
}

/// Runs a command without input and returns its output. Kills its process group when [`BOUND`] passes.
///
/// # Errors
///
/// It cannot be run, or the bound has passed.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()?;
    let group = Pid::from_child(&child);
    let (ended, end) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let is_late = end.recv_timeout(BOUND) == Err(RecvTimeoutError::Timeout);
        if is_late {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
        is_late
    });
    let output = child.wait_with_output();
    drop(ended);
    match watchdog.join() {
        Ok(false) => output,
        _ => Err(io::Error::new(io::ErrorKind::TimedOut, format!("not ended within {BOUND:?}: {command:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(test: impl FnOnce() + Send + 'static) -> String {
        let panic = thread::spawn(test).join().expect_err("its bound passes");
        panic.downcast_ref::<String>().expect("a message").clone()
    }

    #[test]
    fn a_wait_whose_bound_passes_names_the_condition() {
        let waits = || check(Duration::from_millis(5), until("pigs fly", async || false));
        assert_eq!(message(waits), "waited in vain until pigs fly");
        let blocks = || check(Duration::from_millis(5), async { block_until("pigs fly", || false) });
        assert_eq!(message(blocks), "waited in vain until pigs fly");
    }

    #[test]
    fn a_check_whose_bound_passes_fails() {
        let reply = message(|| check_on_threads(Duration::from_millis(5), std::future::pending()));
        assert!(reply.starts_with("the test has not ended within 5ms"), "{reply}");
    }
}
