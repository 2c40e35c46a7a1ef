//! The signals that a command handles.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// The handled signals. `run` passes all of them on to its command. While it waits for the lock, the first four end it.
const HANDLED: [Signal; 8] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];

/// The signals that this process receives from now on.
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

/// A signal that asks the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopSignal(Signal);

impl StopSignal {
    /// Returns the signal if it asks the process to stop.
    pub(crate) fn new(signal: Signal) -> Option<StopSignal> {
        matches!(signal, Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT).then_some(StopSignal(signal))
    }

    pub(crate) fn is_hangup(self) -> bool {
        self.0 == Signal::HUP
    }

    /// Returns the exit code that shells give to a process that this signal ended.
    pub(crate) fn exit_code(self) -> u8 {
        exit_code(self.0.as_raw())
    }
}

/// Returns the exit code that shells give to a process that a signal ended.
pub(crate) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Returns the signals that this process ignored from its start (`nohup`, a script's `&`), one bit each. This process
/// and its command keep ignoring them.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
}

/// Stops this process, as the shell expects of a job whose command was stopped.
pub(crate) fn stop_this_process() {
    // A process may always stop itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

impl Signals {
    /// Handles signals instead of being ended by them.
    pub(crate) fn listen() -> io::Result<Signals> {
        let stream = |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        let ignored = ignored();
        let handled = HANDLED.into_iter().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
        Ok(Signals { streams: handled.map(stream).collect::<io::Result<_>>()? })
    }

    /// Returns these signals without one that other code handles.
    pub(crate) fn except(mut self, other: Signal) -> Signals {
        self.streams.retain(|(signal, _)| *signal != other);
        self
    }

    /// Waits for the next signal.
    ///
    /// # Cancellation
    ///
    /// No signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that asks the process to stop.
    pub(crate) async fn stop_requested(&mut self) -> StopSignal {
        loop {
            let signal = self.next().await;
            if let Some(stop) = StopSignal::new(signal) {
                return stop;
            }
            // No command runs yet, so only this process has to stop.
            if signal == Signal::TSTP {
                stop_this_process();
            }
        }
    }
}
