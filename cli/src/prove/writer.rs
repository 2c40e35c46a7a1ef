//! A writer: a process that adds one to the number whenever it holds the lock.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use palisade::{LockGuard, Palisade, Token};
use tokio::sync::watch;

use super::child;
use super::store::{self, Access, Store, StoreError};
use super::wire::{WriterConfig, WriterEvent};
use crate::outcome::Failure;
use crate::stores::redact_secret;

/// A writer's role.
const WRITER: &str = "_writer";

/// The delay between reading and writing, in which a writer is paused.
const DELAY_MS: std::ops::Range<u64> = 5..25;
/// After something has failed.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// A process that will be a writer.
pub(super) fn command() -> Command {
    let mut command = child::self_command(WRITER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Does a writer's work, if that is what this process is for.
pub(super) fn serve(args: &[OsString]) -> Option<ExitCode> {
    if let Err(code) = child::enter_role(WRITER, args)? {
        return Some(code);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let worked = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(begin()));
    Some(match worked {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::outcome::report(&failure);
            ExitCode::from(failure.exit_code())
        }
    })
}

async fn begin() -> Result<(), Failure> {
    let mut input = io::BufReader::new(io::stdin());
    let mut line = String::new();
    input.read_line(&mut line)?;
    let config: WriterConfig = serde_json::from_str(&line).map_err(io::Error::from)?;
    let (sender, end) = watch::channel(false);
    thread::spawn(move || {
        // No more input follows. The end of stdin asks the writer to stop.
        let _ = input.read_to_end(&mut Vec::new());
        sender.send(true)
    });
    let redacted = |failure: Failure| match failure.message() {
        Some(message) => Failure::Unavailable(redact_secret(message, &config.resource)),
        None => failure,
    };
    let store = store::open(&config.resource, &config.name).await.map_err(redacted)?;
    work(&config, &*store, end).await
}

async fn work(config: &WriterConfig, store: &dyn Store, mut end: watch::Receiver<bool>) -> Result<(), Failure> {
    let mut draw = fastrand::Rng::with_seed(config.seed);
    let mut client = None;
    while !*end.borrow() {
        let held = tokio::select! {
            _ = end.wait_for(|has_come| *has_come) => return Ok(()),
            held = hold(config, client.take()) => held,
        };
        let (palisade, guard, token) = match held {
            Ok(held) => held,
            // The session expired during a pause: connect again.
            Err(error) if error.loss().is_some() => continue,
            Err(error) => {
                say(&WriterEvent::Failed(error.to_string()))?;
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
        };
        let delay = Duration::from_millis(draw.u64(DELAY_MS));
        match add_one(config, store, token, delay).await {
            Ok(number) => say(&WriterEvent::Wrote(number))?,
            Err(StoreError::Refused(_)) => say(&WriterEvent::Refused)?,
            Err(StoreError::Unsure(what)) => say(&WriterEvent::Unsure(what))?,
            Err(StoreError::Failed(what)) => say(&WriterEvent::Failed(what))?,
        }
        // A session that was lost is not used again.
        client = guard.release().await.is_ok().then_some(palisade);
    }
    Ok(())
}

/// Acquires the lock and its token. A writer that is paused from here on still trusts both when it resumes.
async fn hold(
    config: &WriterConfig,
    client: Option<Palisade>,
) -> Result<(Palisade, LockGuard, Token), palisade::Error> {
    let palisade = match client {
        Some(palisade) => palisade,
        None => super::connect(&config.engine, Duration::from_millis(config.ttl_ms)).await?,
    };
    let guard = palisade.lock(&config.lock).acquire().await?;
    let token = guard.token()?;
    Ok((palisade, guard, token))
}

/// One update; says the number that was acknowledged.
async fn add_one(config: &WriterConfig, store: &dyn Store, token: Token, delay: Duration) -> Result<u64, StoreError> {
    let mut access = Access::begin(store, config.scheme, token).await?;
    let number = access.read().await?;
    // If stdout is closed, the parent is gone and this process ends.
    say(&WriterEvent::Read(number)).map_err(|error| StoreError::Failed(error.to_string()))?;
    tokio::time::sleep(delay).await;
    access.write(number + 1).await?;
    Ok(number + 1)
}

fn say(said: &WriterEvent) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(said)?)?;
    out.flush()
}
