//! `palisade prove redlock`: three schedules in which Redlock grants one lock to two clients, on real servers, and the
//! same schedules behind a fence.

mod client;
mod client_process;
mod scenario;
mod servers;
mod svg;
mod timeline;
mod wire;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::styling::Style;
use serde::Serialize;

use self::scenario::Setup;
use self::timeline::{Protection, Schedule, Timeline};
use super::drawing::DrawingFile;
use super::{FENCE_BROKEN, INCONCLUSIVE};
use crate::outcome::{Failure, unless_closed};
use crate::stop::until_stopped;
use crate::text::{parse_ttl, print_json, time};

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

/// The runs, in the order of the report.
const RUNS: [(Schedule, Protection); 7] = [
    (Schedule::Clock, Protection::Redlock),
    (Schedule::Clock, Protection::Fenced),
    (Schedule::Restart, Protection::RedlockAsPublished),
    (Schedule::Restart, Protection::Redlock),
    (Schedule::Restart, Protection::Fenced),
    (Schedule::Pause, Protection::Redlock),
    (Schedule::Pause, Protection::Fenced),
];

/// The options of `palisade prove redlock`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// How long a lock outlives its holder
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_ttl)]
    ttl: Duration,

    /// Draw the timelines into this file as well
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    ttl_ms: u64,
    /// Whether every timeline has the expected result.
    shown: bool,
    timelines: Vec<Timeline>,
}

/// Runs a client if this process was started as one.
pub(super) fn run_as_child(args: &[OsString]) -> Option<ExitCode> {
    client::run_as_child(args)
}

/// Runs all schedules and prints the timelines.
pub(super) async fn run(options: &Options) -> Result<(), Failure> {
    servers::ensure_installed()?;
    let file = options.svg.as_deref().map(DrawingFile::check).transpose()?;
    let folder = tempfile::Builder::new().prefix("palisade-proof-").tempdir()?;
    let mut timelines = Vec::new();
    until_stopped(async {
        // All servers start first: a Redis server counts only once it is older than the TTL.
        let mut setups = Vec::new();
        for (schedule, protection) in RUNS {
            setups.push(Setup::start(schedule, protection, options.ttl, folder.path()).await?);
        }
        for setup in setups {
            timelines.push(setup.run(folder.path()).await?);
        }
        Ok(())
    })
    .await?;
    let shown = timelines.iter().all(Timeline::is_as_expected);
    let report = Report { schema: SCHEMA, ttl_ms: options.ttl.as_millis() as u64, shown, timelines };
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => print_json(&report, &mut out),
        false => as_text(&report, options, &mut out),
    })?;
    let drawn = file.map_or(Ok(()), |file| file.write(&svg::drawing(&report.timelines)));
    match exit_code(&report) {
        0 => drawn,
        code => Err(Failure::Exit(code)),
    }
}

fn exit_code(report: &Report) -> u8 {
    let is_broken = |timeline: &Timeline| timeline.protection == Protection::Fenced && timeline.lost > 0;
    if report.timelines.iter().any(is_broken) {
        FENCE_BROKEN
    } else if !report.shown {
        INCONCLUSIVE
    } else {
        0
    }
}

fn as_text(report: &Report, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(out, "Two processes, A and B, share a lock with a TTL of {}.", time(options.ttl))?;
    writeln!(out, "Except in the last schedule, A does not reach two of the five Redis servers.")?;
    let mut last = None;
    for timeline in &report.timelines {
        if last.replace(timeline.schedule) != Some(timeline.schedule) {
            writeln!(out, "\n{bold}{}{bold:#}", timeline.schedule.title())?;
        } else {
            writeln!(out)?;
        }
        timeline.print(out)?;
    }
    if !report.shown {
        writeln!(
            out,
            "\nInconclusive: not every schedule had the expected result; try again, or with a longer --ttl."
        )?;
    }
    out.flush()
}
