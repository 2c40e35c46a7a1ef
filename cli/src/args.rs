//! The command line, as clap reads it.

use clap::{Parser, Subcommand};

use crate::advise::Options;

/// A distributed lock whose every grant carries a fencing token.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What `palisade` can do today.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say which tool you need: a lock, or something simpler
    ///
    /// Asks up to five questions and answers with one tool and its recipe. Often that is no lock at all. Give the
    /// answers as options to be asked nothing. An answer that does not matter on the way is ignored.
    #[command(after_help = ADVISE_EXAMPLES)]
    Advise(Options),
}

const EXIT_CODES: &str = "\
Examples:
  palisade advise            Be asked a few questions, be told which tool you need
  palisade advise --help     The same questions as options, for scripts

Exit codes:
  0   done
  64  the command line cannot be acted on; the message says what to change
  74  reading or writing failed";

const ADVISE_EXAMPLES: &str = "\
Examples:
  palisade advise
  palisade advise --if-two-hold wasted-work --work own
  palisade advise --if-two-hold damage --work change --writes-to one-record --conflicts rare
  palisade advise --if-two-hold damage --work change --writes-to can-check --json

The questions appear on stderr and the advice on stdout, so `palisade advise --json > advice.json` works too.";
