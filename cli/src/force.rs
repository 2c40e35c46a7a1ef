//! `palisade break`: takes a lock away from its holder, records it in the lock's history, and uses up a token.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use palisade::engine::{Forced, HolderInfo};
use palisade::{Palisade, Token};
use serde::Serialize;

use crate::outcome::{Failure, unless_closed};
use crate::settings::Settings;
use crate::text::{parse_token, print_json};
use crate::view::format;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade break orders/42
  palisade break orders/42 --by alice --reason 'host-a burned down'
  palisade break orders/42 --token 33 --reason 'hangs since noon' --yes
  palisade break orders/42 --reason 'hangs since noon' --yes --json

The questions appear on stderr and the result on stdout. With --token, or after the question, only the grant that you \
saw ends, and a newer one stays. With --yes and without --token every holder loses the lock.";

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

/// The options of `palisade break`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The lock
    name: String,

    /// Only if it is still held with this token
    #[arg(long, value_parser = parse_token)]
    token: Option<Token>,

    /// Why; it is recorded in the lock's history
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: Option<String>,

    /// The name to record, with the user of this process [default: the configured label]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    lock: &'a str,
    reason: &'a str,
    grants_ended: u32,
    moved_to: u64,
}

/// Takes the lock away, after a confirmation unless `--yes` was given.
pub(crate) async fn run(settings: &Settings, options: &Options) -> Result<(), Failure> {
    check_can_ask(options)?;
    let palisade = settings.connect_as(recorded_name(options.by.as_ref().or(settings.label.as_ref()))).await?;
    let (token, reason) = match (&options.reason, options.yes) {
        (Some(reason), true) => (options.token, reason.clone()),
        _ => ask(&palisade, options).await?,
    };
    let forced = match token {
        Some(token) => palisade.force_release_only(&options.name, token, &reason).await?,
        None => palisade.force_release(&options.name, &reason).await?,
    };
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => as_json(&options.name, &reason, forced, &mut out),
        false => as_text(&options.name, forced, &mut out),
    })
}

/// Returns `NAME (user root)`: the given name, and the user of this process.
pub(crate) fn recorded_name(name: Option<&String>) -> String {
    let id = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let user = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| user.to_owned())
    });
    let user = user.unwrap_or_else(|| id.to_string());
    match name {
        Some(name) => format!("{name} (user {user})"),
        None => format!("user {user}"),
    }
}

/// Fails if a question must be asked and there is no terminal.
fn check_can_ask(options: &Options) -> Result<(), Failure> {
    let missing: Vec<_> = [
        options.reason.is_none().then_some("  --reason <TEXT>  why; it is recorded\n"),
        (!options.yes).then_some("  --yes            do it without asking\n"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if missing.is_empty() || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    Err(Failure::Misuse(format!(
        "cannot ask for confirmation: stdin or stderr is not a terminal. Nothing has changed. Add:\n{}\
         and, to keep a grant that is newer than the one you mean:\n  --token <TOKEN>  the token that `palisade show` shows",
        missing.concat()
    )))
}

/// Shows the holders and asks for a missing reason and a missing confirmation. Returns the token of the only holder that
/// was shown (`None` if there are several), and the reason.
async fn ask(palisade: &Palisade, options: &Options) -> Result<(Option<Token>, String), Failure> {
    let holders = holders(palisade, options).await?;
    let (mut input, mut output) = (io::stdin().lock(), anstream::stderr().lock());
    show(&options.name, &holders, &mut output)?;
    let reason = match &options.reason {
        Some(reason) => reason.clone(),
        None => prompt("Why? It is recorded: ", &mut input, &mut output)?,
    };
    let reason = parse_reason(&reason).map_err(|why| unchanged(&why))?;
    if !options.yes && !matches!(prompt("Take it away? [y/N] ", &mut input, &mut output)?.as_str(), "y" | "Y" | "yes")
    {
        return Err(unchanged("not confirmed"));
    }
    match holders.as_slice() {
        [only] => Ok((Some(only.token), reason)),
        _ => Ok((None, reason)),
    }
}

/// Returns the holders that would lose the lock.
async fn holders(palisade: &Palisade, options: &Options) -> Result<Vec<HolderInfo>, Failure> {
    let mut holders = palisade.inspect(&options.name).await?.map(|lock| lock.holders).unwrap_or_default();
    if holders.is_empty() {
        return Err(unchanged(&format!("'{}' is not held", options.name)));
    }
    if let Some(token) = options.token {
        holders.retain(|holder| holder.token == token);
        if holders.is_empty() {
            return Err(unchanged(&format!("token {token} does not hold '{}' any more", options.name)));
        }
    }
    Ok(holders)
}

fn show(lock: &str, holders: &[HolderInfo], output: &mut impl Write) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(output, "{bold}{lock}{bold:#} is held by")?;
    for holder in holders {
        let HolderInfo { token, mode, held_for_ms, time_left_ms, .. } = holder;
        let (mode, held, left) = (format::mode(*mode), format::time(*held_for_ms), format::time(*time_left_ms));
        writeln!(output, "  {}", format::holder(holder))?;
        writeln!(output, "    token {token}, {mode}, held for {held}, time left {left}")?;
    }
    Ok(())
}

/// Asks a question and returns the line that was typed; empty if the input has ended.
fn prompt(question: &str, input: &mut impl BufRead, output: &mut impl Write) -> io::Result<String> {
    write!(output, "{question}")?;
    output.flush()?;
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        writeln!(output)?;
    }
    Ok(line.trim().to_owned())
}

fn unchanged(why: &str) -> Failure {
    Failure::Misuse(format!("{why}; nothing has changed"))
}

fn as_json(lock: &str, reason: &str, forced: Forced, out: &mut impl Write) -> io::Result<()> {
    let Forced { grants, moved_to } = forced;
    let report = Report { schema: SCHEMA, lock, reason, grants_ended: grants, moved_to: moved_to.get() };
    print_json(&report, out)
}

fn as_text(lock: &str, forced: Forced, out: &mut impl Write) -> io::Result<()> {
    let Forced { grants, moved_to } = forced;
    let title = AnsiColor::Green.on_default().bold();
    let ended = if grants == 1 { "1 grant has ended".to_owned() } else { format!("{grants} grants have ended") };
    writeln!(out, "{title}{lock} was taken away: {ended}, the token moved on to {moved_to}.{title:#}")?;
    writeln!(
        out,
        "The old holder may still write. Seal the resource with {moved_to}, and it refuses every lower token:"
    )?;
    writeln!(out, "  PostgreSQL  SELECT palisade_fence.seal('RESOURCE', {moved_to});")?;
    writeln!(out, "  MySQL       CALL palisade_fence_seal('RESOURCE', {moved_to});")?;
    writeln!(out, "  SQLite      INSERT INTO palisade_seal (resource, token) VALUES ('RESOURCE', {moved_to});")?;
    writeln!(out, "  Redis       FCALL palisade_seal 2 palisade:{{RESOURCE}} RESOURCE {moved_to}")?;
    writeln!(out, "  HTTP        curl -X POST -H 'Fencing-Token: {moved_to}; seal' URL")?;
    out.flush()
}

fn parse_reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("no reason was given".to_owned()),
        text => Ok(text.to_owned()),
    }
}
