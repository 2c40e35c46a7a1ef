//! `palisade`: the one binary. Reads the arguments, runs the command, turns its outcome into an exit code.
#![forbid(unsafe_code)]

mod advise;
mod args;
mod outcome;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::outcome::Failure;

fn main() -> ExitCode {
    let result = match Args::try_parse() {
        Ok(Args { command: Command::Advise(options) }) => advise::run(&options),
        Err(error) => outcome::from_clap(&error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn report(failure: &Failure) -> ExitCode {
    outcome::tell(failure);
    ExitCode::from(failure.exit_code())
}
