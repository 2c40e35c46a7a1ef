//! `palisade prove`: experiments that show why fencing is needed, on real processes and real resources.

mod child;
mod cluster;
mod drawing;
mod fencing;
mod measure;
mod order;
mod pauser;
mod pauses;
mod progress;
mod redlock;
mod server_process;
mod show;
mod store;
mod wire;
mod workload;
mod writer;
mod writers;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use palisade::{Options as ConnectOptions, Palisade};
use tempfile::TempDir;

use crate::args::Global;
use crate::outcome::Failure;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade prove pauses
  palisade prove pauses --resource postgres://localhost/try --for 1m
  palisade prove order
  palisade prove redlock --svg redlock.svg
  palisade prove cluster --nodes 5 --for 2h

Exit codes:
  0   updates were lost without a fence, and none with the strict fence
  1   inconclusive: no loss without a fence, or no writer overtaken; try longer
  2   an update was lost despite the strict fence: please report it
  64  misuse
  69  the engine or the resource cannot be used
  74  reading or writing failed
  128+N  ended by signal N

Experiments ignore the configuration file, so that none runs among other locks by accident.";

/// For `--help` of `pauses`.
const PAUSES_EXAMPLES: &str = "\
Examples:
  palisade prove pauses
  palisade prove pauses --resource postgres://localhost/try --for 1m
  palisade prove pauses --resource file:. --ttl 500ms --overtaken 3
  palisade prove pauses --url palisade://localhost:7420 --json

Five processes share a lock. Each one reads a counter, waits for a moment, and writes it incremented. Some are stopped \
(SIGSTOP) for longer than the TTL while they wait. Each writer counts its acknowledged increments. The final value must \
equal their sum.

Exit codes: as `palisade prove`.";

/// For `--help` of `order`.
const ORDER_EXAMPLES: &str = "\
Examples:
  palisade prove order
  palisade prove order --resource sqlite:/tmp/try.db --json

Exit codes: as `palisade prove`.";

/// For `--help` of `redlock`.
const REDLOCK_EXAMPLES: &str = "\
Examples:
  palisade prove redlock
  palisade prove redlock --svg redlock.svg --json

It starts five Redis servers, and two processes that share a lock on them. One server's clock jumps; one server is \
restarted, empty; the holder is stopped (SIGSTOP) after it has checked its lock. Each time both processes hold the \
lock, and an update is lost. Then the same faults are injected with a Palisade engine and a fenced file. Needs redis-server and \
faketime (Debian: apt-get install redis-server faketime).

Exit codes: as `palisade prove`; 1 if Redlock did not fail as it should, 2 if an update was lost despite the fence.";

/// For `--help` of `cluster`.
const CLUSTER_EXAMPLES: &str = "\
Examples:
  palisade prove cluster
  palisade prove cluster --nodes 5 --for 2h --svg timeline.svg
  palisade prove cluster --seed 7 --for 1m --json
  palisade prove cluster --system etcd
  palisade prove cluster --system zookeeper

It starts a cluster on this machine, and processes that increment two numbers under its locks: one without a fence, one \
strictly fenced. Some of them are stopped (SIGSTOP) for longer than the TTL while they hold a lock. Meanwhile nodes are \
killed, stopped and cut off from each other, their wall clocks jump, and their disks fill up. Each fault ends, and the next \
one begins after the cluster has granted a lock again. Ctrl-C ends the run early and prints the report; the exit code is \
then 130, or 2 if an update was lost despite the fence.

Wall clocks need faketime (Debian: apt-get install faketime). --system etcd needs etcd, --system zookeeper Java and ZooKeeper.

Exit codes: as `palisade prove`; 69 if the cluster does not serve clients again within 90s, or a node ended by itself.";

/// The exit code of an inconclusive run.
const INCONCLUSIVE: u8 = 1;
/// The exit code when the strict fence has lost an update.
const FENCE_BROKEN: u8 = 2;

/// The options of `palisade prove`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, clap::Subcommand)]
enum Experiment {
    /// Stop writers for longer than their lock lives, and count the updates that are lost
    #[command(after_help = PAUSES_EXAMPLES)]
    Pauses(pauses::Options),

    /// Show, step by step, how a stale holder's delayed write is lost or refused
    #[command(after_help = ORDER_EXAMPLES)]
    Order(order::Options),

    /// Show how Redlock grants a lock to two clients at once, and how a fence prevents the damage
    #[command(after_help = REDLOCK_EXAMPLES)]
    Redlock(redlock::Options),

    /// Kill, pause and cut off the nodes of a cluster, and count the updates that are lost
    #[command(after_help = CLUSTER_EXAMPLES)]
    Cluster(cluster::Options),
}

/// The resource of an experiment.
#[derive(Debug, clap::Args)]
struct ResourceArgs {
    /// Where the number is kept: file:FOLDER, sqlite:FILE, postgres://…, mysql://…, redis://…, http:, s3://BUCKET
    /// [default: a temporary file]
    ///
    /// Test data uses a fresh name, `palisade_proof_…`, and is deleted afterwards. In a database, the fence (`palisade
    /// fence`) and one mark per run remain. `http:` starts a test service. `http://…` uses your service, which must return
    /// on GET what was PUT, behind a fencing proxy. For `s3://BUCKET/PATH`, the AWS_… variables name endpoint and credentials.
    /// In a folder, the empty file `.palisade-lock` remains. Without --url the locks are in a temporary file, whatever the
    /// configuration file says.
    #[arg(long, value_name = "URL")]
    resource: Option<String>,
}

/// The URLs of the engine and of the resource, and the temporary folder that one of them may be in.
struct Setup {
    engine: String,
    resource: String,
    _folder: Option<TempDir>,
}

impl ResourceArgs {
    /// Uses the named engine and resource, or makes them in a temporary folder. Ignores the configuration file, so that an
    /// experiment never runs among production locks by accident.
    async fn prepare(&self, global: &Global) -> Result<Setup, Failure> {
        let resource = match self.resource.as_deref() {
            Some("http:") => Some(store::service::start(None).await?),
            Some(url) if url.starts_with("http://") => Some(store::service::start(Some(url)).await?),
            url => url.map(str::to_owned),
        };
        if let (Some(engine), Some(resource)) = (&global.url, &resource) {
            return Ok(Setup { engine: engine.clone(), resource: resource.clone(), _folder: None });
        }
        let folder = tempfile::Builder::new().prefix("palisade-proof-").tempdir()?;
        let temporary_engine = || format!("embedded://{}", folder.path().join("locks.db").display());
        let temporary_resource = || format!("file:{}", folder.path().display());
        Ok(Setup {
            engine: global.url.clone().unwrap_or_else(temporary_engine),
            resource: resource.unwrap_or_else(temporary_resource),
            _folder: Some(folder),
        })
    }
}

/// Runs a child process's part of an experiment, if this process was started for one.
pub(crate) fn run_as_child(args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let args: Vec<_> = args.collect();
    writer::run_as_child(&args).or_else(|| redlock::run_as_child(&args)).or_else(|| child::become_server(&args))
}

/// Runs the experiment.
pub(crate) async fn run(options: &Options, global: &Global) -> Result<(), Failure> {
    match &options.experiment {
        Experiment::Pauses(options) => pauses::run(options, global).await,
        Experiment::Order(options) => order::run(options, global).await,
        Experiment::Redlock(options) => {
            refuse_url(global, "redlock")?;
            redlock::run(options).await
        }
        Experiment::Cluster(options) => {
            refuse_url(global, "cluster")?;
            cluster::run(options).await
        }
    }
}

/// Refuses a --url that would be ignored. PALISADE_URL is for the other commands of a shell.
fn refuse_url(global: &Global, experiment: &str) -> Result<(), Failure> {
    match &global.url {
        Some(url) if std::env::var("PALISADE_URL").ok().as_ref() != Some(url) => {
            let what = format!("prove {experiment} starts its own servers, and tests no other ones; leave out --url");
            Err(Failure::Misuse(what))
        }
        _ => Ok(()),
    }
}

/// Returns a random name, for the lock and for the test data in the resource.
fn unused_name() -> String {
    format!("palisade_proof_{:016x}", fastrand::u64(..))
}

/// Returns the name of the lock that protects the number of this name.
fn lock_name(name: &str) -> String {
    format!("palisade-proof/{name}")
}

async fn connect(engine: &str, ttl: Duration) -> Result<Palisade, palisade::Error> {
    let label = crate::text::label("palisade prove".to_owned());
    ConnectOptions::new().ttl(ttl).label(label).connect(engine).await
}
