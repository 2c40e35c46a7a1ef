//! `palisade fence`: the other half, at the resource.

mod http;

use clap::Subcommand;

use crate::outcome::Failure;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence http --lock orders --upstream http://127.0.0.1:8080 --store sqlite:marks.db

Exit codes:
  0   done, or told to stop
  64  it cannot be done like that; the message says what to change
  69  an address cannot be had
  74  reading or writing failed";

/// What can be fenced.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fence an HTTP service that cannot be changed: a reverse proxy in front of it
    ///
    /// Requests carry the header `Fencing-Token`; those without a token, or with one that was overtaken, do not reach
    /// the service. Runs until SIGTERM or Ctrl-C, and then finishes what is under way; a second one ends it at once.
    #[command(after_help = http::EXAMPLES)]
    Http(http::Options),
}

/// Carries it out.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Http(options) => super::block_on(http::run(options)),
    }
}
