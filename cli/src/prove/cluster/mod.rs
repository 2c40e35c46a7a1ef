//! `palisade prove cluster`: writers whose locks are kept by a cluster, while its nodes are killed, paused, cut off from each other, and
//! given wrong clocks and full disks.

mod experiment;
mod fault;
mod nodes;
mod probe;
mod record;
mod show;
mod svg;
mod system;

use std::path::PathBuf;
use std::time::Duration;

use self::experiment::Plan;
use self::system::System;
use super::{FENCE_BROKEN, drawing::DrawingFile, show::exit_code};
use crate::outcome::{Failure, UNAVAILABLE, say, unless_closed};
use crate::signals::Signals;
use crate::text::{parse_time, parse_ttl};

/// The options of `palisade prove cluster`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The system whose cluster keeps the locks
    #[arg(long, value_enum, default_value = "palisade")]
    system: System,

    /// How many nodes the cluster has: 3 or 5
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_nodes)]
    nodes: usize,

    /// How many processes write each of the two numbers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=32))]
    writers: u8,

    /// How long a lock outlives a writer that is stopped; pauses, partitions and other faults are longer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_ttl)]
    ttl: Duration,

    /// How long the faults go on; at least until each kind has come once
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = parse_time)]
    time: Duration,

    /// Seed of the faults and pauses [default: random]
    ///
    /// The same seed draws the same faults, but real processes interleave differently each time.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Draw a timeline of leaders, faults and grants into this file as well
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    match text {
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err(format!("'{}' is neither 3 nor 5", text.escape_debug())),
    }
}

/// Runs the experiment and prints the report.
pub(super) async fn run(options: &Options) -> Result<(), Failure> {
    options.system.ensure_usable()?;
    let file = options.svg.as_deref().map(DrawingFile::check).transpose()?;
    let plan = Plan {
        system: options.system,
        nodes: options.nodes,
        writers: options.writers.into(),
        ttl: options.ttl,
        time: options.time,
        seed: options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
    };
    let mut signals = Signals::listen()?;
    let folder = tempfile::Builder::new().prefix("palisade-proof-").tempdir()?;
    let outcome = match experiment::run(&plan, folder.path(), &mut signals).await {
        Ok(outcome) => outcome,
        Err(failure @ (Failure::Exit(_) | Failure::Misuse(_))) => return Err(failure),
        Err(failure) => {
            say(&format!("the files and logs of the nodes are kept in {}", folder.keep().display()));
            return Err(failure);
        }
    };
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => show::as_json(&plan, &outcome, &mut out),
        false => show::as_text(&plan, &outcome, &mut out),
    })?;
    let code = exit_code(&outcome.results);
    let has_crashed = !outcome.record.unexpected_ends.is_empty();
    if code == FENCE_BROKEN || has_crashed {
        say(&format!("the files and logs of the nodes are kept in {}", folder.keep().display()));
    }
    let drawn = file.map_or(Ok(()), |file| file.write(&svg::drawing(&plan, &outcome)));
    match verdict(code, has_crashed, outcome.stopped_by.map(|signal| signal.exit_code())) {
        0 => drawn,
        code => Err(Failure::Exit(code)),
    }
}

/// Returns the exit code of a run: a broken fence counts most, and a run that was stopped has its signal.
fn verdict(results: u8, has_crashed: bool, stopped: Option<u8>) -> u8 {
    match (results, stopped) {
        (FENCE_BROKEN, _) => FENCE_BROKEN,
        (_, Some(stopped)) => stopped,
        _ if has_crashed => UNAVAILABLE,
        (results, None) => results,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_node_has_crashed_proves_nothing() {
        assert_eq!(
            [0, 1, FENCE_BROKEN].map(|code| verdict(code, true, None)),
            [UNAVAILABLE, UNAVAILABLE, FENCE_BROKEN]
        );
        assert_eq!([0, 1, FENCE_BROKEN].map(|code| verdict(code, true, Some(130))), [130, 130, FENCE_BROKEN]);
        assert_eq!([0, 1, FENCE_BROKEN].map(|code| verdict(code, false, None)), [0, 1, FENCE_BROKEN]);
    }
}
