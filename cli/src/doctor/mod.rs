//! `palisade doctor`: reports the engine's guarantees, its speed, and settings that threaten its promises.

mod consul;
mod embedded;
#[cfg(feature = "etcd")]
mod etcd;
mod finding;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod service;
mod show;
mod speed;
mod zookeeper;

pub(crate) use redis::missing_replicas;

use std::env;
use std::time::Duration;

use palisade::engine::Guarantees;
use palisade::{Error, ErrorKind, Limit, Misuse, Palisade, Refusal};

use self::finding::Finding;
use self::speed::Speed;
use crate::outcome::{Failure, message_of, unless_closed};
use crate::settings::Settings;
use crate::stop;
use crate::text::{self, plain};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade doctor
  palisade doctor embedded:///var/lib/app/locks.db
  palisade doctor --json | jq '.findings[] | select(.status != \"ok\")'

It acquires and releases a test lock a few times: palisade-doctor/PID, or USER/palisade-doctor/PID where the user may \
use only that prefix, or the lock that --lock names. The exit code is 0 when the engine can be used, also with \
warnings, and 69 when it cannot.";

/// The options of `palisade doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The engine to examine, instead of the one that PALISADE_URL or the configuration names
    #[arg(id = "engine", value_name = "URL")]
    url: Option<String>,

    /// The test lock, under a name that the user may use
    #[arg(long, value_name = "NAME")]
    lock: Option<String>,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

/// The result of all checks.
struct Report {
    /// The engine's URL without its secret.
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

/// Examines the engine and prints the report.
pub(crate) async fn run(options: &Options, mut settings: Settings) -> Result<(), Failure> {
    if let Some(url) = &options.url {
        // PALISADE_URL may be set as well: the argument takes precedence over it.
        let is_url = |arg: &str| arg == "--url" || arg.starts_with("--url=");
        if env::args_os().any(|arg| is_url(&arg.to_string_lossy())) {
            return Err(Failure::Misuse(
                "two URLs: give the engine to examine once, with or without --url".to_owned(),
            ));
        }
        settings.url.clone_from(url);
    }
    stop::until_stopped(async {
        let report = examine(&settings, options.lock.as_deref()).await?;
        let mut out = anstream::stdout().lock();
        unless_closed(match options.json {
            true => show::as_json(&report, &mut out),
            false => show::as_text(&report, &mut out),
        })?;
        match report.is_usable() {
            true => Ok(()),
            false => {
                let message = format!("'{}' cannot be used; the report says why and what to do", plain(&report.url));
                Err(Failure::Unavailable(message))
            }
        }
    })
    .await
}

async fn examine(settings: &Settings, lock: Option<&str>) -> Result<Report, Failure> {
    let mut report = Report { url: settings.redacted_url(), guarantees: None, speed: None, findings: Vec::new() };
    let mut answers = check_answers(settings, settings.ttl, lock, &mut report).await;
    if let Err(error) = &answers
        && let Some(longest) = longest_ttl(error)
    {
        report.findings.push(Finding::failure("ttl", message_of(error), None));
        answers = check_answers(settings, Some(longest), lock, &mut report).await;
    }
    match answers {
        Ok(finding) => report.findings.push(finding),
        Err(error) if is_misuse(&error) => return Err(error.into()),
        Err(error) if lock.is_none() && report.guarantees.is_some() && is_denied(&error) => {
            let advice = "name a lock that this user may use: palisade doctor --lock NAME".to_owned();
            report.findings.push(Finding::failure("answers", message_of(&error), advice));
        }
        Err(error) => report.findings.push(Finding::failure("answers", message_of(&error), None)),
    }
    // After connecting, because connecting creates the default directory.
    report.findings.extend(engine_findings(&settings.url, settings.ttl).await);
    Ok(report)
}

/// Checks that the engine answers. Also stores its guarantees and its speed in the report.
async fn check_answers(
    settings: &Settings,
    ttl: Option<Duration>,
    lock: Option<&str>,
    report: &mut Report,
) -> Result<Finding, Error> {
    let label = text::label(settings.label.clone().unwrap_or_else(|| "palisade doctor".to_owned()));
    let options = palisade::Options::new().label(label);
    let options = match ttl {
        Some(ttl) => options.ttl(ttl),
        None => options,
    };
    let palisade = options.connect(&settings.url).await?;
    let guarantees = report.guarantees.insert(palisade.guarantees().clone());
    let mut names = lock.map_or_else(|| test_lock_names(&settings.url), |lock| vec![lock.to_owned()]);
    let mut name = names.remove(0);
    let mut measured = speed::measure(&palisade, &name).await;
    // The user may have logged in and yet have rights for other names only.
    for other in names {
        if measured.as_ref().is_err_and(is_denied) {
            name = other;
            measured = speed::measure(&palisade, &name).await;
        }
    }
    let Some(speed) = measured? else {
        let advice = format!("see its holder: palisade show {name}");
        return Ok(Finding::failure("answers", format!("another session holds '{name}'"), advice));
    };
    if guarantees.offers.signed {
        guarantees.offers.signed = signs(&palisade, &name).await?;
    }
    palisade.close().await?;
    let finding = speed::judge(&speed, ttl.unwrap_or(palisade::Options::TTL));
    report.speed = Some(speed);
    Ok(finding)
}

/// Returns names of test locks that no application uses. A user of a service also gets one under the prefix that
/// `serve --new-user` suggests.
fn test_lock_names(url: &str) -> Vec<String> {
    let own = format!("palisade-doctor/{}", std::process::id());
    let config = match url.split_once(':') {
        Some(("palisade", rest)) => palisade::engine::service::Config::parse(rest).ok(),
        Some(("palisades", rest)) => palisade::engine::service::Config::parse_encrypted(rest).ok(),
        _ => None,
    };
    let user = config.and_then(|config| config.login).map(|login| format!("{}/{own}", login.user));
    std::iter::once(own).chain(user).collect()
}

/// Returns whether the service signs tokens, which is an option of `palisade serve`.
async fn signs(palisade: &Palisade, lock: &str) -> Result<bool, Error> {
    let guard = palisade.lock(lock).acquire().await?;
    let signed = guard.signed_token().await;
    guard.release().await?;
    match signed {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::Outage { is_retryable: false, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_denied(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Denied { .. })
}

fn is_misuse(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Misuse(_) | ErrorKind::Unsupported { .. })
}

/// Returns the longest TTL that the engine accepts, if it refused a longer one.
fn longest_ttl(error: &Error) -> Option<Duration> {
    match error.kind() {
        ErrorKind::Misuse(Misuse::Refused(Refusal::OverLimit { limit: Limit::TtlMaxMs, max, .. })) => {
            Some(Duration::from_millis(*max))
        }
        _ => None,
    }
}

/// Runs the checks of this kind of engine.
async fn engine_findings(url: &str, ttl: Option<Duration>) -> Vec<Finding> {
    match url.split_once(':').unwrap_or((url, "")) {
        ("consul", rest) => consul::findings(rest, false, ttl).await,
        ("consuls", rest) => consul::findings(rest, true, ttl).await,
        ("embedded", rest) => embedded::findings(rest),
        #[cfg(feature = "etcd")]
        ("etcd", rest) => etcd::findings(rest, false).await,
        #[cfg(feature = "etcd")]
        ("etcds", rest) => etcd::findings(rest, true).await,
        ("mysql", rest) => mysql::findings(rest).await,
        ("postgres" | "postgresql", rest) => postgres::findings(rest).await,
        ("palisade", rest) => service::findings(rest, false).await,
        ("palisades", rest) => service::findings(rest, true).await,
        ("redis", rest) => redis::findings(rest, false).await,
        ("rediss", rest) => redis::findings(rest, true).await,
        ("redlock", rest) => redlock::findings(rest).await,
        ("zookeeper" | "zk", rest) => zookeeper::findings(rest).await,
        ("memory", _) => vec![Finding::warning(
            "sharing",
            "the locks are in the memory of one process: other processes do not see them",
            "use memory: in tests only; embedded: is shared by the processes of this host",
        )],
        _ => Vec::new(),
    }
}

/// Whether a host name means this host.
fn is_this_host(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().map_or(host == "localhost", |address| address.is_loopback())
}
