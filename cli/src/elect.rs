//! `palisade elect`: a command that runs on the leader.

use crate::acquire::{AnyGuard, FailoverArgs, Verbosity, WaitArgs, wait_for_grant};
use crate::outcome::{Failure, say};
use crate::run::CommandArgs;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::plain;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade elect scheduler -- ./scheduler
  palisade elect scheduler --value 10.0.0.7:8080 -- ./scheduler

One process leads, and the others wait to take over. `palisade leader scheduler` prints the value.

The command gets PALISADE_LOCK, PALISADE_TOKEN, PALISADE_SESSION and PALISADE_URL, and is ended when the leadership is \
about to be lost, as with `palisade run`. The exit codes are those of `palisade run`.";

/// The options of `palisade elect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The election
    #[arg(value_name = "NAME")]
    name: String,

    /// What the leader publishes, such as its address [default: the label]
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,

    #[command(flatten)]
    wait_args: WaitArgs,

    #[command(flatten)]
    failover: FailoverArgs,

    #[command(flatten)]
    command_args: CommandArgs,
}

/// Waits to be elected, runs the command as the leader, and passes on its exit code.
pub(crate) async fn elect(options: &Options, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let Options { name, value, wait_args, failover, command_args } = options;
    let label = command_args.label(settings);
    let palisade = command_args.connect_options(settings).connect(&settings.url).await?;
    // From here on a signal must release the session. Before, it may end the process while the engine connects.
    let mut signals = Signals::listen()?;
    let value = value.as_deref().unwrap_or(&label);
    let names = [name.clone()];
    let campaign = wait_args.acquire(failover.apply(palisade.election(name).candidacy(value)));
    let verbosity = Verbosity { level: verbose, label: &label, url: &settings.url };
    let Some(leadership) = wait_for_grant(&palisade, &names, verbosity, &mut signals, campaign).await? else {
        return Err(Failure::NotAcquired(wait_args.not_acquired(&palisade, &names).await));
    };
    if verbose > 0 {
        say(&format!("leading '{}' with token {}", plain(name), leadership.token()?));
    }
    command_args.run(AnyGuard::Leader(leadership), &names, settings, &mut signals).await
}
