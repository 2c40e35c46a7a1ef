//! The report of `palisade prove pauses`, as text or as JSON.

use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use super::fencing::Fencing;
use super::measure::{Plan, Until};
use super::workload::{Counts, Settings};
use super::{FENCE_BROKEN, INCONCLUSIVE};
use crate::text::{plain, print_json, time};
use crate::view::table::{self, Column::Short};

/// The version of [`Json`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

/// The results of all runs.
pub(super) struct Report<'a> {
    pub(super) plan: &'a Plan,
    pub(super) resource: String,
    pub(super) engine: String,
    pub(super) results: Vec<(Fencing, Counts)>,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    resource: &'a str,
    engine: &'a str,
    writers: usize,
    ttl_ms: u128,
    seed: u64,
    #[serde(rename = "schemes")]
    results: Vec<JsonResult<'a>>,
    shown: bool,
}

/// The result with one kind of fencing.
#[derive(Serialize)]
pub(super) struct JsonResult<'a> {
    #[serde(rename = "scheme")]
    fencing: Fencing,
    #[serde(flatten)]
    counts: &'a Counts,
    verdict: String,
}

/// The judgement of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The run had the expected result.
    Shown,
    /// The run proves nothing.
    Inconclusive,
    /// An update was lost or repeated behind the strict fence.
    Broken,
}

impl Report<'_> {
    pub(super) fn exit_code(&self) -> u8 {
        exit_code(&self.results)
    }
}

/// Returns the exit code for these results.
pub(super) fn exit_code(results: &[(Fencing, Counts)]) -> u8 {
    let verdicts: Vec<Verdict> = results.iter().map(|(fencing, counts)| verdict_of(*fencing, counts)).collect();
    if verdicts.contains(&Verdict::Broken) {
        FENCE_BROKEN
    } else if verdicts.contains(&Verdict::Inconclusive) {
        INCONCLUSIVE
    } else {
        0
    }
}

fn verdict_of(fencing: Fencing, counts: &Counts) -> Verdict {
    let is_intact = counts.lost == 0 && counts.repeated == 0 && counts.number <= counts.acknowledged + counts.unknown;
    match fencing {
        Fencing::Strict if !is_intact => Verdict::Broken,
        Fencing::Strict if counts.acknowledged == 0 || counts.overtaken == 0 => Verdict::Inconclusive,
        Fencing::None if counts.lost == 0 => Verdict::Inconclusive,
        Fencing::None | Fencing::Ratchet | Fencing::Strict => Verdict::Shown,
    }
}

/// Returns one line about one run.
fn verdict(fencing: Fencing, counts: &Counts) -> String {
    let Counts { acknowledged, lost, repeated, number, .. } = counts;
    match (fencing, verdict_of(fencing, counts)) {
        (_, Verdict::Broken) => format!(
            "THE FENCE HAS FAILED: {acknowledged} updates were acknowledged, the number is {number}, and {repeated} of \
             them wrote a number twice; this must never happen, please report it with the output above"
        ),
        (Fencing::Strict, Verdict::Inconclusive) => {
            "no writer was overtaken, so nothing is proven; try longer (--for), or more writers".to_owned()
        }
        (Fencing::Strict, Verdict::Shown) => {
            format!(
                "nothing is lost: all {acknowledged} acknowledged updates are there, and late writes were refused"
            )
        }
        (Fencing::Ratchet, _) if *lost == 0 => {
            "nothing was lost this time; `palisade prove order` shows how a ratchet loses updates".to_owned()
        }
        (_, Verdict::Inconclusive) => {
            "nothing was lost, so nothing is proven; try longer (--for), or more writers".to_owned()
        }
        (_, Verdict::Shown) => format!("{lost} of {acknowledged} acknowledged updates are gone"),
    }
}

/// Returns the results for JSON.
pub(super) fn json_results(results: &[(Fencing, Counts)]) -> Vec<JsonResult<'_>> {
    let json = |(fencing, counts)| JsonResult { fencing, counts, verdict: verdict(fencing, counts) };
    results.iter().map(|(fencing, counts)| json((*fencing, counts))).collect()
}

/// Prints the report as JSON.
pub(super) fn as_json(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let json = Json {
        schema: SCHEMA,
        resource: &report.resource,
        engine: &report.engine,
        writers: report.plan.settings.writers,
        ttl_ms: report.plan.settings.ttl.as_millis(),
        seed: report.plan.settings.seed,
        results: json_results(&report.results),
        shown: report.exit_code() == 0,
    };
    print_json(&json, out)
}

/// Prints the report as text.
pub(super) fn as_text(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let Plan { settings: Settings { writers, ttl, seed, .. }, until } = report.plan;
    let bold = Style::new().bold();
    let until = match until {
        Until::Passed(all) => format!("{} each", time(*all)),
        Until::Overtaken(1) => "until one writer was overtaken".to_owned(),
        Until::Overtaken(times) => format!("until {times} writers were overtaken"),
    };
    writeln!(out, "{bold}{}{bold:#}, locks of {}", plain(&report.resource), plain(&report.engine))?;
    writeln!(out, "{writers} writers, TTL {}, {until}, seed {seed}\n", time(*ttl))?;
    print_counts(&report.results, out)?;
    writeln!(out)?;
    print_verdicts(&report.results, out)?;
    out.flush()
}

/// Prints the table of the counts.
pub(super) fn print_counts(results: &[(Fencing, Counts)], out: &mut impl Write) -> io::Result<()> {
    let columns = ["FENCING", "ACKNOWLEDGED", "REFUSED", "LOST", "PAUSES", "OVERTAKEN"];
    let mut table = table::table(&columns.map(Short));
    for (fencing, counts) in results {
        let Counts { acknowledged, refused, lost, pauses, overtaken, .. } = counts;
        let numbers = [acknowledged, refused, lost, pauses, overtaken];
        table.add_row(std::iter::once(fencing.name().to_owned()).chain(numbers.map(u64::to_string)));
    }
    table::print(&table, out)
}

/// Prints a line about each result.
pub(super) fn print_verdicts(results: &[(Fencing, Counts)], out: &mut impl Write) -> io::Result<()> {
    for (fencing, counts) in results {
        let colour = match (verdict_of(*fencing, counts), fencing) {
            (Verdict::Shown, Fencing::Strict) => AnsiColor::Green.on_default().bold(),
            (Verdict::Shown, _) if counts.lost == 0 => Style::new(),
            _ => AnsiColor::Red.on_default().bold(),
        };
        writeln!(out, "{colour}{}: {}{colour:#}", fencing.name(), verdict(*fencing, counts))?;
        if counts.unknown + counts.failed > 0 {
            let Counts { unknown, failed, last_error, .. } = counts;
            let last_error = plain(last_error.as_deref().unwrap_or_default());
            writeln!(
                out,
                "  {failed} attempts failed, and {unknown} ended without an answer; the last: {last_error}"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(plan: &Plan, counts: [Counts; 3]) -> Report<'_> {
        let results = Fencing::ALL.into_iter().zip(counts).collect();
        Report { plan, resource: "a file".to_owned(), engine: "embedded:".to_owned(), results }
    }

    fn plan() -> Plan {
        let (engine, resource, ttl) = (String::new(), String::new(), Duration::from_secs(2));
        let settings = Settings { engine, resource, writers: 5, ttl, seed: 7 };
        Plan { settings, until: Until::Passed(Duration::from_secs(20)) }
    }

    fn counts() -> [Counts; 3] {
        let common = Counts { acknowledged: 500, number: 500, pauses: 9, overtaken: 7, ..Counts::default() };
        [
            Counts { lost: 120, repeated: 90, number: 380, ..common.clone() },
            Counts { lost: 2, repeated: 2, number: 498, refused: 5, ..common.clone() },
            Counts { refused: 7, ..common },
        ]
    }

    fn text(report: &Report<'_>) -> String {
        let mut text = Vec::new();
        as_text(report, &mut text).unwrap();
        anstream::adapter::strip_bytes(&text).into_vec().try_into().unwrap()
    }

    #[test]
    fn the_report_is_a_table_with_a_verdict_per_run() {
        let plan = plan();
        let report = report(&plan, counts());
        assert_eq!(report.exit_code(), 0);
        insta::assert_snapshot!(text(&report));
    }

    #[test]
    fn an_update_lost_behind_the_strict_fence_is_reported() {
        let plan = plan();
        for broken in [
            Counts { lost: 1, number: 499, ..counts()[2].clone() },
            // One was lost and one applied twice: the sum is right.
            Counts { repeated: 1, ..counts()[2].clone() },
            Counts { number: 501, ..counts()[2].clone() },
        ] {
            let [none, ratchet, _] = counts();
            let report = report(&plan, [none, ratchet, broken]);
            assert_eq!(report.exit_code(), FENCE_BROKEN);
            assert!(text(&report).contains("strictly fenced: THE FENCE HAS FAILED"), "{}", text(&report));
        }
    }

    #[test]
    fn an_inconclusive_run_is_reported() {
        let plan = plan();
        let [none, ratchet, strict] = counts();
        let intact = Counts { lost: 0, repeated: 0, number: 500, ..none.clone() };
        let unproven = report(&plan, [intact, ratchet.clone(), strict.clone()]);
        assert_eq!(unproven.exit_code(), INCONCLUSIVE);
        assert!(text(&unproven).contains("no fence: nothing was lost, so nothing is proven"), "{}", text(&unproven));
        let not_overtaken =
            Counts { overtaken: 0, refused: 0, failed: 2, last_error: Some("away\u{1b}".to_owned()), ..strict };
        let unproven = report(&plan, [none, ratchet, not_overtaken]);
        assert_eq!(unproven.exit_code(), INCONCLUSIVE);
        insta::assert_snapshot!(text(&unproven));
    }
}
