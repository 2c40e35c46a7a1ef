//! `palisade cluster`: the nodes of a cluster, its backups and its keys.

mod backup;
mod keys;
mod members;
mod status;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use palisade::Token;
use palisade::engine::service::{ClusterError, Config};
use palisade_server::storage::Member;

use crate::outcome::Failure;
use crate::settings::Settings;
use crate::text::{parse_time, plain};
use crate::tokens::parse_raise;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade cluster status --url palisade://host1:7420
  palisade cluster add b=host2:7422
  palisade cluster backup locks.backup

docs/cluster.md sets up three machines, replaces a dead one, and restores a backup.";

const STATUS_EXAMPLES: &str = "\
Examples:
  palisade cluster status --url palisade://host1:7420,host2:7420,host3:7420
  palisade cluster status --json | jq -r '.members[] | select(.problem) | .name'

The node that leads asks the others. Without one, a node answers with what it knows. ROLE is ? for a node that votes and cannot be \
reached. LAG is how many entries of the log a node \
lacks; WRITE is how long its writes took lately; TRIP is how long it took to answer. The exit code is 69 if no node leads.";

const ADD_EXAMPLES: &str = "\
Examples:
  palisade cluster add b=host2:7422
  palisade cluster add d=host4:7422 --timeout 10m

First start the new node there, with an empty directory: palisade serve --node b --join --peers host2:7422. It gets the log, and a \
vote once it has it. A service of one node is grown in the same way; start it with --node a --cluster a=host1:7422 first.";

const REMOVE_EXAMPLES: &str = "\
Examples:
  palisade cluster remove b

The node loses its vote first, then it is removed, and its process ends if it runs. If it leads, another node leads first. Its name can \
be used again, its directory cannot.";

const TRANSFER_EXAMPLES: &str = "\
Examples:
  palisade cluster transfer      Let any other node lead
  palisade cluster transfer b    Let this one lead

A node that is stopped with SIGTERM does the same before it ends.";

const BACKUP_EXAMPLES: &str = "\
Examples:
  palisade cluster backup locks.backup
  palisade cluster backup /backups/locks-$(date +%F)

The file has every lock, session and token as of now. It replaces an older file of that name once it is complete and on disk.";

const RESTORE_EXAMPLES: &str = "\
Examples:
  palisade cluster restore locks.backup --data-dir new --node a=host1:7422
  palisade serve --data-dir new

The new cluster has one node; add the others. Nodes of the old one are refused by it, and must be stopped: two clusters would grant the \
same lock. Tokens begin 4398046511104 above the last one in the backup, so that none is given twice.";

const RECOVER_EXAMPLES: &str = "\
Examples:
  palisade cluster recover --dangerous-lose-unreplicated old \\
    --data-dir new --node a=host1:7422

For a cluster whose majority is lost for good. What only the lost nodes had is gone: grants, sessions and releases of the last moments. \
Run it for each survivor, each with a new directory of its own: it prints the last entry. Start the new cluster with the one whose last \
entry has the highest term, and of those the highest number, and remove the other new directories.";

const KEYS_EXAMPLES: &str = "\
Examples:
  palisade cluster keys certificates a=host1 b=host2 c=host3
  palisade cluster keys certificates d=host4    With the same authority

Writes ca.pem, ca.key, and NAME.pem and NAME.key for each node. Copy ca.pem and its own two files to each host. Keep ca.key secret and \
elsewhere: its owner can make nodes of the cluster. The certificates do not expire; docs/cluster.md says how to replace them.";

/// The subcommands of `palisade cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the nodes: which one leads, which lag behind, which cannot be reached
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        /// Print JSON: one object, whose `schema` number changes when its fields do
        #[arg(long)]
        json: bool,
    },

    /// Add an empty node
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// Its name, and where it listens for the other nodes
        #[arg(value_name = "NAME=HOST:PORT", value_parser = parse_node)]
        node: Member,

        /// How long to wait until it votes
        #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5m")]
        timeout: Duration,
    },

    /// Remove a node, also one that is lost
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// Its name
        name: String,
    },

    /// Let another node lead
    #[command(after_help = TRANSFER_EXAMPLES)]
    Transfer {
        /// The node that is to lead; any, if none is named
        name: Option<String>,
    },

    /// Write a backup of all locks to a file
    #[command(after_help = BACKUP_EXAMPLES)]
    Backup {
        /// The file
        file: PathBuf,
    },

    /// Begin a new cluster with the locks of a backup
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(Restore),

    /// Begin a new cluster from what is left of one whose majority is lost
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover(Recover),

    /// Make certificates with which the nodes trust each other
    #[command(after_help = KEYS_EXAMPLES)]
    Keys {
        /// The directory of the files
        directory: PathBuf,

        /// The nodes, with the names or addresses of their hosts
        #[arg(value_name = "NAME=HOST", required = true, value_parser = parse_host)]
        nodes: Vec<(String, String)>,
    },
}

/// The options of `palisade cluster restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct Restore {
    /// The file of the backup
    file: PathBuf,

    #[command(flatten)]
    new: New,
}

/// The options of `palisade cluster recover`.
#[derive(Debug, clap::Args)]
pub(crate) struct Recover {
    /// The directory of a node that is left, and does not run
    directory: PathBuf,

    /// Accept that what only the lost nodes had is gone
    #[arg(long, required = true)]
    dangerous_lose_unreplicated: bool,

    #[command(flatten)]
    new: New,
}

/// The first node of a new cluster.
#[derive(Debug, clap::Args)]
struct New {
    /// The directory of its files, which does not exist yet
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Its name, and where it listens for the other nodes; without it, it is a service of one node
    #[arg(long, value_name = "NAME=HOST:PORT", value_parser = parse_node)]
    node: Option<Member>,

    /// A token that is in use at a resource: all tokens will be above it too
    #[arg(long, value_name = "N", value_parser = parse_raise)]
    tokens_above: Option<Token>,
}

/// Runs `palisade cluster`.
pub(crate) async fn run(command: &Command, settings: Result<Settings, Failure>) -> Result<(), Failure> {
    match command {
        Command::Status { json } => status::run(&config(&settings?)?, *json).await,
        Command::Add { node, timeout } => members::add(&config(&settings?)?, node, *timeout).await,
        Command::Remove { name } => members::remove(&config(&settings?)?, name).await,
        Command::Transfer { name } => members::transfer(&config(&settings?)?, name.as_deref()).await,
        Command::Backup { file } => backup::backup(&config(&settings?)?, file).await,
        Command::Restore(options) => backup::restore(options),
        Command::Recover(options) => backup::recover(options),
        Command::Keys { directory, nodes } => keys::make(directory, nodes),
    }
}

/// Returns the nodes of the URL.
fn config(settings: &Settings) -> Result<Config, Failure> {
    let parsed = match settings.url.split_once(':') {
        Some(("palisade", rest)) => Config::parse(rest),
        Some(("palisades", rest)) => Config::parse_encrypted(rest),
        _ => {
            let url = settings.redacted_url();
            return Err(Failure::Misuse(format!(
                "{url} is not a cluster of the service; name its nodes, as in --url palisade://host1:7420,host2:7420,host3:7420"
            )));
        }
    };
    parsed.map_err(|error| Failure::Misuse(error.to_string()))
}

/// Returns the failure of a request that is not repeated.
fn failure(error: ClusterError) -> Failure {
    match error {
        ClusterError::Refused(why) => Failure::Misuse(why),
        other => Failure::Unavailable(other.to_string()),
    }
}

fn parse_node(text: &str) -> Result<Member, String> {
    let (name, address) = text.split_once('=').ok_or("expected NAME=HOST:PORT, for example b=host2:7422")?;
    Member::check_name(name).map_err(|why| format!("'{}' {why}", plain(name)))?;
    Member::check_address(address)
        .map_err(|why| format!("'{}' {why}; expected, for example, b=host2:7422", plain(address)))?;
    Ok(Member::new(name, address))
}

fn parse_host(text: &str) -> Result<(String, String), String> {
    let (name, host) = text.split_once('=').ok_or("expected NAME=HOST, for example a=host1")?;
    Member::check_name(name).map_err(|why| format!("'{}' {why}", plain(name)))?;
    if host.is_empty() || host.contains(['/', ' ']) {
        return Err(format!("'{}' is not the name or the address of a host", plain(host)));
    }
    // An IPv6 address has colons too.
    if host.contains([':', '[']) && host.parse::<IpAddr>().is_err() {
        let bare = host.rsplit_once(':').map_or(host, |(bare, _)| bare).trim_matches(['[', ']']);
        return Err(format!(
            "'{}' has a port or brackets, and a certificate is for a host; write {name}={}",
            plain(host),
            plain(bare)
        ));
    }
    Ok((name.to_owned(), host.to_owned()))
}
