//! `palisade queue`: jobs that are done one at a time per key, and in order.

mod list;
mod work;

use std::env;
use std::io::{Read, Write};
use std::time::Duration;

use clap::Subcommand;
use palisade::recipe::queue::{JobId, MAX_PAYLOAD_BYTES, Queue, QueueStore};
use palisade::recipe::store::{Postgres, Sqlite};

use super::store::{StoreArgs, StoreUrl};
use crate::args::Global;
use crate::outcome::{Failure, say, unless_closed};
use crate::text::{parse_time, plain};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade queue push orders --key customer/7 'ship 42'
  palisade queue work orders -- ./ship.sh
  palisade queue ls orders --dead

docs/recipes/queue.md says what a queue promises, and when to use another one.";

const PUSH_EXAMPLES: &str = "\
Examples:
  palisade queue push orders --key customer/7 'ship 42'
  ./make-order | palisade queue push orders --key customer/7

Prints the number of the job.";

const WORK_EXAMPLES: &str = "\
Examples:
  palisade queue work orders -- ./ship.sh
  palisade queue work orders --drain --visibility 5m -- ./ship.sh

The command gets the payload on its stdin, and PALISADE_JOB_KEY, PALISADE_JOB_TOKEN, PALISADE_JOB_ATTEMPT and PALISADE_JOB_ID. \
If it exits with 0, the job is done. Otherwise it is retried after a delay. A TERM or Ctrl-C is passed on to the command; if that \
makes it fail, another worker gets the job, and the attempt does not count.

The command is killed before another worker can get its job: when palisade is killed or stopped, or when the store does not answer for \
as long as the visibility. A process that has left the command's process group goes on: pass the token to the resource that it writes to.";

const LS_EXAMPLES: &str = "\
Examples:
  palisade queue ls orders
  palisade queue ls orders --dead --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  palisade queue show orders 17
  palisade queue show orders 17 >job.json    # repair it, push it, drop 17";

const DEAD_EXAMPLES: &str = "\
Examples:
  palisade queue retry orders 17
  palisade queue drop orders 17 18

`palisade queue ls NAME --dead` lists the dead letters with their numbers.";

/// The subcommands of `palisade queue`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add a job behind the other jobs of its key
    #[command(after_help = PUSH_EXAMPLES)]
    Push(Push),

    /// Run a command for each job, one at a time
    ///
    /// Start as many workers as you like, on as many hosts as reach the store: they share the keys. Runs until it is stopped.
    #[command(after_help = WORK_EXAMPLES)]
    Work(work::Options),

    /// List the jobs, or the dead letters
    #[command(after_help = LS_EXAMPLES)]
    Ls(list::Options),

    /// Print the payload of a job or a dead letter
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Show),

    /// Make dead letters jobs again, in their old places
    #[command(after_help = DEAD_EXAMPLES)]
    Retry(Dead),

    /// Remove dead letters, so that later jobs of their keys are delivered
    #[command(after_help = DEAD_EXAMPLES)]
    Drop(Dead),
}

/// The options of `palisade queue push`.
#[derive(Debug, clap::Args)]
pub(crate) struct Push {
    /// The queue
    #[arg(value_name = "NAME")]
    name: String,

    /// Jobs with the same key are done one at a time, and in order
    #[arg(long, value_name = "KEY")]
    key: String,

    /// The payload, up to 1 MiB; - or none to read it from stdin
    #[arg(value_name = "PAYLOAD", default_value = "-", hide_default_value = true)]
    payload: String,

    /// Fail if the queue has this many jobs
    #[arg(long, value_name = "N")]
    max_depth: Option<u32>,

    #[command(flatten)]
    store: StoreArgs,
}

/// The options of `palisade queue show`.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The queue
    #[arg(value_name = "NAME")]
    name: String,

    /// The number of the job
    #[arg(value_name = "ID", value_parser = parse_id)]
    id: JobId,

    #[command(flatten)]
    store: StoreArgs,
}

/// The options of `palisade queue retry` and `drop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Dead {
    /// The queue
    #[arg(value_name = "NAME")]
    name: String,

    /// The number of a dead letter
    #[arg(value_name = "ID", required = true, value_parser = parse_id)]
    ids: Vec<JobId>,

    #[command(flatten)]
    store: StoreArgs,
}

/// Runs `palisade queue`.
pub(crate) async fn run(command: &Command, global: &Global) -> Result<(), Failure> {
    // The environment may name the engine for other commands.
    if global.url.is_some() && global.url != env::var("PALISADE_URL").ok() {
        let what = "a queue uses no locks, and so no --url: name the database of the jobs with --store";
        return Err(Failure::Misuse(what.to_owned()));
    }
    let store = match command {
        Command::Push(options) => &options.store,
        Command::Work(options) => &options.store,
        Command::Ls(options) => &options.store,
        Command::Show(options) => &options.store,
        Command::Retry(options) | Command::Drop(options) => &options.store,
    };
    match store.url()? {
        StoreUrl::Postgres(url) => run_on(command, &Postgres::connect(url).await?, global.verbose).await,
        StoreUrl::Sqlite(file) => {
            if let Command::Work(options) = command
                && options.store.is_default()
                && !options.drain
            {
                say(&format!(
                    "waiting for jobs in {}, which only this user on this host reaches; --store names a database that others share",
                    plain(&file.display().to_string())
                ));
            }
            run_on(command, &Sqlite::open(file).await?, global.verbose).await
        }
        StoreUrl::Mysql(_) | StoreUrl::Redis(_) => {
            Err(Failure::Misuse("a queue cannot be kept in mysql: or redis:; use postgres: or sqlite:".to_owned()))
        }
    }
}

async fn run_on<S: QueueStore>(command: &Command, store: &S, verbose: u8) -> Result<(), Failure> {
    match command {
        Command::Push(options) => push(options, store).await,
        Command::Work(options) => work::run(options, store, verbose).await,
        Command::Ls(options) => list::run(options, store).await,
        Command::Show(options) => show(options, store).await,
        Command::Retry(options) => {
            let queue = Queue::new(store, options.name.as_str());
            for id in &options.ids {
                must_exist(queue.retry(*id).await?, *id, &options.name)?;
            }
            Ok(())
        }
        Command::Drop(options) => {
            let queue = Queue::new(store, options.name.as_str());
            for id in &options.ids {
                must_exist(queue.discard(*id).await?, *id, &options.name)?;
            }
            Ok(())
        }
    }
}

async fn push<S: QueueStore>(options: &Push, store: &S) -> Result<(), Failure> {
    let mut queue = Queue::new(store, options.name.as_str());
    if let Some(max_depth) = options.max_depth {
        queue = queue.max_depth(max_depth);
    }
    let payload = match options.payload.as_str() {
        "-" => {
            let mut payload = Vec::new();
            // One byte more than allowed is enough to be refused.
            std::io::stdin().lock().take(MAX_PAYLOAD_BYTES as u64 + 1).read_to_end(&mut payload)?;
            payload
        }
        text => text.as_bytes().to_owned(),
    };
    let id = queue.push(&options.key, payload).await?;
    unless_closed(writeln!(std::io::stdout(), "{id}"))
}

async fn show<S: QueueStore>(options: &Show, store: &S) -> Result<(), Failure> {
    let Show { name, id, .. } = options;
    match Queue::new(store, name.as_str()).payload(*id).await? {
        Some(payload) => {
            let mut out = std::io::stdout().lock();
            unless_closed(out.write_all(&payload).and_then(|()| out.flush()))
        }
        None => Err(Failure::Misuse(format!(
            "the queue '{name}' has no job {id}; `palisade queue ls {name}` lists them, and with --dead the dead letters",
            name = plain(name)
        ))),
    }
}

fn must_exist(existed: bool, id: JobId, queue: &str) -> Result<(), Failure> {
    match existed {
        true => Ok(()),
        false => {
            let queue = plain(queue);
            Err(Failure::Misuse(format!(
                "the queue '{queue}' has no dead letter {id}; `palisade queue ls {queue} --dead` lists them"
            )))
        }
    }
}

fn parse_id(text: &str) -> Result<JobId, String> {
    JobId::parse(text).ok_or_else(|| format!("'{}' is not the number of a job", text.escape_debug()))
}

/// Parses the visibility. The bounds of the queue are checked by the library.
fn parse_visibility(text: &str) -> Result<Duration, String> {
    let visibility = parse_time(text)?;
    match visibility < SHORTEST_VISIBILITY {
        true => Err(format!("'{}' is too short; use at least 1s", text.escape_debug())),
        false => Ok(visibility),
    }
}

/// A worker extends the visibility three times as often. Shorter ones would pass while the store flushes.
const SHORTEST_VISIBILITY: Duration = Duration::from_secs(1);
