//! `palisade engine mysql`.

use clap::Subcommand;
use palisade::engine::mysql::SCHEMA;

use super::print;
use crate::outcome::Failure;

/// What there is to print.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the tables and procedures palisade_…, as SQL for the shells mysql and mariadb
    ///
    /// The engine installs them itself if its user may. It can be run again at any time, also while clients are
    /// connected: nothing is lost, and what is older is upgraded. A user that may only use the locks needs EXECUTE on
    /// the database, and SELECT on the tables; with UPDATE on palisade_lock it is faster.
    Schema,
}

/// Carries it out.
pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Schema => print(SCHEMA),
    }
}
