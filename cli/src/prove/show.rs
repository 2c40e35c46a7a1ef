//! What came of the pauses: for people, and as JSON for programs.

use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use super::measure::{Counts, Plan, Until};
use super::scheme::Scheme;
use super::{FENCE_BROKEN, INCONCLUSIVE};
use crate::text::{plain, print_json, time};
use crate::view::table::{self, Column::Short};

/// Raised when a field of [`Json`] changes its name, its place or its meaning.
const SCHEMA: u32 = 1;

/// What came of it.
pub(super) struct Report<'a> {
    pub(super) plan: &'a Plan,
    pub(super) resource: String,
    pub(super) engine: String,
    pub(super) schemes: Vec<(Scheme, Counts)>,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    resource: &'a str,
    engine: &'a str,
    writers: usize,
    ttl_ms: u128,
    seed: u64,
    schemes: Vec<JsonScheme<'a>>,
    shown: bool,
}

#[derive(Serialize)]
struct JsonScheme<'a> {
    scheme: Scheme,
    #[serde(flatten)]
    counts: &'a Counts,
    verdict: String,
}

/// How a scheme has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// As was to be shown.
    Shown,
    /// It proves nothing.
    Inconclusive,
    /// The fence has let through what it must not.
    Broken,
}

impl Report<'_> {
    /// What the shell sees.
    pub(super) fn exit_code(&self) -> u8 {
        let verdicts: Vec<Verdict> =
            self.schemes.iter().map(|(scheme, counts)| verdict_of(*scheme, counts)).collect();
        if verdicts.contains(&Verdict::Broken) {
            FENCE_BROKEN
        } else if verdicts.contains(&Verdict::Inconclusive) {
            INCONCLUSIVE
        } else {
            0
        }
    }
}

fn verdict_of(scheme: Scheme, counts: &Counts) -> Verdict {
    let is_whole = counts.lost == 0 && counts.repeated == 0 && counts.number <= counts.acknowledged + counts.unsure;
    match scheme {
        Scheme::Strict if !is_whole => Verdict::Broken,
        Scheme::Strict if counts.acknowledged == 0 || counts.overtaken == 0 => Verdict::Inconclusive,
        Scheme::None if counts.lost == 0 => Verdict::Inconclusive,
        Scheme::None | Scheme::Ratchet | Scheme::Strict => Verdict::Shown,
    }
}

/// One line about one scheme.
fn verdict(scheme: Scheme, counts: &Counts) -> String {
    let Counts { acknowledged, lost, repeated, number, .. } = counts;
    match (scheme, verdict_of(scheme, counts)) {
        (_, Verdict::Broken) => format!(
            "THE FENCE HAS FAILED: {acknowledged} updates were acknowledged, the number is {number}, and {repeated} of \
             them wrote a number twice; this must never happen, please report it with what stands above"
        ),
        (Scheme::Strict, Verdict::Inconclusive) => {
            "no writer was overtaken, so nothing is shown; try longer (--for), or more writers".to_owned()
        }
        (Scheme::Strict, Verdict::Shown) => {
            format!(
                "nothing is lost: all {acknowledged} acknowledged updates are there, and late writes were refused"
            )
        }
        (Scheme::Ratchet, _) if *lost == 0 => {
            "nothing was lost this time; `palisade prove order` shows how a ratchet loses updates".to_owned()
        }
        (_, Verdict::Inconclusive) => {
            "nothing was lost, so nothing is shown; try longer (--for), or more writers".to_owned()
        }
        (_, Verdict::Shown) => format!("{lost} of {acknowledged} acknowledged updates are gone"),
    }
}

/// For programs.
pub(super) fn as_json(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let schemes = report.schemes.iter().map(|(scheme, counts)| {
        let verdict = verdict(*scheme, counts);
        JsonScheme { scheme: *scheme, counts, verdict }
    });
    let json = Json {
        schema: SCHEMA,
        resource: &report.resource,
        engine: &report.engine,
        writers: report.plan.writers,
        ttl_ms: report.plan.ttl.as_millis(),
        seed: report.plan.seed,
        schemes: schemes.collect(),
        shown: report.exit_code() == 0,
    };
    print_json(&json, out)
}

/// For people.
pub(super) fn as_text(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let Plan { writers, ttl, until, seed, .. } = report.plan;
    let bold = Style::new().bold();
    let until = match until {
        Until::Passed(all) => format!("{} each", time(*all)),
        Until::Overtaken(1) => "until one was overtaken".to_owned(),
        Until::Overtaken(times) => format!("until {times} were overtaken"),
    };
    writeln!(out, "{bold}{}{bold:#}, locks of {}", plain(&report.resource), plain(&report.engine))?;
    writeln!(out, "{writers} writers, TTL {}, {until}, seed {seed}\n", time(*ttl))?;
    let columns = ["SCHEME", "ACKNOWLEDGED", "REFUSED", "LOST", "PAUSES", "OVERTAKEN"];
    let mut table = table::table(&columns.map(Short));
    for (scheme, counts) in &report.schemes {
        let Counts { acknowledged, refused, lost, pauses, overtaken, .. } = counts;
        let numbers = [acknowledged, refused, lost, pauses, overtaken];
        table.add_row(std::iter::once(scheme.name().to_owned()).chain(numbers.map(u64::to_string)));
    }
    table::print(&table, out)?;
    writeln!(out)?;
    for (scheme, counts) in &report.schemes {
        let colour = match (verdict_of(*scheme, counts), scheme) {
            (Verdict::Shown, Scheme::Strict) => AnsiColor::Green.on_default().bold(),
            (Verdict::Shown, _) if counts.lost == 0 => Style::new(),
            _ => AnsiColor::Red.on_default().bold(),
        };
        writeln!(out, "{colour}{}: {}{colour:#}", scheme.name(), verdict(*scheme, counts))?;
        if counts.unsure + counts.failed > 0 {
            let Counts { unsure, failed, trouble, .. } = counts;
            let trouble = plain(trouble.as_deref().unwrap_or_default());
            writeln!(out, "  {failed} attempts failed, and {unsure} ended without an answer; the last: {trouble}")?;
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(plan: &Plan, counts: [Counts; 3]) -> Report<'_> {
        let schemes = Scheme::ALL.into_iter().zip(counts).collect();
        Report { plan, resource: "a file".to_owned(), engine: "embedded:".to_owned(), schemes }
    }

    fn plan() -> Plan {
        Plan {
            engine: String::new(),
            resource: String::new(),
            writers: 5,
            ttl: Duration::from_secs(2),
            until: Until::Passed(Duration::from_secs(20)),
            seed: 7,
        }
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
    fn the_report_is_a_table_with_a_verdict_per_scheme() {
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
        let whole = Counts { lost: 0, repeated: 0, number: 500, ..none.clone() };
        let unproven = report(&plan, [whole, ratchet.clone(), strict.clone()]);
        assert_eq!(unproven.exit_code(), INCONCLUSIVE);
        assert!(text(&unproven).contains("no fence: nothing was lost, so nothing is shown"), "{}", text(&unproven));
        let unhurt = Counts { overtaken: 0, refused: 0, failed: 2, trouble: Some("away\u{1b}".to_owned()), ..strict };
        let unproven = report(&plan, [none, ratchet, unhurt]);
        assert_eq!(unproven.exit_code(), INCONCLUSIVE);
        insta::assert_snapshot!(text(&unproven));
    }
}
