//! `palisade`: the one binary. Reads the arguments, runs the command, turns its outcome into an exit code.
#![forbid(unsafe_code)]

mod advise;
mod args;
mod force;
mod interrupt;
mod look;
mod outcome;
mod settings;
mod text;

use std::future::Future;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::look::{ls, show, top, watch};
use crate::outcome::Failure;
use crate::settings::Settings;

fn main() -> ExitCode {
    let result = match Args::try_parse() {
        Ok(args) => carry_out(args),
        Err(error) => outcome::from_clap(&error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            outcome::tell(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn carry_out(args: Args) -> Result<(), Failure> {
    let Args { global, command } = args;
    text::log_to_stderr(global.verbose);
    let settings = || Settings::find(&global);
    match command {
        Command::Advise(options) => advise::run(&options),
        Command::Ls(options) => block_on(ls::run(&settings()?, &options)),
        Command::Show(options) => block_on(show::run(&settings()?, &options)),
        Command::Watch(options) => block_on(watch::run(&settings()?, &options)),
        Command::Top(options) => block_on(top::run(&settings()?, &options)),
        Command::Break(options) => block_on(force::run(&settings()?, &options)),
    }
}

/// Runs a command that waits for things.
fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
