//! `palisade engine`: what an engine needs in the store that it uses.

mod mysql;
mod postgres;

use clap::Subcommand;

use crate::outcome::Failure;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade engine postgres schema                # read it
  palisade engine postgres schema | psql shop    # install or upgrade it
  palisade engine mysql schema | mysql shop

It needs no connection. docs/engines has a page for each store.";

/// The stores that something is installed in.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Locks in MySQL and MariaDB
    #[command(subcommand)]
    Mysql(mysql::Command),
    /// Locks in PostgreSQL
    #[command(subcommand)]
    Postgres(postgres::Command),
}

/// Carries it out.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Mysql(command) => mysql::run(command),
        Command::Postgres(command) => postgres::run(command),
    }
}
