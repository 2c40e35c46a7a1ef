//! How a command ends: what is said on stderr and which exit code the shell sees.

use std::io::{self, Write};

/// The command line cannot be acted on (`EX_USAGE`).
const MISUSE: u8 = 64;
/// Reading or writing failed (`EX_IOERR`).
const INPUT_OUTPUT: u8 = 74;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line was wrong, and clap has already said how.
    Refused,
    /// The command line was understood but cannot be acted on. The message says what to change.
    Misuse(String),
    /// Input or output failed.
    Io(io::Error),
}

impl Failure {
    /// The exit code that the shell sees.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Refused | Self::Misuse(_) => MISUSE,
            Self::Io(_) => INPUT_OUTPUT,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Prints what clap has to say: help and version on stdout, everything else on stderr.
pub(crate) fn from_clap(error: &clap::Error) -> Result<(), Failure> {
    unless_closed(error.print())?;
    if error.use_stderr() { Err(Failure::Refused) } else { Ok(()) }
}

/// A reader that has gone away (`palisade … | head -1`) is no failure: it has all that it wanted.
pub(crate) fn unless_closed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Says on stderr what went wrong. With stderr gone as well, the exit code has to do.
pub(crate) fn tell(failure: &Failure) {
    let message = match failure {
        Failure::Refused => return,
        Failure::Misuse(message) => message.clone(),
        Failure::Io(error) => format!("cannot read the answers or write the advice: {error}"),
    };
    let _ = writeln!(io::stderr(), "palisade: {message}");
}
