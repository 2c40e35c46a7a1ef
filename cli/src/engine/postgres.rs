//! `palisade engine postgres`.

use std::io::Write;

use clap::Subcommand;
use palisade::engine::postgres::SCHEMA;

use crate::outcome::{Failure, unless_closed};

/// What there is to print.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the schema `palisade`: tables and functions, as SQL for psql
    ///
    /// The engine installs it itself if its role may. It can be run again at any time, also while clients are connected:
    /// nothing is lost, and what is older is upgraded. A role that may only use the locks is let in afterwards with
    /// SELECT palisade.allow('role').
    Schema,
}

/// Carries it out.
pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Schema => unless_closed(anstream::stdout().lock().write_all(SCHEMA.as_bytes())),
    }
}
