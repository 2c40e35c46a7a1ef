//! `palisade elect`: a command that runs on whoever leads.

use crate::obtain::{Failover, Held, Patience, Voice, obtain};
use crate::outcome::{Failure, say};
use crate::run::Keeping;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::plain;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade elect scheduler -- ./scheduler                          One at a time; the others wait to take over
  palisade elect scheduler --value 10.0.0.7:8080 -- ./scheduler    `palisade leader scheduler` prints the value

The command gets PALISADE_LOCK, PALISADE_TOKEN, PALISADE_SESSION and PALISADE_URL, and is ended when the lead is about
to be lost, as with `palisade run`. The exit codes are those of `palisade run`.";

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
    patience: Patience,

    #[command(flatten)]
    failover: Failover,

    #[command(flatten)]
    keeping: Keeping,
}

/// Waits to be elected, runs the command as the leader, and passes on its exit code.
pub(crate) async fn elect(options: &Options, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let Options { name, value, patience, failover, keeping } = options;
    let label = keeping.label(settings);
    let palisade = keeping.connect(settings).connect(&settings.url).await?;
    // Only now: until here there is nothing to give back, and an engine may take its time to answer.
    let mut signals = Signals::heed()?;
    let value = value.as_deref().unwrap_or(&label);
    let names = [name.clone()];
    let campaign = patience.ask(failover.accepted(palisade.election(name).candidacy(value)));
    let voice = Voice { verbose, label: &label, url: &settings.url };
    let Some(leadership) = obtain(&palisade, &names, voice, &mut signals, campaign).await? else {
        return Err(Failure::NotObtained(patience.in_vain(&palisade, &names).await));
    };
    if verbose > 0 {
        say(&format!("leading '{}' with token {}", plain(name), leadership.token()?));
    }
    keeping.run(Held::Leader(leadership), &names, settings, &mut signals).await
}
