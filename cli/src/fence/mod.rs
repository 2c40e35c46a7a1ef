//! `palisade fence …`: the check at the resource, put in place and looked at.

mod check;
mod postgres;

use palisade_fence::{Error, ErrorKind};

use crate::outcome::Failure;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence postgres | psql shop                            # functions and triggers
  palisade fence check postgres://db/shop orders --token 33      # why was it refused?";

/// What `palisade fence` can do.
#[derive(Debug, clap::Subcommand)]
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

/// Does it.
pub(crate) async fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Postgres(options) => postgres::run(options).await,
        Command::Check(options) => check::run(options).await,
    }
}

/// What a failure at a resource comes to.
fn failure(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::Misuse { .. } => Failure::Misuse(error.to_string()),
        _ => Failure::Unreachable(error.to_string()),
    }
}
