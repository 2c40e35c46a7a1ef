//! `palisade`: the one binary. Reads the arguments, runs the command, turns its outcome into an exit code.
#![forbid(unsafe_code)]

mod acquire;
mod advise;
mod args;
mod cluster;
mod completions;
mod doctor;
mod elect;
mod engine;
mod fence;
mod force;
mod leader;
mod lease;
mod man;
mod outcome;
mod page;
mod prove;
mod recipe;
mod run;
mod serve;
mod settings;
mod signals;
mod spinner;
mod stop;
mod stores;
mod text;
mod tokens;
mod view;

use std::future::Future;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::outcome::Failure;
use crate::recipe::{once, queue};
use crate::settings::Settings;
use crate::view::{ls, show, top, watch};

fn main() -> ExitCode {
    // `run` and `prove` start this binary again, with an internal first argument.
    let child = run::run_as_child(std::env::args_os()).or_else(|| prove::run_as_child(std::env::args_os()));
    if let Some(code) = child {
        return code;
    }
    let result = match Args::try_parse() {
        Ok(args) => run_command(args),
        Err(error) => outcome::print_clap(&error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            outcome::report(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run_command(args: Args) -> Result<(), Failure> {
    let Args { global, command } = args;
    text::log_to_stderr(global.verbose, &log_levels(&command));
    let settings = || Settings::find(&global);
    match command {
        Command::Run(options) => block_on(run::run(&options, &settings()?, global.verbose)),
        Command::Acquire(options) => block_on(lease::acquire(&options, &settings()?, global.verbose)),
        Command::Renew(options) => block_on(lease::renew(&options, &settings()?, global.verbose)),
        Command::Release(options) => block_on(lease::release(&options, &settings()?, global.verbose)),
        Command::Once(options) => block_on(once::run(&options, &settings()?, global.verbose)),
        Command::Elect(options) => block_on(elect::elect(&options, &settings()?, global.verbose)),
        Command::Partitions(options) => block_on(run::partitions::partitions(options, &settings()?, global.verbose)),
        Command::Engine(command) => engine::run(&command),
        Command::Fence(command) => fence::run(&command, &global),
        Command::Serve(options) => serve::run(&options, global.config.as_deref()),
        Command::Advise(options) => advise::run(&options),
        Command::Leader(options) => block_on(leader::run(&options, &settings()?)),
        Command::Doctor(options) => block_on(doctor::run(&options, settings()?)),
        Command::Prove(options) => block_on(prove::run(&options, &global)),
        Command::Completions(options) => completions::run(&options),
        Command::Man(options) => man::run(&options),
        Command::Ls(options) => block_on(ls::run(&settings()?, &options)),
        Command::Show(options) => block_on(show::run(&settings()?, &options)),
        Command::Watch(options) => block_on(watch::run(&settings()?, &options)),
        Command::Top(options) => block_on(top::run(&settings()?, &options)),
        Command::Page(options) => block_on(page::run(&settings()?, &options)),
        Command::Break(options) => block_on(force::run(&settings()?, &options)),
        Command::Cluster(command) => block_on(cluster::run(&command, settings())),
        Command::Queue(command) => block_on(queue::run(&command, &global)),
        Command::Tokens(command) => block_on(tokens::run(&settings()?, &command)),
    }
}

fn log_levels(command: &Command) -> text::LogLevels {
    match command {
        Command::Serve(_) => serve::LOG_LEVELS,
        Command::Ls(_) => ls::LOG_LEVELS,
        _ => text::LogLevels { default: "off", verbose: "off" },
    }
}

/// Runs an async command on this thread.
fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
