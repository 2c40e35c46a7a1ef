//! `palisade engine redis`.

use clap::Subcommand;

use super::print;
use crate::outcome::Failure;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade engine redis functions | redis-cli -x FUNCTION LOAD REPLACE
  redis-cli FCALL palisade_acquire 1 palisade:{palisade}:locks orders/42 30000

The engine itself needs nothing installed. The functions need Redis 7 or newer; in a cluster load them on every primary.";

/// The subcommands of `palisade engine redis`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a library of functions that acquire, renew, release and show the same locks
    Functions,
}

/// Prints the functions.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Functions => print(&palisade::engine::redis::functions()),
    }
}
