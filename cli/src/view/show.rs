//! `palisade show`: everything about one lock.

use std::io::{self, Write};

use clap::builder::styling::Style;
use palisade::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};
use serde::Serialize;

use super::table::Column::{Short, Text, Time};
use super::{format, report, table};
use crate::outcome::{Failure, unless_closed};
use crate::settings::Settings;
use crate::text::print_json;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade show orders/42
  palisade show orders/42 --json | jq '.holders[0].token'";

/// The options of `palisade show`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The lock
    name: String,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    in_use: bool,
    #[serde(flatten)]
    lock: report::Lock<'a>,
}

/// Shows the holders, the waiters and the past grants of a lock.
pub(crate) async fn run(settings: &Settings, options: &Options) -> Result<(), Failure> {
    let palisade = settings.connect().await?;
    let (lock, has_tokens) = (palisade.inspect(&options.name).await?, format::has_tokens(&palisade));
    let mut out = anstream::stdout().lock();
    unless_closed(match (options.json, &lock) {
        (true, _) => as_json(&options.name, lock.as_ref(), has_tokens, &mut out),
        (false, Some(lock)) => as_text(lock, has_tokens, &mut out),
        (false, None) => writeln!(out, "{}", format::not_in_use(&options.name)),
    })
}

fn as_json(name: &str, lock: Option<&LockInfo>, has_tokens: bool, out: &mut impl Write) -> io::Result<()> {
    let in_use = lock.is_some_and(LockInfo::is_in_use);
    let lock = lock.map_or_else(|| report::Lock::unused(name), |lock| report::Lock::of(lock, has_tokens));
    print_json(&Report { schema: report::SCHEMA, in_use, lock }, out)
}

fn as_text(lock: &LockInfo, has_tokens: bool, out: &mut impl Write) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(out, "{bold}{}{bold:#}", format::state_of(lock))?;
    if let Some(value) = &lock.value {
        writeln!(out, "\n{bold}VALUE{bold:#}\n{}", report::Published::from(value))?;
    }
    if !lock.holders.is_empty() {
        holders(&lock.holders, has_tokens, out)?;
    }
    if !lock.waiters.is_empty() {
        waiters(&lock.waiters, out)?;
    }
    if !lock.history.is_empty() {
        history(&lock.history, out)?;
    }
    out.flush()
}

fn holders(holders: &[HolderInfo], has_tokens: bool, out: &mut impl Write) -> io::Result<()> {
    let mut table =
        table::table(&[Text("HOLDER"), Short("SESSION"), Short("TOKEN"), Short("MODE"), Time("HELD"), Time("LEFT")]);
    for holder in holders {
        table.add_row([
            format::holder(holder),
            holder.session.map_or_else(|| "-".to_owned(), |session| session.to_string()),
            format::token(holder.token, has_tokens),
            format::mode(holder.mode),
            format::time(holder.held_for_ms),
            format::time(holder.time_left_ms),
        ]);
    }
    writeln!(out)?;
    table::print(&table, out)
}

fn waiters(waiters: &[WaiterInfo], out: &mut impl Write) -> io::Result<()> {
    let mut table = table::table(&[Text("WAITING, NEXT FIRST"), Short("SESSION"), Short("MODE")]);
    for waiter in waiters {
        table.add_row([crate::text::plain(&waiter.label), waiter.session.to_string(), format::mode(waiter.mode)]);
    }
    writeln!(out)?;
    table::print(&table, out)
}

fn history(history: &[EndedInfo], out: &mut impl Write) -> io::Result<()> {
    let mut table = table::table(&[Text("BEFORE, LATEST FIRST"), Short("SESSION"), Short("TOKEN"), Text("ENDED")]);
    for ended in history.iter().rev() {
        table.add_row([
            crate::text::plain(&ended.label),
            ended.session.to_string(),
            ended.token.to_string(),
            format::ending(ended),
        ]);
    }
    writeln!(out)?;
    table::print(&table, out)
}
