//! `palisade ls`: the locks in use.

use std::io::{self, IsTerminal, Write};

use clap::builder::styling::Style;
use palisade::engine::LockInfo;
use serde::Serialize;

use super::table::Column::{Short, Text, Time};
use super::{format, report, table};
use crate::outcome::{Failure, say, unless_closed};
use crate::settings::Settings;
use crate::text::{LogLevels, print_json};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade ls
  palisade ls orders/
  palisade ls --json | jq -r '.locks[].name'";

/// A claim that cannot be read is reported: its lock may be missing from the list.
pub(crate) const LOG_LEVELS: LogLevels =
    LogLevels { default: "off,palisade::unreadable=warn", verbose: "off,palisade::unreadable=warn" };

/// The options of `palisade ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only locks whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    locks: Vec<report::Lock<'a>>,
}

/// Lists the locks that are held or wanted.
pub(crate) async fn run(settings: &Settings, options: &Options) -> Result<(), Failure> {
    let palisade = settings.connect().await?;
    let (locks, has_tokens) = (palisade.list(&options.prefix).await?, format::has_tokens(&palisade));
    if let Some(file) = settings.default_file().filter(|_| !options.json) {
        say(&format!("the locks in {}", file.display()));
    }
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => {
            let locks = locks.iter().map(|lock| report::Lock::of(lock, has_tokens)).collect();
            print_json(&Report { schema: report::SCHEMA, locks }, &mut out)
        }
        false if locks.is_empty() => say_none_found(&options.prefix),
        false => as_table(&locks, has_tokens, &mut out),
    })
}

/// Says on stderr that there are no locks, but only to a terminal: for a script, empty output says it.
fn say_none_found(prefix: &str) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return Ok(());
    }
    let dim = Style::new().dimmed();
    let mut err = anstream::stderr().lock();
    match prefix {
        "" => writeln!(err, "{dim}no locks are held or wanted{dim:#}"),
        _ => writeln!(err, "{dim}no locks that begin with {} are held or wanted{dim:#}", crate::text::plain(prefix)),
    }
}

fn as_table(locks: &[LockInfo], has_tokens: bool, out: &mut impl Write) -> io::Result<()> {
    let mut table =
        table::table(&[Text("LOCK"), Text("HOLDER"), Short("TOKEN"), Time("HELD"), Time("LEFT"), Short("WAITING")]);
    for lock in locks {
        table.add_row(row(lock, has_tokens));
    }
    table::print(&table, out)?;
    out.flush()
}

/// Returns the row of a lock, with its oldest holder.
fn row(lock: &LockInfo, has_tokens: bool) -> [String; 6] {
    let oldest = lock.holders.first();
    [
        lock.name.to_string(),
        format::holders(lock),
        oldest.map_or_else(|| "-".to_owned(), |oldest| format::token(oldest.token, has_tokens)),
        format::time(oldest.and_then(|oldest| oldest.held_for_ms)),
        format::time(oldest.and_then(|oldest| oldest.time_left_ms)),
        lock.waiters.len().to_string(),
    ]
}
