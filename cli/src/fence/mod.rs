//! `palisade fence`: the other half, at the resource.

mod mysql;
mod redis;

use std::io::Write;

use clap::Subcommand;
use palisade_fence::{Error, ErrorKind};

use crate::outcome::{Failure, unless_closed};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence redis | redis-cli -x FUNCTION LOAD REPLACE
  palisade fence mysql --table orders | mariadb shop

docs/fencing has a page for each of them.";

/// What can be fenced.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the functions with which a Redis refuses old tokens, or install them
    #[command(after_help = redis::EXAMPLES)]
    Redis(redis::Options),

    /// Print the table, procedures and triggers with which a MySQL or MariaDB refuses old tokens, or install them
    #[command(after_help = mysql::EXAMPLES)]
    Mysql(mysql::Options),
}

/// Carries it out.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Redis(options) => super::block_on(redis::run(options)),
        Command::Mysql(options) => super::block_on(mysql::run(options)),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn failed(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Misuse { .. } | ErrorKind::Rejected { .. } => Failure::Misuse(error.to_string()),
        _ => Failure::Unreachable(error.to_string()),
    }
}
