//! Ctrl-C and a polite kill.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::outcome::Failure;

/// Listens for the signals that ask a command to end.
pub(crate) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    /// From now on they do not end the process by themselves.
    pub(crate) fn listen() -> io::Result<Interrupt> {
        Ok(Interrupt { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for one, and says how the command then ends.
    pub(crate) async fn came(&mut self) -> Failure {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        Failure::Exit(128 + u8::try_from(kind.as_raw_value()).unwrap_or(0))
    }
}
