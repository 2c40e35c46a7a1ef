//! `palisade engine postgres`.

use clap::Subcommand;
use palisade::engine::postgres::SCHEMA;
use palisade::recipe::{once, queue, versioned};

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

    /// Print the tables of the recipes: once, queue and versioned, as SQL for psql
    ///
    /// A recipe creates its tables itself if its role may. docs/recipes/README.md has the grants for a role that may not.
    Recipes,
}

/// Prints the SQL.
pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Schema => print(SCHEMA),
        Command::Recipes => {
            let tables = [once::POSTGRES_SCHEMA, queue::POSTGRES_SCHEMA, versioned::POSTGRES_SCHEMA];
            print(&format!("{}\n", tables.join("\n")))
        }
    }
}
