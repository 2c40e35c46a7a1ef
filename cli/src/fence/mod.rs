//! `palisade fence`: the commands for resources that check tokens.

mod check;
mod http;
mod marks;
mod mysql;
mod postgres;
mod redis;
mod resources;

use std::io::Write;

use clap::Subcommand;
use palisade_fence::{Error, ErrorKind};

use crate::args::Global;
use crate::outcome::{Failure, unless_closed};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence postgres | psql shop
  palisade fence mysql --table orders | mariadb shop
  palisade fence redis | redis-cli -x FUNCTION LOAD REPLACE
  palisade fence http --lock orders --store sqlite:marks.db \\
    --upstream http://127.0.0.1:8080
  palisade fence check postgres://db/shop orders --token 33

Exit codes:
  0   done, or stopped by a signal
  64  the options cannot be used; the message says what to change
  69  a store cannot be reached, or it cannot listen on the address
  74  reading or writing failed

docs/fencing has a page for each store.";

/// The subcommands of `palisade fence`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the functions with which Redis refuses old tokens, or install them
    #[command(after_help = redis::EXAMPLES)]
    Redis(redis::Options),

    /// Print the table, procedures and triggers with which MySQL or MariaDB refuses old tokens, or install them
    #[command(after_help = mysql::EXAMPLES)]
    Mysql(mysql::Options),
    /// Print the fence for PostgreSQL, or install it
    ///
    /// Prints SQL: a schema of functions, and with --protect the trigger on a table. From then on the table is written
    /// only under the newest token that has sealed its resource, from any client in any language. Can be run again.
    #[command(after_help = postgres::EXAMPLES)]
    Postgres(postgres::Options),

    /// Show the mark of a resource, and why a write is refused
    #[command(after_help = check::EXAMPLES)]
    Check(check::Options),
    /// Fence an HTTP service that cannot be changed: a reverse proxy in front of it
    ///
    /// Requests carry the header `Fencing-Token`; those without a token, or with one that was overtaken, do not reach
    /// the service. Runs until SIGTERM or Ctrl-C, and then finishes the running requests; a second one ends it at once.
    #[command(after_help = http::EXAMPLES)]
    Http(http::Options),
}

/// Runs `palisade fence`.
pub(crate) fn run(command: &Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Redis(options) => super::block_on(redis::run(options)),
        Command::Mysql(options) => super::block_on(mysql::run(options)),
        Command::Postgres(options) => super::block_on(postgres::run(options)),
        Command::Http(options) => super::block_on(http::run(options)),
        Command::Check(options) => super::block_on(check::run(options, global)),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn failed(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Misuse { .. } | ErrorKind::Rejected { .. } => Failure::Misuse(error.to_string()),
        _ => Failure::Unavailable(error.to_string()),
    }
}
