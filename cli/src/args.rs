//! The command line, for clap. Each command's options are in its module.

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand};

use crate::outcome::EXIT_CODES;
use crate::recipe::{once, queue};
use crate::view::{ls, show, top, watch};
use crate::{
    advise, cluster, completions, doctor, elect, engine, fence, force, leader, lease, man, page, prove, run, serve,
    tokens,
};

/// A distributed lock whose every grant carries a fencing token.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, after_help = after_help(), arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Where the locks are: embedded:, embedded:///path/locks.db, palisade://host:7420, palisades://user@host:7420,
    /// postgres://user@host/database, mysql://user@host/database, etcd://a,b,c, zookeeper://a,b,c, consul://host,
    /// redis://host, redlock://a,b,c,d,e
    ///
    /// palisades:, etcds:, consuls: and rediss: are encrypted. Pass secrets in PALISADE_SECRET; other users can read command lines.
    ///
    /// Default: the configuration file's url, or else embedded:, one file on this host.
    #[arg(long, global = true, value_name = "URL", env = "PALISADE_URL", hide_env_values = true)]
    pub(crate) url: Option<String>,

    /// The configuration file [default: ~/.config/palisade/config.toml, /etc/palisade/config.toml]
    ///
    /// Its keys: url, as --url; ttl, as --ttl of every command that has it; label, as --label; and the table [serve].
    #[arg(long, global = true, value_name = "FILE", env = "PALISADE_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,

    /// Report progress on stderr; twice: also the library's log
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    ///
    /// Waits for the lock, runs the command, and passes on its exit code. If the lock cannot be kept, the command's whole
    /// process group is killed before another client can get the lock, even if palisade itself is killed. Processes that
    /// the command leaves in its process group are killed before the lock is released.
    #[command(after_help = run::EXAMPLES)]
    Run(run::Options),

    /// Take a lock and keep it across the steps of a script
    ///
    /// Waits for the lock, prints what the next steps need, and exits. The lock is then held until it is released, or until
    /// its TTL has passed without a renewal: it does not depend on any process, and outlives even a reboot.
    #[command(after_help = lease::ACQUIRE_EXAMPLES)]
    Acquire(lease::Acquire),

    /// Give a lock that `acquire` took another TTL
    #[command(after_help = lease::RENEW_EXAMPLES)]
    Renew(lease::Renew),

    /// Release a lock that `acquire` took
    #[command(after_help = lease::RELEASE_EXAMPLES)]
    Release(lease::Release),

    /// Run a command on one host at a time, as the leader that `palisade leader` shows
    #[command(after_help = elect::EXAMPLES)]
    Elect(elect::Options),

    /// Run a command once per key, and print its kept output when it is called again
    ///
    /// For work that must happen once, however often it is attempted: a charge, an import, a mail. The record is in a database,
    /// and a lock makes parallel calls wait.
    #[command(after_help = once::EXAMPLES)]
    Once(once::Options),

    /// Show the leader of an election, and the value that it publishes
    #[command(after_help = leader::EXAMPLES)]
    Leader(leader::Options),

    /// Share partitions among hosts, and run a command for those of this host
    ///
    /// Each partition has one owner at a time, with a token of its own. The command gets the partitions that this host owns,
    /// and is ended and started again when they change. A partition goes to its next owner only after the command's whole
    /// process group has ended. While this host owns none, no command runs.
    #[command(after_help = run::partitions::EXAMPLES)]
    Partitions(run::partitions::Options),

    /// List the locks that are held or wanted
    ///
    /// One row per lock. Of several holders the oldest is shown, and how many there are; `palisade show` shows them
    /// all. HELD is for how long; LEFT is how long the holder's session lives without another keep-alive.
    #[command(after_help = ls::EXAMPLES)]
    Ls(ls::Options),

    /// Show one lock: its holders, its queue, its history
    ///
    /// The history covers the time since the lock came into use. Without holders and waiters, embedded: keeps only grants that
    /// `palisade break` ended, the last 256 of all locks; other engines keep nothing.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Options),

    /// Print what happens to locks, as it happens
    #[command(after_help = watch::EXAMPLES)]
    Watch(watch::Options),

    /// Show the locks on a live screen
    #[command(after_help = top::EXAMPLES)]
    Top(top::Options),

    /// Show the locks on a live page in the browser
    ///
    /// Works with every engine. Only this host can open the page, and only with the key in its address. It only shows, unless
    /// --allow-break is given.
    #[command(after_help = page::EXAMPLES)]
    Page(page::Options),

    /// Take a lock away from its holder
    ///
    /// The lock's history records the label, the local user and the reason; `palisade show` prints them. The next grant gets a
    /// higher token, so a resource that is sealed with it refuses late writes of the old holder.
    #[command(after_help = force::EXAMPLES)]
    Break(force::Options),

    /// Do jobs one at a time per key and in order, from a queue in a database
    ///
    /// The jobs are in a table of PostgreSQL or SQLite. A job whose worker dies is delivered again, with a higher token. Jobs of different
    /// keys are done at the same time.
    #[command(subcommand, after_help = queue::EXAMPLES)]
    Queue(queue::Command),

    /// Raise the tokens of an engine above the mark of a resource
    #[command(subcommand, after_help = tokens::EXAMPLES)]
    Tokens(tokens::Command),

    /// Run the lock service
    ///
    /// Keeps locks for clients on any number of hosts, and makes every grant durable before it is answered. Runs until
    /// SIGTERM or Ctrl-C; a second one ends it at once. Precedence: options, environment, the [serve] table of the
    /// configuration file, defaults.
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::Options),

    /// Look at a cluster of the service, and change its nodes
    ///
    /// Any node of the URL passes the request on to the one that leads. Users need the right `admin` for all locks, and for
    /// `status` the right `observe`.
    #[command(subcommand, after_help = cluster::EXAMPLES)]
    Cluster(cluster::Command),

    /// Have a resource refuse stale tokens
    #[command(subcommand, after_help = fence::EXAMPLES)]
    Fence(fence::Command),

    /// Print the SQL or Lua that an engine installs in its store
    #[command(subcommand, after_help = engine::EXAMPLES)]
    Engine(engine::Command),

    /// Report the engine's guarantees, whether it answers, and risky settings
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Options),

    /// Say which tool you need: a lock, or something simpler
    ///
    /// Asks up to five questions and answers with one tool and its recipe. Often that is no lock at all. Give the
    /// answers as options to be asked nothing. Options for questions that are not asked are ignored.
    #[command(after_help = advise::EXAMPLES)]
    Advise(advise::Options),

    /// Demonstrate lost updates without a fence, and none with one
    ///
    /// Real processes share a lock and write to a real resource: without a fence, with a check that only compares with the
    /// highest token (a ratchet), and strictly fenced. Without --url they use a temporary engine.
    #[command(after_help = prove::EXAMPLES)]
    Prove(prove::Options),

    /// Print a script with which a shell completes commands and options
    #[command(after_help = completions::EXAMPLES)]
    Completions(completions::Options),

    /// Print the manual, or write it to files
    #[command(after_help = man::EXAMPLES)]
    Man(man::Options),
}

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{EXIT_CODES}")
}

const EXAMPLES: &str = "\
Examples:
  palisade run nightly -- ./report.sh           Run it under a lock
  palisade run --no-wait sync -- ./sync.sh      Skip it if the lock is held
  palisade ls                                   List holders and waiters
  palisade advise                               Find out which tool you need";
