//! `palisade man`: the manual, one page per command, made from what `--help` says.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Args;
use crate::outcome::{EXIT_CODES, Failure, unless_closed};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade man | man -l -
  palisade man doctor | man -l -
  palisade man fence http | man -l -
  palisade man --out ~/.local/share/man/man1";

/// The options of `palisade man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The command whose page is printed, as in `fence http`; without it the page of palisade itself
    command: Vec<String>,

    /// Write all pages into this directory instead, and print their paths
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// Prints a page, or writes all of them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let palisade = command_tree();
    if let Some(directory) = &options.out {
        return write_all(&palisade, directory);
    }
    let mut command = &palisade;
    for name in &options.command {
        command = command.find_subcommand(name).ok_or_else(|| unknown(command, name))?;
    }
    unless_closed(io::stdout().lock().write_all(page(command)?.as_bytes()))
}

/// Returns the whole command tree, with global options under their own heading.
fn command_tree() -> Command {
    let group_globals = |arg: clap::Arg| match arg.is_global_set() {
        true => arg.help_heading("Options of every command"),
        false => arg,
    };
    let mut palisade = Args::command().disable_help_subcommand(true).mut_args(group_globals);
    palisade.build();
    palisade
}

fn unknown(command: &Command, name: &str) -> Failure {
    let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
    let (name, of) = (name.escape_debug(), command.get_bin_name().unwrap_or(command.get_name()));
    match names.as_slice() {
        [] => Failure::Misuse(format!("there is no command '{name}': `{of}` has no subcommands")),
        names => Failure::Misuse(format!("there is no command '{name}'; `{of}` has: {}", names.join(", "))),
    }
}

/// Returns a command and all its subcommands.
fn with_subcommands(command: &Command) -> Vec<&Command> {
    let descendants = command.get_subcommands().flat_map(with_subcommands);
    std::iter::once(command).chain(descendants).collect()
}

fn write_all(palisade: &Command, directory: &Path) -> Result<(), Failure> {
    let cannot = |path: &Path, error: io::Error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::Io(io::Error::new(error.kind(), message))
    };
    fs::create_dir_all(directory).map_err(|error| cannot(directory, error))?;
    let mut out = io::stdout().lock();
    for command in with_subcommands(palisade) {
        let path = directory.join(format!("{}.1", page_name(command)));
        fs::write(&path, page(command)?).map_err(|error| cannot(&path, error))?;
        unless_closed(writeln!(out, "{}", path.display()))?;
    }
    Ok(())
}

/// Returns the name of the page, such as `palisade` or `palisade-doctor`.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: &Command) -> io::Result<String> {
    let man = Man::new(command.clone()).source(concat!("palisade ", env!("CARGO_PKG_VERSION"))).manual("Palisade");
    // An empty date would be omitted, and shift the fields after it.
    let man = man.date(" ");
    let mut parts = Vec::new();
    man.render_title(&mut parts)?;
    man.render_name_section(&mut parts)?;
    synopsis(command).to_writer(&mut parts)?;
    man.render_description_section(&mut parts)?;
    man.render_options_section(&mut parts)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut parts)?;
    }
    sections(&after_options(command)).to_writer(&mut parts)?;
    // Every rendered part repeats the roff preamble; keep one.
    let preamble = Roff::new().render();
    Ok(preamble.clone() + &String::from_utf8_lossy(&parts).replace(&preamble, ""))
}

/// Returns the text after the options in `--help`. A page without its own list of exit codes gets the common one.
fn after_options(command: &Command) -> String {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let see_also = "See also:\n  palisade(1)";
    match after.contains("Exit codes:\n") {
        true if after.contains(EXIT_CODES) => after,
        true => format!("{after}\n\n{see_also}"),
        false => format!("{after}\n\n{EXIT_CODES}\n\n{see_also}"),
    }
}

/// Renders the usage line of `--help`. The next section lists all options.
fn synopsis(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).control("nf", []);
    let usage = command.clone().render_usage().to_string();
    for line in usage.trim_start_matches("Usage:").lines() {
        roff.text([bold(line.trim())]);
    }
    roff.control("fi", []);
    roff
}

/// Renders text: a line that ends in a colon is a heading, indented lines stay as they are, the rest is paragraphs.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    for block in text.split("\n\n") {
        let mut lines = block.lines().peekable();
        if let Some(heading) = lines.next_if(|line| line.ends_with(':') && !line.starts_with(' ')) {
            roff.control("SH", [heading.trim_end_matches(':').to_uppercase().as_str()]);
        } else {
            roff.control("PP", []);
        }
        let lines: Vec<_> = lines.collect();
        let is_listing = lines.first().is_some_and(|line| line.starts_with(' '));
        if is_listing {
            roff.control("nf", []);
        }
        for line in lines {
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        if is_listing {
            roff.control("fi", []);
        }
    }
    roff
}
