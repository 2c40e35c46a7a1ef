//! `palisade engine`: prints the SQL or Lua that an engine installs in its store.

mod mysql;
mod postgres;
mod redis;

use std::io::Write;

use clap::Subcommand;

use crate::outcome::{Failure, unless_closed};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade engine postgres schema                # read it
  palisade engine postgres schema | psql shop    # install or upgrade it
  palisade engine postgres recipes | psql shop   # the tables of the recipes
  palisade engine mysql schema | mysql shop
  palisade engine redis functions | redis-cli -x FUNCTION LOAD REPLACE

It needs no connection. docs/engines has a page for each store.";

/// The stores in which an engine installs something.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// MySQL and MariaDB: the tables and procedures that the engine keeps its locks in
    #[command(subcommand)]
    Mysql(mysql::Command),
    /// PostgreSQL: the schema that the engine keeps its locks in
    #[command(subcommand)]
    Postgres(postgres::Command),
    /// Redis: functions that use the engine's locks from redis-cli and from any language
    #[command(subcommand, after_help = redis::EXAMPLES)]
    Redis(redis::Command),
}

/// Runs `palisade engine`.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Mysql(command) => mysql::run(command),
        Command::Postgres(command) => postgres::run(command),
        Command::Redis(command) => redis::run(command),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}
