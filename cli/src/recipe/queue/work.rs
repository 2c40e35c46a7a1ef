//! `palisade queue work`: a command that runs once for each job.

use std::ffi::OsString;
use std::future::pending;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::time::Duration;

use palisade::BootInstant;
use palisade::recipe::queue::{Job, JobError, Queue, QueueStore};
use tokio::task::spawn_blocking;

use super::super::store::StoreArgs;
use super::parse_visibility;
use crate::outcome::{Failure, say};
use crate::run::warded::{KillTime, WardedCommand, warden_of};
use crate::signals::{Signals, StopSignal};
use crate::text::plain;

/// The exit codes of a command that cannot be executed, and of one that was not found.
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How long a worker waits after the store has failed.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// How long a worker that drains the queue waits for a job.
const DRAINED_AFTER: Duration = Duration::ZERO;

/// The options of `palisade queue work`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The queue
    #[arg(value_name = "NAME")]
    name: String,

    /// How long a worker may stop answering before its job is delivered to another one
    #[arg(long, value_name = "TIME", value_parser = parse_visibility, default_value = "30s")]
    visibility: Duration,

    /// After this many failed attempts, a job becomes a dead letter and blocks its key
    #[arg(long, value_name = "N", default_value_t = 5)]
    attempts: u32,

    /// Let a job that becomes a dead letter not block the later jobs of its key: gives up their order
    ///
    /// Dead letters that block already go on to block: retry or drop them.
    #[arg(long)]
    dangerous_continue_after_dead_letters: bool,

    /// Exit when no job is due, instead of waiting for the next one
    #[arg(long)]
    drain: bool,

    #[command(flatten)]
    pub(super) store: StoreArgs,

    /// The command, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command for one job after the other.
pub(super) async fn run<S: QueueStore>(options: &Options, store: &S, verbose: u8) -> Result<(), Failure> {
    let mut queue =
        Queue::new(store, options.name.as_str()).visibility(options.visibility).attempts(options.attempts);
    if options.dangerous_continue_after_dead_letters {
        queue = queue.dangerous_continue_after_dead_letters();
    }
    let mut signals = Signals::listen()?;
    loop {
        let next = async {
            match options.drain {
                true => queue.next_within(DRAINED_AFTER).await,
                false => queue.next().await.map(Some),
            }
        };
        let job = tokio::select! {
            biased;
            stop = signals.stop_requested() => return Err(Failure::Exit(stop.exit_code())),
            job = next => job,
        };
        let job = match job {
            Ok(Some(job)) => job,
            Ok(None) => return say_what_is_left(&options.name, &queue).await,
            // A worker survives a restart of the database.
            Err(error) if error.is_retryable() && !options.drain => {
                say(&format!("{error}; trying again"));
                tokio::select! {
                    biased;
                    stop = signals.stop_requested() => return Err(Failure::Exit(stop.exit_code())),
                    () = tokio::time::sleep(RETRY_DELAY) => continue,
                }
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(stop) = work(options, job, &mut signals, verbose).await? {
            return Err(Failure::Exit(stop.exit_code()));
        }
    }
}

/// After draining a queue: says whether it has jobs that are not due.
async fn say_what_is_left<S: QueueStore>(name: &str, queue: &Queue<S>) -> Result<(), Failure> {
    if !queue.jobs(1).await?.is_empty() {
        say(&format!(
            "jobs are left that wait for their next attempt, for another worker, or behind a dead letter: palisade queue ls {}",
            plain(name)
        ));
    }
    Ok(())
}

/// Runs the command for a job, and settles the job. Returns a signal that asks this process to stop.
async fn work<S: QueueStore>(
    options: &Options,
    job: Job<S>,
    signals: &mut Signals,
    verbose: u8,
) -> Result<Option<StopSignal>, Failure> {
    let mut command = match start(options, &job) {
        Ok(command) => command,
        Err(error) => {
            settled(job.fail(format!("the command could not be started: {error}")).await)?;
            return Err(error.into());
        }
    };
    if verbose > 0 {
        let (id, key, token) = (job.id(), plain(job.key()), job.token());
        say(&format!("running job {id} of '{key}' with token {token}, attempt {}", job.attempt()));
    }
    let kill_at = |job: &Job<S>| Some(KillTime::before_expiry(job.safe_until(), options.visibility));
    command.set_deadlines(None, kill_at(&job));
    let (mut stop, mut stale) = (None, None);
    let mut extend_at = BootInstant::now() + options.visibility / 3;
    let mut extension: Option<Extension<'_>> = None;
    let ended = loop {
        tokio::select! {
            biased;
            ended = command.ended() => break ended,
            signal = signals.next() => {
                stop = StopSignal::new(signal).or(stop);
                command.signal(signal);
            }
            () = extend_at.reached(), if extension.is_none() && stale.is_none() => {
                extend_at = BootInstant::now() + options.visibility / 3;
                extension = Some(Box::pin(job.extend()));
            }
            extended = extended(&mut extension) => {
                extension = None;
                match extended {
                    Ok(()) => command.set_deadlines(None, kill_at(&job)),
                    Err(error @ JobError::Stale { .. }) => {
                        command.kill();
                        stale = Some(error);
                    }
                    Err(error) => say(&format!("{error}; trying again")),
                }
            }
        }
    };
    drop(extension);
    if let Some(error) = stale {
        say(&format!("{error}; its command was killed"));
        return Ok(stop);
    }
    let (id, attempt, key) = (job.id(), job.attempt(), plain(job.key()));
    if ended.by_warden {
        say(&format!("the job of '{key}' could not be extended in time, and its command was killed"));
        return Ok(stop);
    }
    if ended.code == 0 {
        settled(job.done().await)?;
        if verbose > 0 {
            say(&format!("job {id} of '{key}' is done"));
        }
        return Ok(stop);
    }
    let why = format!("exit code {}", ended.code);
    if let CANNOT_EXECUTE | NOT_FOUND = ended.code {
        // It would fail for every job, and make all of them dead letters.
        settled(job.give_back().await)?;
        say(&format!(
            "the command cannot be run ({why}), so this worker stops; job {id} of '{key}' is left to others"
        ));
        return Err(Failure::Exit(ended.code));
    }
    if stop.is_some() {
        settled(job.give_back().await)?;
        say(&format!("job {id} of '{key}' was stopped ({why}); another worker gets it"));
        return Ok(stop);
    }
    let then = match attempt >= options.attempts {
        true => format!("it is a dead letter now; palisade queue ls {} --dead lists it", plain(&options.name)),
        false => "it is tried again later".to_owned(),
    };
    settled(job.fail(why.clone()).await)?;
    say(&format!("job {id} of '{key}' failed in attempt {attempt} of {}: {why}; {then}", options.attempts));
    Ok(None)
}

/// A request to extend a job.
type Extension<'a> = Pin<Box<dyn Future<Output = Result<(), JobError>> + 'a>>;

/// Waits for the reply to a request to extend a job. Never returns without one.
async fn extended(extension: &mut Option<Extension<'_>>) -> Result<(), JobError> {
    match extension {
        Some(extension) => extension.await,
        None => pending().await,
    }
}

/// Reports a job that was delivered again meanwhile. The worker goes on with other jobs.
fn settled(result: Result<(), JobError>) -> Result<(), Failure> {
    match result {
        Ok(()) => Ok(()),
        Err(JobError::Failed(error)) => Err(error.into()),
        Err(stale) => {
            say(&stale.to_string());
            Ok(())
        }
    }
}

/// Starts the command of a job, with the payload as its stdin.
fn start<S: QueueStore>(options: &Options, job: &Job<S>) -> io::Result<WardedCommand> {
    let mut warden = warden_of(&options.command);
    warden.env("PALISADE_JOB_KEY", job.key()).env("PALISADE_JOB_TOKEN", job.token().to_string());
    warden.env("PALISADE_JOB_ATTEMPT", job.attempt().to_string()).env("PALISADE_JOB_ID", job.id().to_string());
    let (stdin, feeder) = io::pipe()?;
    let command = WardedCommand::start(warden, stdin.as_fd(), None)?;
    let payload = job.payload().to_owned();
    drop(spawn_blocking(move || feed(feeder, &payload)));
    Ok(command)
}

/// Writes the payload. A command need not read it.
fn feed(mut stdin: PipeWriter, payload: &[u8]) {
    let _ = stdin.write_all(payload);
}
