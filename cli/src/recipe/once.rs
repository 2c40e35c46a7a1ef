//! `palisade once`: a command that runs once per key, and whose output is kept.

use std::env;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use palisade::recipe::once::{
    Attempt, Begun, Finished, KEEP, MAX_KEEP, MAX_OUTCOME_BYTES, OnceStore, Record, keep_outcome, lock_name, lock_of,
};
use palisade::recipe::store::{Mysql, Postgres, Redis, Sqlite};
use palisade::{LockName, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionread};
use tokio::sync::oneshot;

use super::store::{StoreArgs, StoreUrl};
use crate::acquire::{AnyGuard, FailoverArgs, Verbosity, WaitArgs, wait_for_grant};
use crate::outcome::{Failure, say, unless_closed};
use crate::run::{CommandArgs, Extras};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::{parse_time, plain};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade once charge/42 -- ./charge.sh 42       A repeat prints its output
  palisade once --keep 7d import/2026-11-18 -- ./import.sh
  palisade once --store postgres://db/shop mail/42 -- ./mail.sh 42

If the command exits with 0, its stdout is kept, and every later call with the same KEY prints it and runs nothing. Otherwise nothing \
is kept, and the next call runs it again. A call that comes meanwhile waits.

The command gets PALISADE_ONCE_KEY; pass it on if the other side accepts idempotency keys. PALISADE_ONCE_PREVIOUS is set if an \
earlier attempt began and did not succeed: ask the other side before doing it again. It also gets what `palisade run` gives.

Callers on several hosts must share both the records (--store) and the locks (--url). If only one of them is given and is postgres: or \
mysql:, that database has both. If the worker is killed, the next call waits until the worker's session has ended (--ttl).

Exit codes: as `palisade run`, and 76 if another call has taken over meanwhile, so that the output was refused.";

/// Tells the command its key.
const ONCE_KEY: &str = "PALISADE_ONCE_KEY";

/// How long a process that has left the command's process group may add to its output after the command has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// The options of `palisade once`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The operation: the same in every attempt, such as the order's number
    #[arg(value_name = "KEY")]
    key: String,

    /// How long the output is kept [default: 1d]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    keep: Option<Duration>,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    wait_args: WaitArgs,

    #[command(flatten)]
    failover: FailoverArgs,

    #[command(flatten)]
    command_args: CommandArgs,
}

/// Prints the kept output, or runs the command and keeps its output.
pub(crate) async fn run(options: &Options, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let Options { key, keep, store, .. } = options;
    match LockName::new(&lock_name(key)) {
        Err(bad) => return Err(Failure::Misuse(format!("'{}' cannot be a key: {bad}", plain(key)))),
        Ok(_) if key.is_empty() => return Err(Failure::Misuse("the key must not be empty".to_owned())),
        Ok(_) => {}
    }
    let keep = keep.unwrap_or(KEEP);
    if keep.is_zero() || keep > MAX_KEEP {
        return Err(Failure::Misuse("--keep must be above 0 and at most 366d".to_owned()));
    }
    let (store, settings) = &store.with_locks(settings)?;
    match store.url()? {
        StoreUrl::Mysql(url) => run_on(&Mysql::connect(url).await?, options, keep, settings, verbose).await,
        StoreUrl::Postgres(url) => run_on(&Postgres::connect(url).await?, options, keep, settings, verbose).await,
        StoreUrl::Redis(url) => run_on(&Redis::connect(url).await?, options, keep, settings, verbose).await,
        StoreUrl::Sqlite(file) => run_on(&Sqlite::open(file).await?, options, keep, settings, verbose).await,
    }
}

async fn run_on<S: OnceStore>(
    store: &S,
    options: &Options,
    keep: Duration,
    settings: &Settings,
    verbose: u8,
) -> Result<(), Failure> {
    let Options { key, wait_args, failover, command_args, .. } = options;
    match store.find(key).await? {
        Some(Record { outcome: Some(output), .. }) => return print_kept(&output, key, verbose),
        // The outer call waits for its command, which would wait for the outer call.
        Some(Record { token: Some(token), .. }) if is_inside(key, token) => {
            return Err(Failure::Misuse(format!(
                "'{0}' would wait for itself: this process is part of the command that `palisade once {0}` runs",
                plain(key)
            )));
        }
        _ => {}
    }
    let label = command_args.label(settings);
    let palisade = command_args.connect_options(settings).connect(&settings.url).await?;
    // From here on a signal must release the session. Before, it may end the process while the engine connects.
    let mut signals = Signals::listen()?;
    let names = [lock_name(key)];
    let acquire = wait_args.acquire(lock_of(&palisade, key, failover.dangerous_accept_failover)?);
    let verbosity = Verbosity { level: verbose, label: &label, url: &settings.url };
    let Some(guard) = wait_for_grant(&palisade, &names, verbosity, &mut signals, acquire).await? else {
        return Err(Failure::NotAcquired(wait_args.not_acquired(&palisade, &names).await));
    };
    let attempt = Attempt { token: guard.token()?, request: None, keep };
    let previous = match store.begin(key, &attempt).await? {
        Begun::Run { previous } => previous,
        Begun::Done(output) => return print_kept(&output, key, verbose),
        Begun::OtherRequest => {
            return Err(Failure::Misuse(format!("'{}' was used for another request; use another key", plain(key))));
        }
        Begun::Superseded { by } => {
            return Err(Failure::Unavailable(format!(
                "an attempt at '{}' with token {by} has begun, and this one has {}. Either its caller uses other locks: give all \
                 callers the same --url. Or this engine has replaced another one: palisade tokens raise --above {by}",
                plain(key),
                attempt.token
            )));
        }
    };
    if let Some(previous) = previous {
        say(&format!(
            "an earlier attempt at '{}', with token {previous}, did not succeed, and may have done the work",
            plain(key)
        ));
    }
    if verbose > 0 {
        say(&format!("running '{}' with token {}", plain(key), attempt.token));
    }
    let (output, printed, stdout) = Output::tee()?;
    let variables = vec![
        (ONCE_KEY, Some(key.clone())),
        ("PALISADE_ONCE_PREVIOUS", previous.map(|previous| previous.to_string())),
    ];
    let extras = Extras { variables, stdout: Some(stdout) };
    let ended = async |code: u8| {
        let output = output.end().await;
        if code != 0 {
            return Ok(());
        }
        let Some(output) = output else {
            return Err(Failure::Unavailable(format!(
                "'{}' was done, but its output has more than {MAX_OUTCOME_BYTES} bytes and cannot be kept: the next call does it \
                 again. Write the output to a file, and print its name",
                plain(key)
            )));
        };
        let finished = keep_outcome(store, key, &attempt, &output).await.map_err(|error| {
            Failure::Unavailable(format!(
                "'{}' was done, but its output could not be kept, so the next call does it again: {error}",
                plain(key)
            ))
        })?;
        match finished {
            Finished::Kept => Ok(()),
            Finished::Refused { by } => {
                let why = match by {
                    Some(by) => {
                        format!("a call with token {by} has taken over. Call it again for the output that counts")
                    }
                    None => "its record is gone. Find out whether it must be done again before you call it again"
                        .to_owned(),
                };
                Err(Failure::Lost(format!("'{}' was done, but its output was refused: {why}", plain(key))))
            }
        }
    };
    let ended = command_args.run_then(AnyGuard::Lock(guard), &names, extras, settings, &mut signals, ended).await;
    // The outcome is kept, and the lock released: only the reader of stdout is late.
    tokio::select! {
        biased;
        printed = printed => match printed {
            Ok(Err(error)) => ended.and_then(|()| unless_closed(Err(error))),
            _ => ended,
        },
        stop = signals.stop_requested() => ended.and(Err(Failure::Exit(stop.exit_code()))),
    }
}

/// Whether this process is part of the command of this attempt.
fn is_inside(key: &str, token: Token) -> bool {
    let variable = |name| env::var(name).ok();
    variable(ONCE_KEY).as_deref() == Some(key) && variable("PALISADE_TOKEN") == Some(token.to_string())
}

fn print_kept(output: &[u8], key: &str, verbose: u8) -> Result<(), Failure> {
    if verbose > 0 {
        say(&format!("'{}' has run already; its output follows", plain(key)));
    }
    unless_closed(io::stdout().write_all(output).and_then(|()| io::stdout().flush()))
}

/// The output of a command, which is kept, and also passed on to stdout.
struct Output {
    /// Receives the output when it has ended; `None` if it is longer than can be kept.
    kept: oneshot::Receiver<Option<Vec<u8>>>,
    /// Closed when the command has ended.
    command_runs: PipeWriter,
}

impl Output {
    /// Returns the end of a pipe for the command, and reads the other end on a separate thread. The receiver is closed when
    /// everything was passed on, or got the error of stdout.
    fn tee() -> Result<(Output, oneshot::Receiver<io::Result<()>>, OwnedFd), Failure> {
        let (source, writer) = io::pipe()?;
        let (is_running, command_runs) = io::pipe()?;
        let (keep, kept) = oneshot::channel();
        let (printing, printed) = oneshot::channel();
        thread::spawn(move || {
            // The receiver is gone if a signal has ended the wait.
            drop(printing.send(pass_on(source, &is_running, keep)));
        });
        Ok((Output { kept, command_runs }, printed, writer.into()))
    }

    /// Waits until the output of the command, whose process group is empty, has ended. Returns it; `None` if it is too long.
    async fn end(self) -> Option<Vec<u8>> {
        drop(self.command_runs);
        self.kept.await.ok().flatten()
    }
}

/// Reads the output to its end, sends it to `keep`, and passes it on to stdout. An error of stdout does not end the command: its output
/// is kept for the next call.
fn pass_on(
    mut source: PipeReader,
    is_running: &PipeReader,
    keep: oneshot::Sender<Option<Vec<u8>>>,
) -> io::Result<()> {
    // Stdout may be a pager that reads nothing for an hour. The output that can be kept does not wait for it.
    let (print, chunks) = mpsc::channel::<Vec<u8>>();
    let printing = thread::spawn(move || chunks.into_iter().try_for_each(|chunk| write_to_stdout(&chunk)));
    let mut printed = Ok(());
    let mut keeping = Some((keep, print, printing));
    let (mut bytes, mut buffer, mut rest) = (Vec::new(), vec![0; 64 << 10], None);
    while has_more(&source, is_running, &mut rest) {
        let read = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if let Some(rest) = &mut rest {
            rest.owed = rest.owed.saturating_sub(read.len() as u64);
        }
        if let Some((_, print, _)) = &keeping
            && bytes.len() + read.len() <= MAX_OUTCOME_BYTES
        {
            bytes.extend_from_slice(read);
            drop(print.send(read.to_vec()));
            continue;
        }
        if let Some((keep, print, printing)) = keeping.take() {
            drop((keep.send(None), print));
            printed = printing.join().unwrap_or(Ok(()));
        }
        if printed.is_ok() {
            printed = write_to_stdout(read);
        }
    }
    match keeping {
        Some((keep, print, printing)) => {
            drop((keep.send(Some(bytes)), print));
            printing.join().unwrap_or(Ok(()))
        }
        None => printed,
    }
}

/// The output after the command's end.
struct Rest {
    /// The bytes of the command's process group that are still in the pipe.
    owed: u64,
    /// Until when a process that has left the group may add to them.
    until: Instant,
}

/// Waits for more output. Returns whether there may be some.
fn has_more(source: &PipeReader, is_running: &PipeReader, rest: &mut Option<Rest>) -> bool {
    loop {
        let left = match rest {
            None => None,
            Some(Rest { owed: 1.., .. }) => return true,
            Some(Rest { until, .. }) => match until.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return false,
                left => Timespec::try_from(left).ok(),
            },
        };
        let mut polled = [PollFd::new(source, PollFlags::IN), PollFd::new(is_running, PollFlags::IN)];
        let watched = if rest.is_none() { 2 } else { 1 };
        match poll(&mut polled[..watched], left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(_) if !polled[1].revents().is_empty() => {
                let owed = ioctl_fionread(source).unwrap_or_default();
                *rest = Some(Rest { owed, until: Instant::now() + OUTPUT_TIMEOUT });
            }
            Ok(0) => return false,
            Ok(_) | Err(_) => return true,
        }
    }
}

fn write_to_stdout(bytes: &[u8]) -> io::Result<()> {
    io::stdout().write_all(bytes)?;
    io::stdout().flush()
}
