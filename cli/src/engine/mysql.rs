//! `palisade engine mysql`.

use clap::Subcommand;
use palisade::engine::mysql::SCHEMA;
use palisade::recipe::once::MYSQL_SCHEMA;

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

    /// Print the table of the recipe once, as SQL for the shells mysql and mariadb
    ///
    /// The recipe creates it itself if its user may. docs/recipes/README.md has the grant for a user that may not.
    Recipes,
}

/// Prints the SQL.
pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Schema => print(SCHEMA),
        Command::Recipes => print(&format!("{MYSQL_SCHEMA};\n")),
    }
}
