//! A writer: a process of its own that adds one to the number whenever it holds the lock.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use palisade::{LockGuard, Palisade, Token};
use tokio::sync::watch;

use super::child;
use super::store::{self, Access, Store, Trouble};
use super::wire::{Part, Said};
use crate::outcome::Failure;
use crate::reach::without_secret;

/// A writer's role.
const WRITER: &str = "_writer";

/// How long a writer thinks between reading and writing. This is where it is stopped.
const THINKS_MS: std::ops::Range<u64> = 5..25;
/// After something has failed.
const REST: Duration = Duration::from_millis(50);

/// A process that will be a writer.
pub(super) fn command() -> Command {
    let mut command = child::again(WRITER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Does a writer's work, if that is what this process is for.
pub(super) fn serve(args: &[OsString]) -> Option<ExitCode> {
    if let Err(code) = child::begun_as(WRITER, args)? {
        return Some(code);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let worked = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(begin()));
    Some(match worked {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::outcome::tell(&failure);
            ExitCode::from(failure.exit_code())
        }
    })
}

async fn begin() -> Result<(), Failure> {
    let mut input = io::BufReader::new(io::stdin());
    let mut line = String::new();
    input.read_line(&mut line)?;
    let part: Part = serde_json::from_str(&line).map_err(io::Error::from)?;
    let (sender, end) = watch::channel(false);
    thread::spawn(move || {
        // Nothing more is said to it: it only matters when it ends.
        let _ = input.read_to_end(&mut Vec::new());
        sender.send(true)
    });
    let discreet = |failure: Failure| match failure.message() {
        Some(message) => Failure::Unreachable(without_secret(message, &part.resource)),
        None => failure,
    };
    let store = store::open(&part.resource, &part.name).await.map_err(discreet)?;
    work(&part, &*store, end).await
}

async fn work(part: &Part, store: &dyn Store, mut end: watch::Receiver<bool>) -> Result<(), Failure> {
    let mut draw = fastrand::Rng::with_seed(part.seed);
    let mut client = None;
    while !*end.borrow() {
        let held = tokio::select! {
            _ = end.wait_for(|has_come| *has_come) => return Ok(()),
            held = hold(part, client.take()) => held,
        };
        let (palisade, guard, token) = match held {
            Ok(held) => held,
            // Its session has expired while it was stopped: it begins anew.
            Err(error) if error.loss().is_some() => continue,
            Err(error) => {
                say(&Said::Failed(error.to_string()))?;
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let thinks = Duration::from_millis(draw.u64(THINKS_MS));
        match add_one(part, store, token, thinks).await {
            Ok(number) => say(&Said::Wrote(number))?,
            Err(Trouble::Refused(_)) => say(&Said::Refused)?,
            Err(Trouble::Unsure(what)) => say(&Said::Unsure(what))?,
            Err(Trouble::Failed(what)) => say(&Said::Failed(what))?,
        }
        // A session that was lost is not used again.
        client = guard.release().await.is_ok().then_some(palisade);
    }
    Ok(())
}

/// Takes the lock, and the token with it. Whoever is stopped from here on believes in both when it wakes.
async fn hold(part: &Part, client: Option<Palisade>) -> Result<(Palisade, LockGuard, Token), palisade::Error> {
    let palisade = match client {
        Some(palisade) => palisade,
        None => super::connect(&part.engine, Duration::from_millis(part.ttl_ms)).await?,
    };
    let guard = palisade.lock(&part.lock).acquire().await?;
    let token = guard.token()?;
    Ok((palisade, guard, token))
}

/// One update; says the number that was acknowledged.
async fn add_one(part: &Part, store: &dyn Store, token: Token, thinks: Duration) -> Result<u64, Trouble> {
    let mut access = Access::begin(store, part.scheme, token).await?;
    let number = access.read().await?;
    // With nobody to tell, the parent is gone, and so is this process.
    say(&Said::Read(number)).map_err(|error| Trouble::Failed(error.to_string()))?;
    tokio::time::sleep(thinks).await;
    access.write(number + 1).await?;
    Ok(number + 1)
}

fn say(said: &Said) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(said)?)?;
    out.flush()
}
