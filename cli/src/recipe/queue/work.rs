//! `palisade queue work`: a command that runs once for each job.

use std::ffi::OsString;
use std::future::pending;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::thread;
use std::time::Duration;

use palisade::recipe::queue::{Job, JobError, Queue, QueueStore, poll_pauses};
use palisade::{BootInstant, Error};
use tokio::time::{sleep, timeout};

use super::super::store::StoreArgs;
use super::parse_visibility;
use crate::outcome::{Failure, say};
use crate::run::warded::{KillTime, WardedCommand, warden_of};
use crate::signals::{Signals, StopSignal};
use crate::text::plain;

/// How long a worker waits after the store has failed.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// How long a worker that is stopped waits for the reply to its request for a job.
const TAKE_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub(super) drain: bool,

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
    let mut pauses = poll_pauses();
    loop {
        let pause = match take(&queue, &mut signals).await? {
            Ok(Some(job)) => {
                if let Some(stop) = work(options, job, &mut signals, verbose).await? {
                    return Err(Failure::Exit(stop.exit_code()));
                }
                pauses = poll_pauses();
                continue;
            }
            Ok(None) if options.drain => return say_what_is_left(&options.name, &queue).await,
            Ok(None) => pauses.next().unwrap_or(RETRY_DELAY),
            // A worker survives a restart of the database.
            Err(error) if error.is_retryable() && !options.drain => {
                say(&format!("{error}; trying again"));
                RETRY_DELAY
            }
            Err(error) => return Err(error.into()),
        };
        tokio::select! {
            biased;
            stop = signals.stop_requested() => return Err(Failure::Exit(stop.exit_code())),
            () = sleep(pause) => {}
        }
    }
}

/// Asks once for a job. A signal to stop does not end the request, because the store may carry it out nevertheless: its job is given
/// back.
async fn take<S: QueueStore>(
    queue: &Queue<S>,
    signals: &mut Signals,
) -> Result<Result<Option<Job<S>>, Error>, Failure> {
    let mut take = pin!(queue.take());
    let stop = tokio::select! {
        biased;
        stop = signals.stop_requested() => stop,
        taken = &mut take => return Ok(taken),
    };
    if let Ok(Ok(Some(job))) = timeout(TAKE_TIMEOUT, take).await {
        settled(job.give_back().await)?;
    }
    Err(Failure::Exit(stop.exit_code()))
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
            settled(job.give_back().await)?;
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
        if settled(job.done().await)? && verbose > 0 {
            say(&format!("job {id} of '{key}' is done"));
        }
        return Ok(stop);
    }
    let why = format!("exit code {}", ended.code);
    if ended.was_not_executed {
        // It would fail for every job, and make all of them dead letters.
        settled(job.give_back().await)?;
        say(&format!(
            "the command cannot be run ({why}), so this worker stops; job {id} of '{key}' is left to others"
        ));
        return Err(Failure::Exit(ended.code));
    }
    if stop.is_some() {
        if settled(job.give_back().await)? {
            say(&format!("job {id} of '{key}' was stopped ({why}); another worker gets it"));
        }
        return Ok(stop);
    }
    let then = match attempt >= options.attempts {
        true => format!("it is a dead letter now; palisade queue ls {} --dead lists it", plain(&options.name)),
        false => "it is tried again later".to_owned(),
    };
    if settled(job.fail(why.clone()).await)? {
        say(&format!("job {id} of '{key}' failed in attempt {attempt} of {}: {why}; {then}", options.attempts));
    }
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

/// Returns whether a job was settled. Reports one that was delivered again meanwhile, and one that may be settled: the worker goes on
/// with other jobs.
fn settled(result: Result<(), JobError>) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(JobError::Failed(error)) if !error.may_have_taken_effect() => Err(error.into()),
        Err(error) => {
            say(&error.to_string());
            Ok(false)
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
    // A blocking task of the runtime would keep this process alive if no process reads the payload.
    thread::spawn(move || feed(feeder, &payload));
    Ok(command)
}

/// Writes the payload. A command need not read it.
fn feed(mut stdin: PipeWriter, payload: &[u8]) {
    let _ = stdin.write_all(payload);
}
