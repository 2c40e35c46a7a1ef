//! `palisade doctor`: what the engine promises, whether it answers, how fast, and what could spoil it here.

mod embedded;
mod finding;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod show;
mod speed;

use palisade::engine::Guarantees;
use palisade::{Error, ErrorKind};

use self::finding::Finding;
use self::speed::Speed;
use crate::outcome::{Failure, unless_closed};
use crate::settings::Settings;
use crate::stop;
use crate::text::{self, plain};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade doctor
  palisade doctor embedded:///var/lib/app/locks.db
  palisade doctor --json | jq '.findings[] | select(.status != \"ok\")'

It takes and frees a lock of its own, palisade-doctor/PID, a few times. The exit code is 0 when the engine can be used, \
also with warnings, and 69 when it cannot.";

/// The options of `palisade doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The engine to look at, instead of the one that --url or the configuration names
    #[arg(id = "engine", value_name = "URL")]
    url: Option<String>,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

/// All that was found out.
struct Report {
    /// Without its secret.
    url: String,
    /// `None` when the engine cannot be reached.
    guarantees: Option<Guarantees>,
    speed: Option<Speed>,
    findings: Vec<Finding>,
}

impl Report {
    fn is_usable(&self) -> bool {
        !self.findings.iter().any(Finding::is_failure)
    }
}

/// Looks at the engine and prints what it found.
pub(crate) async fn run(options: &Options, mut settings: Settings) -> Result<(), Failure> {
    if let Some(url) = &options.url {
        settings.url.clone_from(url);
    }
    stop::unless_stopped(async {
        let report = examine(&settings).await?;
        let mut out = anstream::stdout().lock();
        unless_closed(match options.json {
            true => show::as_json(&report, &mut out),
            false => show::as_text(&report, &mut out),
        })?;
        match report.is_usable() {
            true => Ok(()),
            false => {
                let message = format!("'{}' cannot be used; the report says why and what to do", plain(&report.url));
                Err(Failure::Unreachable(message))
            }
        }
    })
    .await
}

async fn examine(settings: &Settings) -> Result<Report, Failure> {
    let mut report = Report { url: settings.shown_url(), guarantees: None, speed: None, findings: Vec::new() };
    match answers(settings, &mut report).await {
        Ok(finding) => report.findings.push(finding),
        Err(error) if is_misuse(&error) => return Err(error.into()),
        Err(error) => report.findings.push(Finding::failure("answers", error.to_string(), None)),
    }
    // Only now: the default directory is made by whoever connects first.
    report.findings.extend(particulars(&settings.url).await);
    Ok(report)
}

/// Whether the engine answers. Notes on the way what it says about itself.
async fn answers(settings: &Settings, report: &mut Report) -> Result<Finding, Error> {
    let label = text::label(settings.label.clone().unwrap_or_else(|| "palisade doctor".to_owned()));
    let options = palisade::Options::new().label(label);
    let options = match settings.ttl {
        Some(ttl) => options.ttl(ttl),
        None => options,
    };
    let palisade = options.connect(&settings.url).await?;
    report.guarantees = Some(palisade.guarantees().clone());
    let Some(speed) = speed::measure(&palisade).await? else {
        let name = speed::lock_name();
        let advice = format!("see who holds it: palisade show {name}");
        return Ok(Finding::failure("answers", format!("somebody else holds '{name}'"), advice));
    };
    palisade.close().await?;
    let finding = speed::judge(&speed);
    report.speed = Some(speed);
    Ok(finding)
}

fn is_misuse(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Misuse(_) | ErrorKind::Unsupported { .. })
}

/// What only this kind of engine has to be asked.
async fn particulars(url: &str) -> Vec<Finding> {
    match url.split_once(':').unwrap_or((url, "")) {
        ("embedded", rest) => embedded::findings(rest),
        ("mysql", rest) => mysql::findings(rest).await,
        ("postgres" | "postgresql", rest) => postgres::findings(rest).await,
        ("palisade", rest) => in_the_open(rest).into_iter().collect(),
        ("redis", rest) => redis::findings(rest, false).await,
        ("rediss", rest) => redis::findings(rest, true).await,
        ("redlock", rest) => redlock::findings(rest).await,
        ("memory", _) => vec![Finding::warning(
            "sharing",
            "the locks are in the memory of one process and exclude nobody else",
            "use memory: in tests only; embedded: is shared by the processes of this host",
        )],
        _ => Vec::new(),
    }
}

/// Whether a host is this one.
fn is_here(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().map_or(host == "localhost", |address| address.is_loopback())
}

/// A secret that anybody on the way can read.
fn in_the_open(rest: &str) -> Option<Finding> {
    let config = palisade::engine::service::Config::parse(rest).ok()?;
    (config.login.is_some() && !is_here(&config.host)).then(|| {
        let says = "the user's secret and all answers go over the network as they are";
        Finding::warning("encryption", says, "say palisades:// instead of palisade://")
    })
}
