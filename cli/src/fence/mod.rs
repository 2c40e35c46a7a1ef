//! `palisade fence`: the other half, at the resource.

mod check;
mod postgres;

use clap::Subcommand;
use palisade_fence::{Error, ErrorKind};

use crate::outcome::Failure;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence postgres | psql shop                            # functions and triggers
  palisade fence check postgres://db/shop orders --token 33      # why was it refused?";

/// What can be fenced.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the fence for PostgreSQL, or install it
    ///
    /// Prints SQL: a schema of functions, and with --protect the trigger on a table. From then on the table is written
    /// only under the newest token that has sealed its resource, from any client in any language. Can be run again.
    #[command(after_help = postgres::EXAMPLES)]
    Postgres(postgres::Options),

    /// Say what the mark of a resource is, and why a write is refused
    #[command(after_help = check::EXAMPLES)]
    Check(check::Options),
}

/// Carries it out.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Postgres(options) => super::block_on(postgres::run(options)),
        Command::Check(options) => super::block_on(check::run(options)),
    }
}

fn failed(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Misuse { .. } | ErrorKind::Rejected { .. } => Failure::Misuse(error.to_string()),
        _ => Failure::Unreachable(error.to_string()),
    }
}
