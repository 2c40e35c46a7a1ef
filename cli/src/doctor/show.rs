//! The report, as text or as JSON.

use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use palisade::engine::{Guarantees, Level, Offers, Order, SessionClock, WakeUp};
use serde::Serialize;

use super::Report;
use super::finding::{Finding, Status};
use super::speed::Speed;
use crate::text::{plain, print_json};

/// The version of [`Json`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    url: &'a str,
    usable: bool,
    guarantees: Option<&'a Guarantees>,
    speed: Option<&'a Speed>,
    findings: &'a [Finding],
}

/// Writes the report as JSON.
pub(super) fn as_json(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let json = Json {
        schema: SCHEMA,
        url: &report.url,
        usable: report.is_usable(),
        guarantees: report.guarantees.as_ref(),
        speed: report.speed.as_ref(),
        findings: &report.findings,
    };
    print_json(&json, out)
}

/// Writes the report as text.
pub(super) fn as_text(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let (bold, dim) = (Style::new().bold(), Style::new().dimmed());
    writeln!(out, "{bold}{}{bold:#}", plain(&report.url))?;
    if let Some(guarantees) = &report.guarantees {
        writeln!(out)?;
        for (word, promise) in promises(guarantees) {
            writeln!(out, "{dim}{word:<8}{dim:#}  {promise}")?;
        }
    }
    writeln!(out)?;
    for finding in &report.findings {
        let (colour, word) = status_word(finding.status);
        writeln!(out, "{colour}{word:<7}{colour:#}  {:<11}  {}", finding.check, plain(&finding.says))?;
        if let Some(advice) = &finding.advice {
            writeln!(out, "{:22}{dim}to do:{dim:#} {}", "", plain(advice))?;
        }
    }
    writeln!(out, "\n{}", summary(report))?;
    out.flush()
}

fn status_word(status: Status) -> (Style, &'static str) {
    match status {
        Status::Ok => (AnsiColor::Green.on_default(), "ok"),
        Status::Warning => (AnsiColor::Yellow.on_default().bold(), "warning"),
        Status::Failure => (AnsiColor::Red.on_default().bold(), "failure"),
    }
}

fn summary(report: &Report) -> String {
    let warnings = report.findings.iter().filter(|finding| finding.status == Status::Warning).count();
    match (report.is_usable(), warnings) {
        (false, _) => "It cannot be used.".to_owned(),
        (true, 0) => "It can be used.".to_owned(),
        (true, 1) => "It can be used, with 1 warning.".to_owned(),
        (true, warnings) => format!("It can be used, with {warnings} warnings."),
    }
}

/// Returns the engine's guarantees in words.
fn promises(guarantees: &Guarantees) -> [(&'static str, String); 5] {
    let level = match guarantees.level {
        Level::Fenced => "tokens never go down. Fit for correctness, where the resource checks the token",
        Level::HealthyOnly => "tokens rise until a failover takes some back. Fit for efficiency only",
        Level::Advisory => "there are no tokens. Fit for efficiency only",
    };
    let order = match guarantees.order {
        Order::Fair => "fair: first come, first served, over all processes",
        Order::Race => "race: a free lock goes to the first request, and a waiter may be overtaken again and again",
    };
    let clock = match guarantees.session_clock {
        SessionClock::SameHost => "this host's boot clock ends sessions; it also counts while the host is suspended",
        SessionClock::Engine => "the engine's own monotonic clock ends sessions",
        SessionClock::Store => {
            "the wall clock of the store's server ends sessions: a jump of it ends one too early or too late"
        }
    };
    let wake_up = match guarantees.wake_up {
        WakeUp::Pushed => "pushed: the engine notifies a waiter when the lock is granted",
        WakeUp::Polled => "polled: a waiter asks again and again, so it notices its grant late",
    };
    [
        ("level", format!("{}: {level}", guarantees.level)),
        ("order", order.to_owned()),
        ("clock", clock.to_owned()),
        ("wake-up", wake_up.to_owned()),
        ("offers", offers(&guarantees.offers)),
    ]
}

fn offers(offers: &Offers) -> String {
    let Offers { shared, permits, resize, several, values, delay, force_release, list, watch, detach, signed } =
        *offers;
    let all = [
        (true, "locks"),
        (shared, "shared locks"),
        (permits, "semaphores"),
        (resize, "resizing"),
        (several, "several at once"),
        (values, "elections"),
        (delay, "lock-delay"),
        (force_release, "force-release"),
        (list, "listing"),
        (watch, "watching"),
        (detach, "leases"),
        (signed, "signed tokens"),
    ];
    let list = |is_offered: bool| {
        let words: Vec<_> = all.iter().filter(|(has, _)| *has == is_offered).map(|(_, word)| *word).collect();
        words.join(", ")
    };
    match list(false).as_str() {
        "" => list(true),
        missing => format!("{}; not {missing}", list(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_features_are_listed() {
        assert!(!offers(&Offers::ALL).contains("not"));
        let some = Offers { permits: false, watch: false, ..Offers::ALL };
        let text = offers(&some);
        assert!(text.ends_with("signed tokens; not semaphores, watching"), "{text}");
    }

    #[test]
    fn an_engine_without_tokens_is_not_called_fit_for_correctness() {
        for level in [Level::Advisory, Level::HealthyOnly] {
            let guarantees = Guarantees {
                engine: "poor",
                level,
                order: Order::Race,
                session_clock: SessionClock::Engine,
                wake_up: WakeUp::Polled,
                offers: Offers::ALL,
            };
            let words: Vec<String> = promises(&guarantees).into_iter().map(|(_, promise)| promise).collect();
            assert!(words[0].ends_with("Fit for efficiency only"), "{words:?}");
            assert!(!words.concat().contains("correctness"), "{words:?}");
        }
    }
}
