//! `palisade fence check`: the mark of a resource, and the verdict on a write.

use std::io::{self, Write};

use palisade_fence::{Author, FenceState, Mark, Problem, Seq, Stamp, Token, Verdict};
use serde::Serialize;

use super::marks::{self, Found, RowMarked};
use crate::args::Global;
use crate::outcome::{Failure, unless_closed};
use crate::settings::Settings;
use crate::text::{parse_token, plain, print_json};
use crate::tokens::raise_command;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence check postgres://db/shop orders
  palisade fence check mysql://db/shop orders --token 33
  palisade fence check sqlite:shop.db orders --token 34 --seq 5 --json
  palisade fence check /var/lib/orders.json --token 33
  palisade fence check http://127.0.0.1:7422 --token 33
  palisade fence check s3://bucket/orders.json --token 33

A path is a file or a folder. An http:// URL is a proxy or a fenced service. s3:// uses the variables AWS_….

Nothing is changed. The mark may be raised while you look. In PostgreSQL and MySQL it also finds tables that were \
protected and no longer are: renamed, created again, with disabled triggers.

Exit codes: 76 if a write under --token would be refused, 78 if the fence has a gap.";

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;
/// The exit code of a token that would be refused.
const REFUSED: u8 = 76;
/// The exit code of a fence that has gaps.
const BROKEN: u8 = 78;

/// The options of `palisade fence check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The store of the resource: postgres://…, mysql://…, redis://…, sqlite:FILE, http://…, s3://BUCKET/PATH, or a path
    store: String,

    /// The resource's name in a database; at an HTTP service the lock, if its clients name one
    resource: Option<String>,

    /// Say whether a write under this token would be accepted
    #[arg(long, value_parser = parse_token)]
    token: Option<Token>,

    /// The sequence number of that write under its token, from 1
    #[arg(long, value_parser = parse_seq, requires = "token")]
    seq: Option<Seq>,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    resource: &'a str,
    /// Null if no token has sealed it yet, or its mark was lost.
    mark: Option<Mark>,
    /// Whether Redis has data of this name and no mark.
    mark_lost: bool,
    /// `admitted`, `stale`, `not_sealed`, `repeat_or_gap` or `gap`; null without --token.
    verdict: Option<&'static str>,
    explanation: Option<String>,
    /// The command that raises the engine's tokens, if this one is below the mark; else null.
    raise_command: Option<String>,
    /// Tables whose rows have their own marks, in PostgreSQL and MySQL.
    tables_with_row_marks: Vec<&'a str>,
    /// The fence's gaps, in PostgreSQL and MySQL.
    problems: Vec<ProblemReport<'a>>,
}

#[derive(Serialize)]
struct ProblemReport<'a> {
    table: &'a str,
    /// Null where each row has its own mark.
    resource: Option<&'a str>,
    problem: &'a str,
    remedy: &'a str,
}

/// Prints the mark, and the verdict on a write.
pub(crate) async fn run(options: &Options, global: &Global) -> Result<(), Failure> {
    let engine = Settings::configured_url(global)?;
    let found = marks::find(&options.store, options.resource.as_deref()).await?;
    let mark = found.mark;
    let judgement = options.token.map(|token| judge(&found, token, options.seq));
    let below = mark.filter(|mark| options.token.is_some_and(|token| token < mark.token) && can_raise(mark.token));
    let raise_command = below.map(|mark| raise_command(mark.token, engine.as_deref()));
    let mut out = anstream::stdout().lock();
    let (verdict, explanation) = judgement.clone().unzip();
    unless_closed(match options.json {
        true => {
            let problems = found.problems.iter().map(problem_report).collect();
            let resource = &found.name;
            let report = Report {
                schema: SCHEMA,
                resource,
                mark,
                mark_lost: found.is_mark_lost,
                verdict,
                explanation,
                raise_command,
                tables_with_row_marks: found.row_marked.iter().map(|rows| rows.table.as_str()).collect(),
                problems,
            };
            print_json(&report, &mut out)
        }
        false => as_text(&found, explanation, raise_command, &mut out),
    })?;
    match verdict {
        Some(verdict) if verdict != "admitted" => Err(Failure::Exit(REFUSED)),
        _ if !found.problems.is_empty() => Err(Failure::Exit(BROKEN)),
        _ => Ok(()),
    }
}

fn problem_report(problem: &Problem) -> ProblemReport<'_> {
    let Problem { table, resource, what, remedy } = problem;
    ProblemReport { table, resource: resource.as_deref(), problem: what, remedy }
}

/// Whether the tokens of an engine can be raised above a mark.
fn can_raise(mark: Token) -> bool {
    mark.check_raise().is_ok()
}

/// Returns the verdict on a write, in one word and in a sentence.
fn judge(found: &Found, token: Token, seq: Option<Seq>) -> (&'static str, String) {
    let mark = found.mark;
    let state = mark.map_or_else(FenceState::<()>::default, |mark| FenceState::of(mark, Author::default(), Some(())));
    let next = mark.map_or(Seq::NONE, |mark| mark.seq).next();
    match state.admit(Stamp { token, seq: seq.unwrap_or(next), author: Author::default() }) {
        Verdict::Admitted => ("admitted", format!("A write under token {token} is accepted.")),
        Verdict::Stale { seen } if !can_raise(seen) => (
            "stale",
            format!(
                "A write under token {token} is refused: token {seen} has sealed it.\n\
                 Either a newer holder has the lock: stop the work and acquire it again. Or the mark was set by hand:\n\
                 tokens cannot be raised above a mark as high as this, so use another resource name."
            ),
        ),
        Verdict::Stale { seen } => (
            "stale",
            format!(
                "A write under token {token} is refused: token {seen} has sealed it.\n\
                 Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave token \
                 {token}\ncounts lower than the one that gave token {seen} (a new file, another engine): raise its tokens."
            ),
        ),
        Verdict::NotSealed if mark.is_none() && !found.row_marked.is_empty() => (
            "not_sealed",
            format!(
                "A write under token {token} to one of these rows is checked against the mark of that row.\n\
                 Elsewhere token {token} has to seal it first, then read, then write."
            ),
        ),
        Verdict::NotSealed if mark.is_none() && !found.is_mark_lost => (
            "not_sealed",
            format!(
                "Token {token} has to seal it first, then read, then write.\n\
                 If it was sealed before, its mark is gone: was the store restored or emptied?"
            ),
        ),
        Verdict::NotSealed => (
            "not_sealed",
            format!(
                "A write under token {token} is refused: this token has not sealed it.\n\
                 Seal it first, then read, then write. If it was sealed: was the store restored or emptied?"
            ),
        ),
        Verdict::Duplicate(_) => (
            "repeat_or_gap",
            format!(
                "Write {next} would be the next. One with the last number is refused as a repeat if its author is the \
                 same,\nand as a gap if another handle has written under this token."
            ),
        ),
        Verdict::Gap { expected } => (
            "gap",
            format!(
                "It is refused: number {expected} would be the next. Another handle has written under this token,\n\
                 or the write came late. Seal again, and read again."
            ),
        ),
    }
}

fn as_text(
    found: &Found,
    explanation: Option<String>,
    raise_command: Option<String>,
    out: &mut impl Write,
) -> io::Result<()> {
    let resource = plain(&found.name);
    match found.mark {
        Some(Mark { token, seq }) if seq > Seq::NONE => {
            writeln!(out, "{resource} is sealed with token {token}; the last numbered write under it is {seq}.")?;
        }
        Some(Mark { token, .. }) => writeln!(out, "{resource} is sealed with token {token}.")?,
        None if found.is_mark_lost => writeln!(
            out,
            "{resource} has data and no mark: the mark was lost, or nothing has sealed it yet.\n\
             If it was sealed, look for what else this Redis has lost, and raise the engine's tokens above the highest \
             that was used:\n  palisade tokens raise --above N --url ENGINE\n\
             Then give the data a mark under the next token: adopt() in Rust, or FCALL palisade_seal 1 \
             palisade:{{{resource}}} TOKEN."
        )?,
        None if found.row_marked.is_empty() => writeln!(out, "Nothing has sealed {resource} yet.")?,
        None => writeln!(out, "Nothing has sealed {resource} as a whole yet.")?,
    }
    for RowMarked { table, command } in &found.row_marked {
        writeln!(out, "Each row of {} has its own mark: {}", plain(table), plain(command))?;
    }
    if let Some(explanation) = explanation {
        writeln!(out, "{explanation}")?;
    }
    if let Some(command) = raise_command {
        writeln!(out, "  {command}")?;
    }
    for Problem { table, what, remedy, .. } in &found.problems {
        writeln!(out, "The fence has a gap: {}: {}.\n  {}", plain(table), plain(what), plain(remedy))?;
    }
    out.flush()
}

fn parse_seq(text: &str) -> Result<Seq, String> {
    let not_a_number = |_| format!("'{}' is not a sequence number; expected 1, 2, …", text.escape_debug());
    let number: u64 = text.parse().map_err(not_a_number)?;
    Seq::new(number).map_err(|bad| bad.to_string())
}
