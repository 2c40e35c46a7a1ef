//! A writer: a process that increments the number whenever it holds the lock.

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
/// The delay before the next attempt after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Returns the command that starts a writer.
pub(super) fn command() -> Command {
    let mut command = child::self_command(WRITER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Runs the writer if this process was started as one.
pub(super) fn run_as_child(args: &[OsString]) -> Option<ExitCode> {
    if let Err(code) = child::enter_role(WRITER, args)? {
        return Some(code);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(run()));
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::outcome::report(&failure);
            ExitCode::from(failure.exit_code())
        }
    })
}

async fn run() -> Result<(), Failure> {
    let mut input = io::BufReader::new(io::stdin());
    let mut line = String::new();
    input.read_line(&mut line)?;
    let config: WriterConfig = serde_json::from_str(&line).map_err(io::Error::from)?;
    let (sender, stop) = watch::channel(false);
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
    increment_until(stop, &config, &*store).await
}

async fn increment_until(
    mut stop: watch::Receiver<bool>,
    config: &WriterConfig,
    store: &dyn Store,
) -> Result<(), Failure> {
    let mut rng = fastrand::Rng::with_seed(config.seed);
    let mut client = None;
    while !*stop.borrow() {
        let held = tokio::select! {
            _ = stop.wait_for(|is_requested| *is_requested) => return Ok(()),
            held = acquire(config, client.take()) => held,
        };
        let (palisade, guard, token) = match held {
            Ok(held) => held,
            // The session expired during a pause: connect again.
            Err(error) if error.loss().is_some() => continue,
            Err(error) => {
                send(&WriterEvent::Failed(error.to_string()))?;
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
        };
        let delay = Duration::from_millis(rng.u64(DELAY_MS));
        match increment(config, store, token, delay).await {
            Ok(number) => send(&WriterEvent::Wrote(number))?,
            Err(StoreError::Refused(_)) => send(&WriterEvent::Refused)?,
            Err(StoreError::UnknownOutcome(message)) => send(&WriterEvent::UnknownOutcome(message))?,
            Err(StoreError::Failed(message)) => send(&WriterEvent::Failed(message))?,
        }
        // A session that was lost is not used again.
        client = guard.release().await.is_ok().then_some(palisade);
    }
    Ok(())
}

/// Acquires the lock and its token. A writer that is paused from here on still trusts both when it resumes.
async fn acquire(
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

/// Reads the number, waits, and writes it plus one. Returns the number that was acknowledged.
async fn increment(
    config: &WriterConfig,
    store: &dyn Store,
    token: Token,
    delay: Duration,
) -> Result<u64, StoreError> {
    let mut access = Access::begin(store, config.fencing, token).await?;
    let number = access.read().await?;
    // If stdout is closed, the parent is gone and this process ends.
    send(&WriterEvent::Read(number)).map_err(|error| StoreError::Failed(error.to_string()))?;
    tokio::time::sleep(delay).await;
    access.write(number + 1).await?;
    Ok(number + 1)
}

fn send(event: &WriterEvent) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(event)?)?;
    out.flush()
}
