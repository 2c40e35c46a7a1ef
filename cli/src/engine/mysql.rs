//! `palisade engine mysql`.

use clap::Subcommand;
use palisade::engine::mysql::SCHEMA;

use super::print;
use crate::outcome::Failure;

/// The subcommands of `palisade engine mysql`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the tables and procedures palisade_…, as SQL for the shells mysql and mariadb
    ///
    /// The engine installs them itself if its user may. The SQL can be run again at any time, also while clients are
    /// connected: it upgrades older versions and loses nothing. A user that may only use the locks needs EXECUTE on
    /// the database, and SELECT on the tables; with UPDATE on palisade_lock it is faster.
    Schema,
}

/// Prints the SQL.
pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Schema => print(SCHEMA),
    }
}
