//! `palisade queue work`: a command that runs once for each job.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::pin::Pin;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use palisade::BootInstant;
use palisade::recipe::queue::{Job, JobError, Queue, QueueStore};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid};
use tokio::task::{JoinHandle, spawn_blocking};

use super::super::store::StoreArgs;
use super::parse_visibility;
use crate::outcome::{Failure, say};
use crate::run::BECOME;
use crate::signals::{Signals, exit_code};
use crate::text::plain;

/// The exit codes of a command that cannot be executed, and of one that was not found.
const CANNOT_EXECUTE: i32 = 126;
const NOT_FOUND: i32 = 127;

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
pub(super) async fn run<S: QueueStore>(options: &Options, store: &S) -> Result<(), Failure> {
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
            Ok(None) => return Ok(()),
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
        if let Some(signal) = work(options, job, &mut signals).await? {
            return Err(Failure::Exit(exit_code(signal.as_raw())));
        }
    }
}

/// Runs the command for a job, and settles the job. Returns a signal that asks this process to stop.
async fn work<S: QueueStore>(
    options: &Options,
    job: Job<S>,
    signals: &mut Signals,
) -> Result<Option<Signal>, Failure> {
    let mut running = match Running::start(options, &job) {
        Ok(running) => running,
        Err(error) => {
            settled(job.fail(format!("the command could not be started: {error}")).await)?;
            return Err(error.into());
        }
    };
    let mut stop = None;
    let mut visible_until = BootInstant::now() + options.visibility;
    let mut extend_at = BootInstant::now() + options.visibility / 3;
    let mut extension: Option<Extension<'_>> = None;
    let status = loop {
        tokio::select! {
            biased;
            status = &mut running.ended => break status.map_err(io::Error::other)??,
            signal = signals.next() => {
                running.send(signal);
                if [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal) {
                    stop = Some(signal);
                }
            }
            () = visible_until.reached() => {
                running.send(Signal::KILL);
                running.wait().await?;
                let key = plain(job.key());
                say(&format!("the job of '{key}' could not be extended, and its command was killed"));
                return Ok(stop);
            }
            () = extend_at.reached(), if extension.is_none() => {
                // Counted from before the request, as the store may carry it out at once.
                let began = BootInstant::now();
                extend_at = began + options.visibility / 3;
                let job = &job;
                extension = Some(Box::pin(async move { (began, job.extend().await) }));
            }
            // A store that does not answer must not keep the command from being killed in time.
            (began, extended) = extended(&mut extension) => {
                extension = None;
                match extended {
                    Ok(()) => visible_until = began + options.visibility,
                    Err(error @ JobError::Stale { .. }) => {
                        running.send(Signal::KILL);
                        running.wait().await?;
                        say(&format!("{error}; its command was killed"));
                        return Ok(stop);
                    }
                    Err(error) => say(&format!("{error}; trying again")),
                }
            }
        }
    };
    drop(extension);
    let why = match (status.code(), status.signal()) {
        (Some(0), _) => {
            settled(job.done().await)?;
            return Ok(stop);
        }
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("ended by signal {}", signal.unwrap_or_default()),
    };
    let (id, key, attempt) = (job.id(), plain(job.key()), job.attempt());
    let then = match attempt >= options.attempts {
        true => format!("it is a dead letter now; palisade queue ls {} --dead lists it", plain(&options.name)),
        false => "it is tried again later".to_owned(),
    };
    settled(job.fail(why.clone()).await)?;
    say(&format!("job {id} of '{key}' failed in attempt {attempt} of {}: {why}; {then}", options.attempts));
    match status.code() {
        // It would fail for every job, and make all of them dead letters.
        Some(code @ (CANNOT_EXECUTE | NOT_FOUND)) => {
            say("the command cannot be run, so this worker stops");
            Err(Failure::Exit(u8::try_from(code).unwrap_or(u8::MAX)))
        }
        _ => Ok(stop),
    }
}

/// A request to extend a job, and when it was made.
type Extension<'a> = Pin<Box<dyn Future<Output = (BootInstant, Result<(), JobError>)> + 'a>>;

/// Waits for the reply to a request to extend a job. Never returns without one.
async fn extended(extension: &mut Option<Extension<'_>>) -> (BootInstant, Result<(), JobError>) {
    match extension {
        Some(extension) => extension.await,
        None => std::future::pending().await,
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

/// The command of a job, in a process group of its own.
struct Running {
    group: Pid,
    ended: JoinHandle<io::Result<ExitStatus>>,
}

impl Running {
    fn start<S: QueueStore>(options: &Options, job: &Job<S>) -> io::Result<Running> {
        let mut command = Command::new("/proc/self/exe");
        // The command dies with this process: its job is then delivered again.
        command.arg(BECOME).arg(getpid().as_raw_nonzero().to_string()).args(&options.command);
        command.env("PALISADE_JOB_KEY", job.key()).env("PALISADE_JOB_TOKEN", job.token().to_string());
        command.env("PALISADE_JOB_ATTEMPT", job.attempt().to_string()).env("PALISADE_JOB_ID", job.id().to_string());
        let mut child = command.stdin(Stdio::piped()).process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        if let Some(stdin) = child.stdin.take() {
            let payload = job.payload().to_owned();
            drop(spawn_blocking(move || feed(stdin, &payload)));
        }
        let ended = spawn_blocking(move || {
            // The number of the group is not used again before its leader is reaped.
            while waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
                .is_err_and(|error| error == rustix::io::Errno::INTR)
            {}
            // Processes that the command has left behind would work on the job of another worker.
            let _ = kill_process_group(group, Signal::KILL);
            child.wait()
        });
        Ok(Running { group, ended })
    }

    fn send(&self, signal: Signal) {
        // A group that is gone needs no signal.
        let _ = kill_process_group(self.group, signal);
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.ended).await.map_err(io::Error::other)?
    }
}

/// Writes the payload. A command need not read it.
fn feed(mut stdin: ChildStdin, payload: &[u8]) {
    let _ = stdin.write_all(payload);
}
