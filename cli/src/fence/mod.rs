//! `palisade fence`: what makes a resource refuse a token that was overtaken.

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

/// The options of `palisade fence`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    resource: Resource,
}

#[derive(Debug, Subcommand)]
enum Resource {
    /// Print the functions with which a Redis refuses old tokens, or install them
    #[command(after_help = redis::EXAMPLES)]
    Redis(redis::Options),

    /// Print the table, procedures and triggers with which a MySQL or MariaDB refuses old tokens, or install them
    #[command(after_help = mysql::EXAMPLES)]
    Mysql(mysql::Options),
}

/// Prints or installs.
pub(crate) async fn run(options: &Options) -> Result<(), Failure> {
    match &options.resource {
        Resource::Redis(options) => redis::run(options).await,
        Resource::Mysql(options) => mysql::run(options).await,
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn failed(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Misuse { .. } => Failure::Misuse(error.to_string()),
        _ => Failure::Unreachable(error.to_string()),
    }
}
