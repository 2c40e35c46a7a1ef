//! `palisade engine postgres`.

use clap::Subcommand;
use palisade::engine::postgres::SCHEMA;

use super::print;
use crate::outcome::Failure;

/// The subcommands of `palisade engine postgres`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the schema `palisade`: tables and functions, as SQL for psql
    ///
    /// The engine installs it itself if its role may. The SQL can be run again at any time, also while clients are
    /// connected: it upgrades older versions and loses nothing. SELECT palisade.allow('role') afterwards lets a role use
    /// the locks.
    Schema,
}

/// Prints the SQL.
pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Schema => print(SCHEMA),
    }
}
