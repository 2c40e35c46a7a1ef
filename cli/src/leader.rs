//! `palisade leader`: the leader of an election, and the value that it publishes.

use std::io::{self, Write};

use clap::builder::styling::Style;
use palisade::Leader;
use serde::Serialize;

use crate::outcome::{Failure, unless_closed};
use crate::settings::Settings;
use crate::stop;
use crate::text::plain;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade leader scheduler
  palisade leader scheduler --json | jq -r .leader.value
  palisade leader scheduler --follow

Without a leader, stderr says so and the exit code is 75. `--follow` runs until it is stopped, or until its output is \
closed.";

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

/// The options of `palisade leader`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The election
    name: String,

    /// Print the leader now, and again after every change
    #[arg(short, long)]
    follow: bool,

    /// Print JSON: one object, one line each with --follow
    ///
    /// `leader` is null without a leader. `leader.value` is null unless it is UTF-8; `leader.value_bytes` then has
    /// its bytes as numbers. `schema` changes when the fields do.
    #[arg(long)]
    json: bool,
}

/// Prints the leader.
pub(crate) async fn run(options: &Options, settings: &Settings) -> Result<(), Failure> {
    stop::until_stopped(async {
        match options.follow {
            true => follow(options, settings).await,
            false => print_leader(options, settings).await,
        }
    })
    .await
}

async fn print_leader(options: &Options, settings: &Settings) -> Result<(), Failure> {
    let palisade = settings.connect().await?;
    let leader = palisade.election(&options.name).leader().await?;
    let mut out = anstream::stdout().lock();
    unless_closed(match (&leader, options.json) {
        (_, true) => as_json(&options.name, leader.as_ref(), &mut out),
        (Some(leader), false) => as_text(leader, &mut out),
        (None, false) => Ok(()),
    })?;
    match leader {
        Some(_) => Ok(()),
        None => Err(Failure::NotAcquired(format!("'{}' has no leader", plain(&options.name)))),
    }
}

async fn follow(options: &Options, settings: &Settings) -> Result<(), Failure> {
    let palisade = settings.connect().await?;
    let mut observer = palisade.election(&options.name).observe().await?;
    loop {
        let leader = tokio::select! {
            () = stop::stdout_closed() => return Ok(()),
            leader = observer.next() => leader?,
        };
        let mut out = anstream::stdout().lock();
        let written = match options.json {
            true => as_json(&options.name, leader.as_ref(), &mut out),
            false => as_line(leader.as_ref(), &mut out),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
}

fn as_text(leader: &Leader, out: &mut impl Write) -> io::Result<()> {
    let dim = Style::new().dimmed();
    writeln!(out, "{dim}leader{dim:#}  {}", plain(&leader.label))?;
    writeln!(out, "{dim}token{dim:#}   {}", leader.token)?;
    writeln!(out, "{dim}value{dim:#}   {}", escape_bytes(&leader.value))?;
    out.flush()
}

fn as_line(leader: Option<&Leader>, out: &mut impl Write) -> io::Result<()> {
    match leader {
        Some(Leader { label, token, value }) => {
            writeln!(out, "{} leads with token {token}: {}", plain(label), escape_bytes(value))?;
        }
        None => writeln!(out, "no leader")?,
    }
    out.flush()
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    election: &'a str,
    leader: Option<LeaderReport<'a>>,
}

#[derive(Serialize)]
struct LeaderReport<'a> {
    label: &'a str,
    token: palisade::Token,
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_bytes: Option<&'a [u8]>,
}

fn as_json(election: &str, leader: Option<&Leader>, out: &mut impl Write) -> io::Result<()> {
    let leader = leader.map(|Leader { label, token, value }| {
        let text = str::from_utf8(value).ok();
        LeaderReport { label, token: *token, value: text, value_bytes: text.is_none().then_some(value) }
    });
    let text = serde_json::to_string(&Report { schema: SCHEMA, election, leader })?;
    writeln!(out, "{text}")?;
    out.flush()
}

/// Escapes a value for a terminal. Bytes that are not UTF-8 become `\xff`.
fn escape_bytes(value: &[u8]) -> String {
    if value.is_empty() {
        return "(empty)".to_owned();
    }
    let chunk = |chunk: std::str::Utf8Chunk<'_>| {
        let bytes: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
        plain(chunk.valid()) + &bytes
    };
    value.utf8_chunks().map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_control_the_terminal_and_is_never_ambiguous() {
        assert_eq!(escape_bytes(b"10.0.0.7:8080"), "10.0.0.7:8080");
        assert_eq!(escape_bytes("größe\n\u{1b}[2J".as_bytes()), "größe\\n\\u{1b}[2J");
        assert_eq!(escape_bytes(b"a\xff\x00b\xc3"), "a\\xff\\0b\\xc3");
        assert_eq!(escape_bytes(b"\\xff"), "\\\\xff");
        assert_eq!(escape_bytes(b""), "(empty)");
    }
}
