//! `palisade prove order`: a stale holder's delayed write lands between the current holder's read and its write.

use std::io::{self, Write};
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use palisade::Token;
use serde::Serialize;

use super::scheme::Scheme;
use super::store::{self, Access, Store, StoreError};
use super::{FENCE_BROKEN, INCONCLUSIVE, ResourceArgs, connect, lock, unused_name};
use crate::args::Global;
use crate::outcome::{Failure, unless_closed};
use crate::stop::until_stopped;
use crate::text::{plain, print_json};

/// Raised when a field of [`Report`] changes its name, its place or its meaning.
const SCHEMA: u32 = 1;
/// Longer than the run: closing A's session stands for a pause beyond the TTL.
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
    schemes: Vec<Timeline>,
}

/// What happened under one scheme.
#[derive(Serialize)]
struct Timeline {
    scheme: Scheme,
    steps: Vec<String>,
    acknowledged: u64,
    number: u64,
    lost: u64,
}

/// Shows the same schedule under each scheme.
pub(super) async fn run(options: &Options, global: &Global) -> Result<(), Failure> {
    let setup = options.resource.prepare(global).await?;
    let mut report = Report { schema: SCHEMA, resource: String::new(), schemes: Vec::new() };
    let play = async {
        for scheme in Scheme::ALL {
            let name = unused_name();
            let store = store::open(&setup.resource, &name).await?;
            report.resource = store.describe();
            store.make(scheme).await?;
            let played = play(&setup.engine, &name, &*store, scheme).await;
            let removed = store.remove().await;
            report.schemes.push(played?);
            removed?;
        }
        Ok(())
    };
    until_stopped(play).await?;
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => print_json(&report, &mut out),
        false => as_text(&report, &mut out),
    })?;
    match exit_code(&report.schemes) {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}

/// A reads and loses its session; B reads; A's write arrives; B writes.
async fn play(engine: &str, name: &str, store: &dyn Store, scheme: Scheme) -> Result<Timeline, Failure> {
    let mut timeline = Timeline { scheme, steps: Vec::new(), acknowledged: 0, number: 0, lost: 0 };
    let (client_a, client_b) = (connect(engine, TTL).await?, connect(engine, TTL).await?);

    let guard = client_a.lock(lock(name)).acquire().await?;
    let (mut a, read_by_a) = timeline.begin("A", store, guard.token()?).await?;
    // The engine ends the session, as it does when a TTL expires.
    client_a.close().await?;
    timeline.step("A is paused, and its lock is over".to_owned());

    let guard = client_b.lock(lock(name)).acquire().await?;
    let (mut b, read_by_b) = timeline.begin("B", store, guard.token()?).await?;
    timeline.step("A wakes".to_owned());
    timeline.write("A", &mut a, read_by_a + 1).await?;
    timeline.write("B", &mut b, read_by_b + 1).await?;
    timeline.number = b.read().await?;
    guard.release().await?;
    client_b.close().await?;
    timeline.lost = timeline.acknowledged.saturating_sub(timeline.number);
    Ok(timeline)
}

impl Timeline {
    fn step(&mut self, what: String) {
        self.steps.push(what);
    }

    /// Seals, where the scheme has it, and reads.
    async fn begin<'s>(
        &mut self,
        who: &str,
        store: &'s dyn Store,
        token: Token,
    ) -> Result<(Access<'s>, u64), Failure> {
        self.step(format!("{who} has the lock, with token {token}"));
        let access = Access::begin(store, self.scheme, token).await?;
        if self.scheme == Scheme::Strict {
            self.step(format!("{who} seals the resource with token {token}"));
        }
        let number = access.read().await?;
        self.step(format!("{who} reads {number}"));
        Ok((access, number))
    }

    async fn write(&mut self, who: &str, access: &mut Access<'_>, number: u64) -> Result<(), Failure> {
        match access.write(number).await {
            Ok(()) => {
                self.acknowledged += 1;
                self.step(format!("{who} writes {number}, and is told that it is done"));
            }
            Err(StoreError::Refused(_)) => self.step(format!("{who} writes {number}, and is refused")),
            Err(trouble) => return Err(trouble.into()),
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

fn exit_code(schemes: &[Timeline]) -> u8 {
    let lost = |scheme| schemes.iter().any(|timeline| timeline.scheme == scheme && timeline.lost > 0);
    if lost(Scheme::Strict) {
        FENCE_BROKEN
    } else if !lost(Scheme::None) || !lost(Scheme::Ratchet) {
        INCONCLUSIVE
    } else {
        0
    }
}

fn as_text(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(out, "{}", plain(&report.resource))?;
    for timeline in &report.schemes {
        writeln!(out, "\n{bold}{}{bold:#}", timeline.scheme.name())?;
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
