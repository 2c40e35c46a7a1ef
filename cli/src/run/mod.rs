//! `palisade run`: a command that runs only while a lock is held.

mod every;
pub(crate) mod partitions;
mod supervise;
mod terminal;
pub(crate) mod warded;
mod warden;
mod wire;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use palisade::{Options as ConnectOptions, Palisade};

pub(crate) use warden::run_as_child;

use crate::acquire::{AcquireArgs, AnyGuard, Verbosity};
use crate::outcome::{Failure, say};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::{parse_ttl, plain};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade run nightly -- ./report.sh                   Waits for the lock
  palisade run --no-wait sync -- ./sync.sh              Exits with 75 if held
  palisade run --every 10m report -- ./report.sh        Once an hour, by cron
  palisade run --permits 1/4 gpu -- ./train.py          At most four at a time
  palisade run accounts/1 accounts/2 -- ./transfer.sh   Both locks, or none

The command gets PALISADE_LOCK, PALISADE_TOKEN, PALISADE_SESSION and PALISADE_URL. Pass the token to the resource that \
it writes to: a writer with a lower token has been overtaken.

Exit codes: the command's; 128+N if signal N ended it; 75 the lock was not acquired in time; 76 it was lost while the \
command ran, which was ended; 69 the engine cannot be reached; 64 misuse; 126 the command was found but cannot be \
executed; 127 the command was not found.";

/// The options of `palisade run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    args: AcquireArgs,

    #[command(flatten)]
    pub(crate) command_args: CommandArgs,

    /// Run at most once per TIME over all hosts; a host that comes too early does nothing and exits with 0
    ///
    /// The engine counts the time from the start of the last run. A run that starts slightly early (by a tenth of TIME,
    /// at most a minute, or by --wait) waits for the rest. TIME only has to be longer than the clocks of the hosts differ: 10m is
    /// enough for a job of every hour or every night. A restart of the engine may begin the period again, so a long TIME can skip
    /// the next run.
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    every: Option<Duration>,
}

/// The command, and how its lock is kept.
#[derive(Debug, clap::Args)]
pub(crate) struct CommandArgs {
    /// How long the lock outlives a holder that stops answering [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub(crate) ttl: Option<Duration>,

    /// What happens to the command when the lock is about to be lost
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLoss::Term)]
    pub(crate) on_loss: OnLoss,

    /// Give the command PALISADE_SIGNED_TOKEN, for resources that want proof of the token; the service must sign
    #[arg(long)]
    signed: bool,

    /// The holder's name that other clients see, before host and pid [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// The command, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What a command gets in addition to its lock.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    /// Environment variables. One without a value is removed: it would be that of an outer command.
    pub(crate) variables: Vec<(&'static str, Option<String>)>,
    /// Its stdout, if it is not that of this process.
    pub(crate) stdout: Option<OwnedFd>,
}

/// What happens when the lock is about to be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// TERM when renewals have failed for two thirds of the TTL, KILL before another client can get the lock
    Term,
    /// Only the KILL, just before another client can get the lock
    Kill,
    /// Nothing: the command goes on without the lock
    Ignore,
}

impl CommandArgs {
    /// Returns the holder's label, such as `report.sh on host (pid 4711)`.
    pub(crate) fn label(&self, settings: &Settings) -> String {
        let program = Path::new(&self.command[0]);
        let program = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        crate::text::label(self.label.clone().or_else(|| settings.label.clone()).unwrap_or(program))
    }

    pub(crate) fn ttl(&self, settings: &Settings) -> Duration {
        self.ttl.or(settings.ttl).unwrap_or(ConnectOptions::TTL)
    }

    pub(crate) fn connect_options(&self, settings: &Settings) -> ConnectOptions {
        ConnectOptions::new().ttl(self.ttl(settings)).label(self.label(settings))
    }

    /// Runs the command under the lock, then releases it.
    pub(crate) async fn run(
        &self,
        held: AnyGuard,
        names: &[String],
        settings: &Settings,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        self.run_then(held, names, Extras::default(), settings, signals, async |_| Ok(())).await
    }

    /// Runs the command under the lock, calls `ended` with its exit code, then releases the lock.
    pub(crate) async fn run_then(
        &self,
        held: AnyGuard,
        names: &[String],
        extras: Extras,
        settings: &Settings,
        signals: &mut Signals,
        ended: impl AsyncFnOnce(u8) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let signed = match self.signed {
            true => match held.signed(names).await {
                Ok(signed) => signed,
                Err(error) => {
                    // If the release fails, the session ends with this process or by its TTL.
                    drop(held.release().await);
                    return Err(error.into());
                }
            },
            false => None,
        };
        let job =
            supervise::Job { command_args: self, names: names.to_vec(), settings, held, signed, partitions: None };
        job.run(extras, signals, ended).await
    }
}

/// Acquires the lock, runs the command, and passes on its exit code.
pub(crate) async fn run(options: &Options, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let Options { args, command_args, every } = options;
    args.check(command_args.signed)?;
    let label = command_args.label(settings);
    let palisade = command_args.connect_options(settings).connect(&settings.url).await?;
    if every.is_some() && !palisade.guarantees().offers.detach {
        return Err(Failure::Misuse(format!(
            "--every cannot be used on {}: the period must outlive this process, and sessions of this engine do not; use \
             another engine",
            palisade.guarantees().engine
        )));
    }
    // From here on a signal must release the session. Before, it may end the process while the engine connects.
    let mut signals = Signals::listen()?;
    let verbosity = Verbosity { level: verbose, label: &label, url: &settings.url };
    let held = loop {
        let period = match every {
            Some(every) => match every::begin(args, *every, settings, &label, &mut signals).await? {
                Some(period) => Some(period),
                None => return skip(palisade, args, verbose).await,
            },
            None => None,
        };
        let acquired = args.acquire(&palisade, &mut signals, verbosity).await;
        let (held, period) = match (acquired, period) {
            (Ok(held), None) => break held,
            (Ok(held), Some(period)) => (held, period),
            (Err(failure), period) => {
                if let Some(period) = period {
                    period.release().await;
                }
                return Err(failure);
            }
        };
        if period.keep().await? {
            break held;
        }
        // Another run may have begun the period meanwhile. If the release fails, the lock ends with this process or by its TTL.
        drop(held.release().await);
    };
    if verbose > 0 {
        let token = held.token()?.map(|token| format!(" with token {token}")).unwrap_or_default();
        say(&format!("holding {}{token}", plain(&args.names())));
    }
    command_args.run(held, &args.names, settings, &mut signals).await
}

async fn skip(palisade: Palisade, args: &AcquireArgs, verbose: u8) -> Result<(), Failure> {
    if verbose > 0 {
        say(&format!("{} has run in this period already: nothing to do", plain(&args.names())));
    }
    Ok(palisade.close().await?)
}
