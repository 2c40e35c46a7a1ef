//! `palisade prove order`: a stale holder's delayed write lands between the current holder's read and its write.

use std::io::{self, Write};
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use palisade::Token;
use serde::Serialize;

use super::fencing::Fencing;
use super::store::{self, Access, Store, StoreError};
use super::{FENCE_BROKEN, INCONCLUSIVE, ResourceArgs, connect, lock_name, unused_name};
use crate::args::Global;
use crate::outcome::{Failure, unless_closed};
use crate::stop::until_stopped;
use crate::text::{plain, print_json};

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;
/// Longer than the run: no session expires. The run closes A's session instead of waiting for its TTL.
const TTL: Duration = Duration::from_secs(30);

/// The options of `palisade prove order`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    resource: ResourceArgs,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    resource: String,
    engine: String,
    #[serde(rename = "schemes")]
    results: Vec<Timeline>,
}

/// The steps and the result with one kind of fencing.
#[derive(Serialize)]
struct Timeline {
    #[serde(rename = "scheme")]
    fencing: Fencing,
    steps: Vec<String>,
    acknowledged: u64,
    number: u64,
    lost: u64,
}

/// Runs the same schedule with each kind of fencing.
pub(super) async fn run(options: &Options, global: &Global) -> Result<(), Failure> {
    let setup = options.resource.prepare(global).await?;
    let engine = palisade::split_secret(&setup.engine).0;
    let mut report = Report { schema: SCHEMA, resource: String::new(), engine, results: Vec::new() };
    let run_all = async {
        for fencing in Fencing::ALL {
            let name = unused_name();
            let store = store::open(&setup.resource, &name).await?;
            report.resource = store.describe();
            store.create_data(fencing).await?;
            let timeline = run_schedule(&setup.engine, &name, &*store, fencing).await;
            let removed = store.remove().await;
            report.results.push(timeline?);
            removed?;
        }
        Ok(())
    };
    until_stopped(run_all).await?;
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => print_json(&report, &mut out),
        false => as_text(&report, &mut out),
    })?;
    match exit_code(&report.results) {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}

/// A reads and loses its session; B reads; A's write arrives; B writes.
async fn run_schedule(engine: &str, name: &str, store: &dyn Store, fencing: Fencing) -> Result<Timeline, Failure> {
    let mut timeline = Timeline { fencing, steps: Vec::new(), acknowledged: 0, number: 0, lost: 0 };
    let (client_a, client_b) = (connect(engine, TTL).await?, connect(engine, TTL).await?);

    let guard = client_a.lock(lock_name(name)).acquire().await?;
    let (mut a, read_by_a) = timeline.begin("A", store, guard.token()?).await?;
    // The engine ends the session, as it does when a TTL expires.
    client_a.close().await?;
    timeline.step("A's session is ended, as if A were paused for longer than its TTL".to_owned());

    let guard = client_b.lock(lock_name(name)).acquire().await?;
    let (mut b, read_by_b) = timeline.begin("B", store, guard.token()?).await?;
    timeline.step("A goes on, and knows nothing of it".to_owned());
    timeline.write("A", &mut a, read_by_a + 1).await?;
    timeline.write("B", &mut b, read_by_b + 1).await?;
    timeline.number = b.read().await?;
    guard.release().await?;
    client_b.close().await?;
    timeline.lost = timeline.acknowledged.saturating_sub(timeline.number);
    Ok(timeline)
}

impl Timeline {
    fn step(&mut self, text: String) {
        self.steps.push(text);
    }

    /// Seals the resource, if it is strictly fenced, and reads.
    async fn begin<'s>(
        &mut self,
        client: &str,
        store: &'s dyn Store,
        token: Token,
    ) -> Result<(Access<'s>, u64), Failure> {
        self.step(format!("{client} has the lock, with token {token}"));
        let access = Access::begin(store, self.fencing, token).await?;
        if self.fencing == Fencing::Strict {
            self.step(format!("{client} seals the resource with token {token}"));
        }
        let number = access.read().await?;
        self.step(format!("{client} reads {number}"));
        Ok((access, number))
    }

    async fn write(&mut self, client: &str, access: &mut Access<'_>, number: u64) -> Result<(), Failure> {
        match access.write(number).await {
            Ok(()) => {
                self.acknowledged += 1;
                self.step(format!("{client} writes {number}, and the write is acknowledged"));
            }
            Err(StoreError::Refused(_)) => self.step(format!("{client} writes {number}, and the write is refused")),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn verdict(&self) -> String {
        match self.lost {
            0 => format!(
                "NOTHING LOST: {} update was acknowledged, and the number is {}",
                self.acknowledged, self.number
            ),
            _ => format!("LOST: {} updates were acknowledged, and the number is {}", self.acknowledged, self.number),
        }
    }
}

fn exit_code(results: &[Timeline]) -> u8 {
    let lost = |fencing| results.iter().any(|timeline| timeline.fencing == fencing && timeline.lost > 0);
    if lost(Fencing::Strict) {
        FENCE_BROKEN
    } else if !lost(Fencing::None) || !lost(Fencing::Ratchet) {
        INCONCLUSIVE
    } else {
        0
    }
}

fn as_text(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(out, "{}, locks of {}", plain(&report.resource), plain(&report.engine))?;
    for timeline in &report.results {
        writeln!(out, "\n{bold}{}{bold:#}", timeline.fencing.name())?;
        for step in &timeline.steps {
            writeln!(out, "  {step}")?;
        }
        let colour = match timeline.lost {
            0 => AnsiColor::Green,
            _ => AnsiColor::Red,
        };
        let colour = colour.on_default().bold();
        writeln!(out, "  {colour}{}{colour:#}", timeline.verdict())?;
    }
    out.flush()
}
