//! The report of `palisade prove cluster`, as text or as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use super::experiment::{Outcome, Plan};
use super::fault::FaultKind;
use super::record::{FaultSpan, Gaps, LeaderSpan, UnexpectedEnd};
use super::system::{System, node_name};
use crate::prove::show::{JsonResult, exit_code, json_results, print_counts, print_verdicts};
use crate::text::{count, plain, print_json, time, time_ms};
use crate::view::table::{self, Column::Short};

/// The version of [`Json`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    system: System,
    nodes: usize,
    writers: usize,
    ttl_ms: u128,
    seed: u64,
    ran_ms: u64,
    /// Whether the user has ended it before its time.
    is_stopped_early: bool,
    #[serde(rename = "schemes")]
    results: Vec<JsonResult<'a>>,
    /// How often each kind of fault was injected.
    faults: BTreeMap<FaultKind, usize>,
    skipped: Vec<Skipped>,
    grants: usize,
    gaps: Gaps,
    leaders: usize,
    unexpected_ends: &'a [UnexpectedEnd],
    timeline: Timeline<'a>,
    shown: bool,
}

#[derive(Serialize)]
struct Skipped {
    kind: FaultKind,
    reason: &'static str,
}

#[derive(Serialize)]
struct Timeline<'a> {
    leaders: &'a [LeaderSpan],
    faults: &'a [FaultSpan],
    refused_ms: &'a [u64],
    lost_ms: &'a [u64],
}

/// Prints the report as JSON.
pub(super) fn as_json(plan: &Plan, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let record = &outcome.record;
    let json = Json {
        schema: SCHEMA,
        system: plan.system,
        nodes: plan.nodes,
        writers: plan.writers,
        ttl_ms: plan.ttl.as_millis(),
        seed: plan.seed,
        ran_ms: record.end_ms,
        is_stopped_early: outcome.stopped_by.is_some(),
        results: json_results(&outcome.results),
        faults: record.fault_counts(),
        skipped: outcome.skipped.iter().map(|(kind, reason)| Skipped { kind: *kind, reason }).collect(),
        grants: record.grants.len(),
        gaps: record.gaps(),
        leaders: record.leaders.len(),
        unexpected_ends: &record.unexpected_ends,
        timeline: Timeline {
            leaders: &record.leaders,
            faults: &record.faults,
            refused_ms: &record.refused,
            lost_ms: &record.lost,
        },
        shown: exit_code(&outcome.results) == 0,
    };
    print_json(&json, out)
}

/// Returns the settings in one line, without the name of the system.
pub(super) fn describe(plan: &Plan, outcome: &Outcome) -> String {
    let Plan { nodes, writers, ttl, seed, .. } = plan;
    let (ttl, ran) = (time(*ttl), time_ms(outcome.record.end_ms));
    let early = if outcome.stopped_by.is_some() { ", stopped early" } else { "" };
    format!("{nodes} nodes, {writers} writers for each number, TTL {ttl}, {ran}, seed {seed}{early}")
}

/// Returns the grants, the gaps and the leaders in one line.
pub(super) fn describe_service(outcome: &Outcome) -> String {
    let record = &outcome.record;
    let Gaps { over_ms, count: gaps, total_ms, longest_ms, p99_ms } = record.gaps();
    let (grants, leaders) = (record.grants.len() as u64, record.leaders.len() as u64);
    format!(
        "{}, {}; {} without a grant for more than {}, {} in all, the longest {}; p99 between two grants {}",
        count(grants, "grant", "grants"),
        count(leaders, "leader", "leaders"),
        count(gaps as u64, "gap", "gaps"),
        time_ms(over_ms),
        time_ms(total_ms),
        time_ms(longest_ms),
        time_ms(p99_ms),
    )
}

/// Prints the report as text.
pub(super) fn as_text(plan: &Plan, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(out, "{bold}{}{bold:#}, {}", plan.system.name(), describe(plan, outcome))?;
    writeln!(out)?;
    print_counts(&outcome.results, out)?;
    writeln!(out)?;
    let mut faults = table::table(&["FAULT", "TIMES"].map(Short));
    for (kind, times) in outcome.record.fault_counts() {
        faults.add_row([kind.name().to_owned(), times.to_string()]);
    }
    table::print(&faults, out)?;
    for (kind, reason) in &outcome.skipped {
        writeln!(out, "skipped: {} ({reason})", kind.name())?;
    }
    writeln!(out, "\n{}\n", describe_service(outcome))?;
    for UnexpectedEnd { node, at_ms, output } in &outcome.record.unexpected_ends {
        let (red, at) = (AnsiColor::Red.on_default().bold(), time_ms(*at_ms));
        writeln!(out, "{red}{} ended by itself after {at}:{red:#} {}", node_name(*node), plain(output))?;
    }
    print_verdicts(&outcome.results, out)?;
    let awake: u64 = outcome.results.iter().map(|(_, counts)| counts.refused_awake).sum();
    if awake > 0 {
        let updates = count(awake, "update was", "updates were");
        let red = AnsiColor::Red.on_default().bold();
        writeln!(
            out,
            "{red}{updates} refused although the writer was not paused: its session ended early, or the lock was granted \
             twice{red:#}"
        )?;
    }
    out.flush()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::record::tests::record;
    use super::*;
    use crate::prove::fencing::Fencing;
    use crate::prove::workload::Counts;

    pub(in crate::prove::cluster) fn outcome() -> (Plan, Outcome) {
        let (ttl, time) = (Duration::from_secs(2), Duration::from_secs(6));
        let plan = Plan { system: System::Palisade, nodes: 3, writers: 4, ttl, time, seed: 7 };
        let counts = Counts { acknowledged: 50, number: 48, lost: 2, pauses: 3, overtaken: 2, ..Counts::default() };
        let fenced = Counts { number: 50, lost: 0, refused: 1, ..counts.clone() };
        let results = vec![(Fencing::None, counts), (Fencing::Strict, fenced)];
        let skipped = vec![(FaultKind::Clock, "faketime is not installed")];
        (plan, Outcome { results, record: record(), skipped, stopped_by: None })
    }

    fn text(plan: &Plan, outcome: &Outcome) -> String {
        let mut text = Vec::new();
        as_text(plan, outcome, &mut text).unwrap();
        anstream::adapter::strip_bytes(&text).into_vec().try_into().unwrap()
    }

    #[test]
    fn the_report_has_updates_faults_gaps_and_leaders() {
        let (plan, mut outcome) = outcome();
        insta::assert_snapshot!(text(&plan, &outcome));
        outcome.record.unexpected_ends.push(UnexpectedEnd {
            node: 1,
            at_ms: 4500,
            output: "panicked\u{1b}".to_owned(),
        });
        outcome.results[1].1.refused_awake = 1;
        let text = text(&plan, &outcome);
        assert!(text.contains("\n1 update was refused although the writer was not paused"), "{text}");
        assert!(text.contains("node2 ended by itself after 4.5s: panicked\\u{1b}\n"), "{text}");
    }
}
