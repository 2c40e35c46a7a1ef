//! What came of the pauses: for people, and as JSON for programs.

use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use super::scheme::Scheme;
use super::trial::{Plan, Tally, Until};
use super::{FENCE_BROKEN, NOTHING_SHOWN};
use crate::look::table::{self, Column::Short};
use crate::text::{plain, print_json, time};

/// Raised when a field of [`Json`] changes its name, its place or its meaning.
const SCHEMA: u32 = 1;

/// What came of it.
pub(super) struct Report<'a> {
    pub(super) plan: &'a Plan,
    pub(super) resource: String,
    pub(super) engine: String,
    pub(super) schemes: Vec<(Scheme, Tally)>,
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
    tally: &'a Tally,
    verdict: String,
}

/// How a scheme has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// As was to be shown.
    Shown,
    /// It proves nothing.
    NothingShown,
    /// The fence has let through what it must not.
    Broken,
}

impl Report<'_> {
    /// What the shell sees.
    pub(super) fn exit_code(&self) -> u8 {
        let standings: Vec<Standing> = self.schemes.iter().map(|(scheme, tally)| standing(*scheme, tally)).collect();
        if standings.contains(&Standing::Broken) {
            FENCE_BROKEN
        } else if standings.contains(&Standing::NothingShown) {
            NOTHING_SHOWN
        } else {
            0
        }
    }
}

fn standing(scheme: Scheme, tally: &Tally) -> Standing {
    let is_whole = tally.lost == 0 && tally.repeated == 0 && tally.number <= tally.acknowledged + tally.unsure;
    match scheme {
        Scheme::Strict if !is_whole => Standing::Broken,
        Scheme::Strict if tally.acknowledged == 0 || tally.overtaken == 0 => Standing::NothingShown,
        Scheme::None if tally.lost == 0 => Standing::NothingShown,
        Scheme::None | Scheme::Ratchet | Scheme::Strict => Standing::Shown,
    }
}

/// One line about one scheme.
fn verdict(scheme: Scheme, tally: &Tally) -> String {
    let Tally { acknowledged, lost, repeated, number, .. } = tally;
    match (scheme, standing(scheme, tally)) {
        (_, Standing::Broken) => format!(
            "THE FENCE HAS FAILED: {acknowledged} updates were acknowledged, the number is {number}, and {repeated} of \
             them wrote a number twice; this must never happen, please report it with what stands above"
        ),
        (Scheme::Strict, Standing::NothingShown) => {
            "nobody was overtaken, so nothing is shown; try longer (--for), or more writers".to_owned()
        }
        (Scheme::Strict, Standing::Shown) => {
            format!(
                "nothing is lost: all {acknowledged} acknowledged updates are there, and who was late was refused"
            )
        }
        (Scheme::Ratchet, _) if *lost == 0 => {
            "nothing was lost this time; `palisade prove order` shows how a ratchet loses updates".to_owned()
        }
        (_, Standing::NothingShown) => {
            "nothing was lost, so nothing is shown; try longer (--for), or more writers".to_owned()
        }
        (_, Standing::Shown) => format!("{lost} of {acknowledged} acknowledged updates are gone"),
    }
}

/// For programs.
pub(super) fn as_json(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let schemes = report.schemes.iter().map(|(scheme, tally)| {
        let verdict = verdict(*scheme, tally);
        JsonScheme { scheme: *scheme, tally, verdict }
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
    for (scheme, tally) in &report.schemes {
        let Tally { acknowledged, refused, lost, pauses, overtaken, .. } = tally;
        let numbers = [acknowledged, refused, lost, pauses, overtaken];
        table.add_row(std::iter::once(scheme.name().to_owned()).chain(numbers.map(u64::to_string)));
    }
    table::print(&table, out)?;
    writeln!(out)?;
    for (scheme, tally) in &report.schemes {
        let colour = match (standing(*scheme, tally), scheme) {
            (Standing::Shown, Scheme::Strict) => AnsiColor::Green.on_default().bold(),
            (Standing::Shown, _) if tally.lost == 0 => Style::new(),
            _ => AnsiColor::Red.on_default().bold(),
        };
        writeln!(out, "{colour}{}: {}{colour:#}", scheme.name(), verdict(*scheme, tally))?;
        if tally.unsure + tally.failed > 0 {
            let Tally { unsure, failed, trouble, .. } = tally;
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

    fn report(plan: &Plan, tallies: [Tally; 3]) -> Report<'_> {
        let schemes = Scheme::ALL.into_iter().zip(tallies).collect();
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

    fn tallies() -> [Tally; 3] {
        let common = Tally { acknowledged: 500, number: 500, pauses: 9, overtaken: 7, ..Tally::default() };
        [
            Tally { lost: 120, repeated: 90, number: 380, ..common.clone() },
            Tally { lost: 2, repeated: 2, number: 498, refused: 5, ..common.clone() },
            Tally { refused: 7, ..common },
        ]
    }

    fn text(report: &Report<'_>) -> String {
        let mut text = Vec::new();
        as_text(report, &mut text).unwrap();
        anstream::adapter::strip_bytes(&text).into_vec().try_into().unwrap()
    }

    #[test]
    fn it_is_a_table_with_a_verdict_on_each_scheme() {
        let plan = plan();
        let report = report(&plan, tallies());
        assert_eq!(report.exit_code(), 0);
        insta::assert_snapshot!(text(&report));
    }

    #[test]
    fn an_update_that_the_strict_fence_lost_is_told_loudly() {
        let plan = plan();
        for broken in [
            Tally { lost: 1, number: 499, ..tallies()[2].clone() },
            // One was lost and one applied twice: the sum is right.
            Tally { repeated: 1, ..tallies()[2].clone() },
            Tally { number: 501, ..tallies()[2].clone() },
        ] {
            let [none, ratchet, _] = tallies();
            let report = report(&plan, [none, ratchet, broken]);
            assert_eq!(report.exit_code(), FENCE_BROKEN);
            assert!(text(&report).contains("strictly fenced: THE FENCE HAS FAILED"), "{}", text(&report));
        }
    }

    #[test]
    fn what_proves_nothing_is_told() {
        let plan = plan();
        let [none, ratchet, strict] = tallies();
        let whole = Tally { lost: 0, repeated: 0, number: 500, ..none.clone() };
        let unproven = report(&plan, [whole, ratchet.clone(), strict.clone()]);
        assert_eq!(unproven.exit_code(), NOTHING_SHOWN);
        assert!(text(&unproven).contains("no fence: nothing was lost, so nothing is shown"), "{}", text(&unproven));
        let unhurt = Tally { overtaken: 0, refused: 0, failed: 2, trouble: Some("away\u{1b}".to_owned()), ..strict };
        let unproven = report(&plan, [none, ratchet, unhurt]);
        assert_eq!(unproven.exit_code(), NOTHING_SHOWN);
        insta::assert_snapshot!(text(&unproven));
    }
}
