//! `palisade run`: a command that runs while a lock is held, and not a moment longer.

mod every;
mod supervise;
mod terminal;
mod warden;
mod wire;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use palisade::{Options as Connect, Palisade};

pub(crate) use warden::serve;

use crate::obtain::{Held, Voice, Wanted};
use crate::outcome::{Failure, say};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::{parse_ttl, plain};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade run nightly -- ./report.sh                      Waits its turn
  palisade run --no-wait sync -- ./sync.sh                 Exits with 75 if somebody else runs it
  palisade run --every 1h report -- ./report.sh            Once an hour over all hosts, whoever comes first
  palisade run --permits 1/4 gpu -- ./train.py             At most four at a time
  palisade run accounts/1 accounts/2 -- ./transfer.sh      Both locks, or none

The command gets PALISADE_LOCK, PALISADE_TOKEN, PALISADE_SESSION and PALISADE_URL. Present the token to what it writes
to: a writer with a lower one has been overtaken.

Exit codes: the command's own; 128+N if signal N ended it; 75 not obtained in time; 76 lost while it ran, and it was
ended; 69 the engine cannot be reached; 64 misuse; 126 the command cannot be run; 127 there is no such command.";

/// The options of `palisade run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    wanted: Wanted,

    #[command(flatten)]
    pub(crate) keeping: Keeping,

    /// Run at most once in so much time, over all hosts: whoever comes first; the others do nothing and exit with 0
    ///
    /// The time is counted by the engine from the start of the last run. One who comes a little early (a tenth of it, a
    /// minute at most, or what --wait says) waits for the rest.
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    every: Option<Duration>,
}

/// How something is held while a command runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Keeping {
    /// How long the lock outlives a holder that is gone without a word [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub(crate) ttl: Option<Duration>,

    /// What happens to the command when the lock is about to be lost
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLoss::Term)]
    pub(crate) on_loss: OnLoss,

    /// Give the command PALISADE_SIGNED_TOKEN, for resources that want proof of the token; the service must sign
    #[arg(long)]
    signed: bool,

    /// What others see as the holder, before host and pid [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// The command, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What happens when the lock is about to be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// TERM when keeping it alive has failed for two thirds of the TTL, KILL before another can have it
    Term,
    /// Only the KILL, at the last moment
    Kill,
    /// It goes on without the lock
    Ignore,
}

impl Keeping {
    /// `report.sh on host (pid 4711)`.
    pub(crate) fn label(&self, settings: &Settings) -> String {
        let program = Path::new(&self.command[0]);
        let program = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        crate::text::label(self.label.clone().or_else(|| settings.label.clone()).unwrap_or(program))
    }

    pub(crate) fn ttl(&self, settings: &Settings) -> Duration {
        self.ttl.or(settings.ttl).unwrap_or(Connect::TTL)
    }

    /// How to connect.
    pub(crate) fn connect(&self, settings: &Settings) -> Connect {
        Connect::new().ttl(self.ttl(settings)).label(self.label(settings))
    }

    /// Runs the command while this is held; then releases it.
    pub(crate) async fn run(
        &self,
        held: Held,
        names: &[String],
        settings: &Settings,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let signed = match self.signed {
            true => match held.signed(names).await {
                Ok(signed) => signed,
                Err(error) => {
                    // If this fails, it ends with this process or by its TTL.
                    drop(held.release().await);
                    return Err(error.into());
                }
            },
            false => None,
        };
        supervise::Job { keeping: self, names, settings, held, signed }.run(signals).await
    }
}

/// Obtains the lock, runs the command, and passes on its exit code.
pub(crate) async fn run(options: &Options, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let Options { wanted, keeping, every } = options;
    wanted.check(keeping.signed)?;
    let label = keeping.label(settings);
    let palisade = keeping.connect(settings).connect(&settings.url).await?;
    // Only now: until here there is nothing to give back, and an engine may take its time to answer.
    let mut signals = Signals::heed()?;
    let period = match every {
        Some(every) => match every::begin(wanted, *every, settings, &label, &mut signals).await? {
            Some(period) => Some(period),
            None => return skip(palisade, wanted, verbose).await,
        },
        None => None,
    };
    let voice = Voice { verbose, label: &label, url: &settings.url };
    let held = match wanted.obtain(&palisade, &mut signals, voice).await {
        Ok(held) => held,
        Err(failure) => {
            if let Some(period) = period {
                period.give_back().await;
            }
            return Err(failure);
        }
    };
    if let Some(period) = period {
        period.keep().await?;
    }
    if verbose > 0 {
        let token = held.token()?.map(|token| format!(" with token {token}")).unwrap_or_default();
        say(&format!("holding {}{token}", plain(&wanted.names())));
    }
    keeping.run(held, &wanted.names, settings, &mut signals).await
}

async fn skip(palisade: Palisade, wanted: &Wanted, verbose: u8) -> Result<(), Failure> {
    if verbose > 0 {
        say(&format!("{} has run in this period already: nothing to do", plain(&wanted.names())));
    }
    Ok(palisade.close().await?)
}
