//! `palisade prove pauses`: writers that are stopped for longer than their lock lives.

use std::time::Duration;

use super::fencing::Fencing;
use super::measure::{self, Plan, Until};
use super::progress::Progress;
use super::show::{self, Report};
use super::workload::Settings;
use super::{ResourceArgs, store};
use crate::args::Global;
use crate::outcome::{Failure, unless_closed};
use crate::signals::Signals;
use crate::text::{parse_time, parse_ttl};

/// The options of `palisade prove pauses`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    resource: ResourceArgs,

    /// How many processes write
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=64))]
    writers: u8,

    /// How long a lock outlives a writer that is stopped; every pause is longer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_ttl)]
    ttl: Duration,

    /// How long the writers run with each kind of fencing: none, the ratchet, the strict fence
    #[arg(long = "for", value_name = "TIME", default_value = "20s", value_parser = parse_time)]
    time: Duration,

    /// Instead of a time: until another writer has overtaken a paused one N times
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    overtaken: Option<u64>,

    /// Seed of the pauses [default: random]
    ///
    /// The same seed draws the same pauses, but real processes interleave differently each time.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

/// Runs the writers with each kind of fencing, and prints the report.
pub(super) async fn run(options: &Options, global: &Global) -> Result<(), Failure> {
    let setup = options.resource.prepare(global).await?;
    if setup.engine.starts_with("memory:") {
        let message =
            "memory: serves a single process, and the writers are several; leave out --url, or name another engine";
        return Err(Failure::Misuse(message.to_owned()));
    }
    let settings = Settings {
        engine: setup.engine.clone(),
        resource: setup.resource.clone(),
        writers: options.writers.into(),
        ttl: options.ttl,
        seed: options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
    };
    let plan = Plan { settings, until: options.overtaken.map_or(Until::Passed(options.time), Until::Overtaken) };
    let mut signals = Signals::listen()?;
    let mut results = Vec::new();
    let mut progress = Progress::new();
    for fencing in Fencing::ALL {
        results.push((fencing, measure::run(&plan, fencing, &mut progress, &mut signals).await?));
    }
    drop(progress);
    let resource = store::open(&plan.settings.resource, "palisade_proof").await?.describe();
    let engine = palisade::split_secret(&plan.settings.engine).0;
    let report = Report { plan: &plan, resource, engine, results };
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => show::as_json(&report, &mut out),
        false => show::as_text(&report, &mut out),
    })?;
    match report.exit_code() {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}
