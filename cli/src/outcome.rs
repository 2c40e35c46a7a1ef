//! How a command ends: its message on stderr and its exit code.

use std::io::{self, Write};

use palisade::{Error, ErrorKind, Limit, Misuse, Refusal};

use crate::stores::redact_secret;
use crate::text::{exact_time, shell_word};

/// The command line cannot be acted on (`EX_USAGE`).
const MISUSE: u8 = 64;
/// The engine cannot be reached, or the operation failed there (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// Reading or writing failed (`EX_IOERR`).
const INPUT_OUTPUT: u8 = 74;
/// The lock was not acquired, or not in time (`EX_TEMPFAIL`).
const NOT_ACQUIRED: u8 = 75;
/// The lock was lost.
const LOST: u8 = 76;

/// The exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0   done
  64  the command line cannot be acted on; the message says what to change
  69  the engine cannot be reached, or cannot do it
  74  reading or writing failed
  75  the lock was not acquired, or not in time
  76  the lock was lost
  78  `fence check` found a gap in the fence
  128+N  ended by signal N

`run`, `elect`, `once` and `partitions` otherwise pass on the exit code of their command.";

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line was wrong, and clap has already printed why.
    UsagePrinted,
    /// The command line was understood but cannot be acted on. The message says what to change.
    Misuse(String),
    /// The engine cannot be reached, or the operation failed there.
    Unavailable(String),
    /// The lock was not acquired, or not in time.
    NotAcquired(String),
    /// The lock was lost.
    Lost(String),
    /// Input or output failed.
    Io(io::Error),
    /// Input or output failed. The message is complete, and is printed as it is.
    IoMessage(String),
    /// Exit with this code and print nothing more.
    Exit(u8),
}

impl Failure {
    /// The exit code that the shell sees.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::UsagePrinted | Self::Misuse(_) => MISUSE,
            Self::Unavailable(_) => UNAVAILABLE,
            Self::NotAcquired(_) => NOT_ACQUIRED,
            Self::Lost(_) => LOST,
            Self::Io(_) | Self::IoMessage(_) => INPUT_OUTPUT,
            Self::Exit(code) => *code,
        }
    }

    /// The message for stderr, if any.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::UsagePrinted | Self::Exit(_) => None,
            Self::Misuse(message)
            | Self::Unavailable(message)
            | Self::NotAcquired(message)
            | Self::IoMessage(message)
            | Self::Lost(message) => Some(message.clone()),
            Self::Io(error) => Some(format!("reading or writing failed: {error}")),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = message_of(&error);
        match error.kind() {
            ErrorKind::Misuse(_) | ErrorKind::Unsupported { .. } => Self::Misuse(message),
            ErrorKind::Lost(_) => Self::Lost(message),
            _ => Self::Unavailable(message),
        }
    }
}

/// Returns the message of an error, with the options of this program instead of the library's methods.
pub(crate) fn message_of(error: &Error) -> String {
    message_about(error, "TTL", "--ttl, or ttl in the configuration")
}

/// The failure of a session whose TTL is the period of `--every`.
pub(crate) fn period_failure(error: Error) -> Failure {
    let message = message_about(&error, "period", "--every");
    match Failure::from(error) {
        Failure::Misuse(_) => Failure::Misuse(message),
        failure => failure,
    }
}

/// Returns the message of an error. `time` is what the session's TTL means for the user, and `option` sets it.
fn message_about(error: &Error, time: &str, option: &str) -> String {
    let message = error.to_string();
    let options =
        [(".efficiency()", "--efficiency"), (".dangerous_accept_failover()", "--dangerous-accept-failover")];
    match error.kind() {
        ErrorKind::Unsupported { .. } => {
            options.iter().fold(message, |message, (method, option)| message.replace(method, option))
        }
        ErrorKind::Misuse(Misuse::Refused(refusal)) => {
            // The library's text has milliseconds, as the protocols of the service.
            let said = match refusal {
                Refusal::OverLimit { limit: Limit::TtlMaxMs, max, value } => {
                    let (max, value) = (exact_time(*max), exact_time(*value));
                    format!("the engine keeps no session for {value}; use a {time} of at most {max} ({option})")
                }
                Refusal::UnderLimit { limit: Limit::TtlMinMs, min, value } => {
                    let (min, value) = (exact_time(*min), exact_time(*value));
                    format!(
                        "a session of {value} is too short for the engine; use a {time} of at least {min} ({option})"
                    )
                }
                _ => return message,
            };
            message.replace(&refusal.to_string(), &said)
        }
        _ => message,
    }
}

/// Prints clap's output: help and version on stdout, errors on stderr.
pub(crate) fn print_clap(error: &clap::Error) -> Result<(), Failure> {
    if error.use_stderr() {
        // clap quotes the argument that it rejects.
        let text = redact_secrets(error.render().ansi().to_string());
        let args: Vec<_> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        let hint = command_hint(error, &args).map_or_else(String::new, |hint| format!("\n  tip: {hint}\n"));
        let hint = redact_secrets(hint);
        unless_closed(write!(anstream::stderr(), "{text}{hint}"))?;
    } else {
        unless_closed(error.print())?;
    }
    if error.use_stderr() { Err(Failure::UsagePrinted) } else { Ok(()) }
}

/// The commands that run another one, and the operands before its `--`.
const RUNNERS: [(&str, &str); 5] =
    [("run", "NAME"), ("elect", "NAME"), ("once", "KEY"), ("partitions", "NAME COUNT"), ("queue work", "NAME")];

/// If the command line of a command that runs another one has no `--`, suggests where it goes.
fn command_hint(error: &clap::Error, args: &[String]) -> Option<String> {
    let may_lack_dashes = match error.kind() {
        clap::error::ErrorKind::MissingRequiredArgument => true,
        // The command, where the operands before it have a fixed number. An option would be a misspelt one.
        clap::error::ErrorKind::UnknownArgument => {
            error.get(clap::error::ContextKind::InvalidArg).is_some_and(|arg| !arg.to_string().starts_with('-'))
        }
        _ => false,
    };
    if !may_lack_dashes || args.iter().any(|arg| arg == "--") {
        return None;
    }
    // clap's message has the usage of the subcommand. An argument can have the same text.
    let message = error.render().to_string();
    let (name, operands) =
        RUNNERS.into_iter().find(|(name, _)| message.contains(&format!("Usage: palisade {name} ")))?;
    let depth = name.split(' ').count();
    let at = args.windows(depth).position(|words| words.join(" ") == name)? + depth;
    let is_plain = !args.iter().any(|arg| arg.starts_with('-'));
    let (operands, command) = match args[at..].split_at_checked(operands.split(' ').count()) {
        Some((operands, command)) if !command.is_empty() && is_plain => {
            let words = |words: &[String]| words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ");
            (words(operands), words(command))
        }
        _ => (operands.to_owned(), "COMMAND".to_owned()),
    };
    Some(format!("the command goes after `--`: palisade {name} {operands} -- {command}"))
}

/// Ignores a closed pipe (`palisade … | head -1`).
pub(crate) fn unless_closed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Prints a failure on stderr.
pub(crate) fn report(failure: &Failure) {
    if let Some(message) = failure.message() {
        say(&redact_secrets(message));
    }
}

/// Returns the message without the secrets that are in URLs of the command line.
fn redact_secrets(message: String) -> String {
    std::env::args_os().skip(1).fold(message, |message, arg| redact_secret(message, &arg.to_string_lossy()))
}

/// Prints a message on stderr. A closed stderr is no failure.
pub(crate) fn say(message: &str) {
    let _ = writeln!(io::stderr(), "palisade: {message}");
}
