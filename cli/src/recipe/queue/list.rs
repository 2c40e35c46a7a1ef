//! `palisade queue ls`: the jobs of a queue.

use std::io::{self, Write};

use palisade::recipe::queue::{JobInfo, JobState, Queue, QueueStore};
use serde::Serialize;

use super::super::store::StoreArgs;
use crate::outcome::{Failure, say, unless_closed};
use crate::text::{plain, print_json};
use crate::view::table::Column::{Short, Text};
use crate::view::table::{print, table};

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

/// The options of `palisade queue ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The queue
    #[arg(value_name = "NAME")]
    name: String,

    /// List the dead letters: jobs whose attempts are used up
    #[arg(long)]
    dead: bool,

    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(super) store: StoreArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    queue: &'a str,
    jobs: Vec<ReportedJob<'a>>,
}

#[derive(Serialize)]
struct ReportedJob<'a> {
    id: String,
    key: &'a str,
    state: &'static str,
    attempt: u32,
    token: Option<u64>,
    reason: Option<&'a str>,
    payload_bytes: u64,
}

/// Lists jobs.
pub(super) async fn run<S: QueueStore>(options: &Options, store: &S) -> Result<(), Failure> {
    let queue = Queue::new(store, options.name.as_str());
    let jobs = match options.dead {
        true => queue.dead_letters(options.limit).await?,
        false => queue.jobs(options.limit).await?,
    };
    if !options.dead {
        let dead = queue.dead_letters(options.limit).await?;
        let is_blocking = dead.iter().any(|job| job.state == JobState::Dead { is_blocking: true });
        if !dead.is_empty() {
            let effect = if is_blocking { ", which block their keys" } else { "" };
            say(&format!("there are dead letters{effect}: palisade queue ls {} --dead", plain(&options.name)));
        }
    }
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => {
            let jobs = jobs.iter().map(reported).collect();
            print_json(&Report { schema: SCHEMA, queue: &options.name, jobs }, &mut out)
        }
        false if jobs.is_empty() => {
            let what = if options.dead { "dead letters" } else { "jobs" };
            say(&format!("the queue '{}' has no {what}", plain(&options.name)));
            Ok(())
        }
        false => as_table(&jobs, &mut out),
    })
}

fn reported(job: &JobInfo) -> ReportedJob<'_> {
    let JobInfo { id, key, attempt, state, reason, payload_bytes } = job;
    let token = match state {
        JobState::InWork { token } => Some(token.get()),
        _ => None,
    };
    let (attempt, payload_bytes) = (*attempt, *payload_bytes);
    ReportedJob {
        id: id.to_string(),
        key,
        state: state_name(*state),
        attempt,
        token,
        reason: reason.as_deref(),
        payload_bytes,
    }
}

fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "waiting",
        JobState::InWork { .. } => "in work",
        JobState::Dead { is_blocking: true } => "blocks its key",
        JobState::Dead { is_blocking: false } => "skipped",
        _ => "unknown",
    }
}

fn as_table(jobs: &[JobInfo], out: &mut impl Write) -> io::Result<()> {
    let mut rows = table(&[Short("ID"), Text("KEY"), Short("STATE"), Short("ATTEMPTS"), Text("LAST FAILURE")]);
    for job in jobs {
        let reason = job.reason.as_deref().map_or_else(|| "-".to_owned(), plain);
        let state = state_name(job.state).to_owned();
        rows.add_row([job.id.to_string(), plain(&job.key), state, job.attempt.to_string(), reason]);
    }
    print(&rows, out)?;
    out.flush()
}
