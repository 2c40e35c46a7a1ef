//! The requests of operators to a cluster. Any node passes them on to the one that leads.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use redis_protocol::resp3::types::BytesFrame;
use thiserror::Error;
use tokio::task::LocalSet;

use super::backend::hello;
use super::connection::{CALL_TIMEOUT, Connection, Dialer};
use super::error::{ReplyError, Unexpected};
use super::wire::{self, Command, field, items, number, optional, text};
use super::{Config, ServiceBackend};
use crate::engine::Failure;
use crate::engine::remote::{Backend as _, ConnectError, Peer, within};

/// A node asks the others, and waits for each a few seconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A backup waits for a snapshot.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster as one of its nodes sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The number of the cluster.
    pub cluster: String,
    /// The node that has answered.
    pub answered_by: String,
    /// The node that leads, as far as that one knows.
    pub leader: Option<String>,
    /// The latest term.
    pub term: u64,
    /// The last entry of its log.
    pub last_index: u64,
    /// The nodes.
    pub members: Vec<MemberStatus>,
}

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its name; empty in a service of one node.
    pub name: String,
    /// Its number, which no other node ever gets.
    pub number: String,
    /// Where it listens for the other nodes.
    pub address: String,
    /// `leader`, `follower`, `learner` (it receives the log and does not vote yet) or `leaving`.
    pub role: String,
    /// The last entry that the leader knows it to have.
    pub matched: Option<u64>,
    /// Why the node that has answered cannot reach it.
    pub problem: Option<String>,
    /// Its state, if it can be reached.
    pub state: Option<MemberState>,
}

/// The state of a node that can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberState {
    /// Its version.
    pub build: String,
    /// The latest term it knows.
    pub term: u64,
    /// The last entry that it has applied.
    pub applied: u64,
    /// The last entry of its log.
    pub last_index: u64,
    /// How long its writes took lately, in microseconds.
    pub write_us: u64,
    /// How long the node that has answered waited for it, in microseconds.
    pub round_trip_us: u64,
}

/// Why an operator's request failed.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// No node leads now, or the one that led lets another one lead. The same request may succeed in a moment.
    #[error("no node leads now: {0}")]
    NoLeader(String),
    /// The change before this one is not finished.
    #[error("{0}")]
    Busy(String),
    /// No empty node waits at the address.
    #[error("{0}")]
    NotThere(String),
    /// It cannot be done.
    #[error("{0}")]
    Refused(String),
    /// No node answers, or this client is refused.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Returns the state of the cluster, from a node that knows which one leads; without one, from any that answers.
///
/// # Errors
///
/// No node answers.
pub async fn cluster_status(config: &Config) -> Result<ClusterStatus, ClusterError> {
    let (mut leaderless, mut failed) = (None, None);
    for at in 0..config.addresses.len() {
        match ask(config, at, &Command::new(&["CLUSTER", "STATUS"]), TIMEOUT, status).await {
            Ok(status) if status.leader.is_some() => return Ok(status),
            Ok(status) => leaderless = Some(status),
            Err(error @ (ClusterError::Refused(_) | ClusterError::Failed(Failure::Denied(_)))) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    leaderless.ok_or_else(|| failed.unwrap_or_else(no_node))
}

/// Begins to add an empty node that waits at this address. It votes once it has the log.
///
/// # Errors
///
/// It is not added.
pub async fn cluster_add(config: &Config, name: &str, address: &str) -> Result<(), ClusterError> {
    ask_any(config, &Command::new(&["CLUSTER", "ADD", name, address]), TIMEOUT, |_| Ok(())).await
}

/// Begins to remove a node.
///
/// # Errors
///
/// It is not removed. [`ClusterError::NoLeader`] if it led: the request is to be repeated.
pub async fn cluster_remove(config: &Config, name: &str) -> Result<(), ClusterError> {
    ask_any(config, &Command::new(&["CLUSTER", "REMOVE", name]), TIMEOUT, |_| Ok(())).await
}

/// Begins to let another node lead: this one, or any. Returns its name.
///
/// # Errors
///
/// Nothing has happened.
pub async fn cluster_transfer(config: &Config, name: Option<&str>) -> Result<String, ClusterError> {
    let command = name.into_iter().fold(Command::new(&["CLUSTER", "TRANSFER"]), Command::text);
    ask_any(config, &command, TIMEOUT, |reply| Ok(text(reply)?.to_owned())).await
}

/// Makes a backup, and passes its parts to `write`, in order. Returns how many bytes it has.
///
/// # Errors
///
/// It is not complete.
pub async fn cluster_backup(
    config: &Config,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<std::io::Result<u64>, ClusterError> {
    let (mut last, mut written) = (no_node(), 0);
    for at in 0..config.addresses.len() {
        let read = async |connection: &Connection| {
            let begun = |reply: &BytesFrame| Ok((number(field(reply, "backup")?)?, number(field(reply, "bytes")?)?));
            let (backup, bytes) =
                call(connection, &Command::new(&["CLUSTER", "BACKUP"]), BACKUP_TIMEOUT, begun).await?;
            while written < bytes {
                let part = Command::new(&["CLUSTER", "BACKUP"]).number(backup).text("FROM").number(written);
                let part = call(connection, &part, TIMEOUT, wire::blob).await?;
                if part.is_empty() {
                    return Err(ClusterError::Refused("the backup ended early".to_owned()));
                }
                if let Err(error) = write(&part) {
                    return Ok(Err(error));
                }
                written += part.len() as u64;
            }
            Ok(Ok(bytes))
        };
        match with_node(config, at, read).await {
            Err(error @ (ClusterError::NoLeader(_) | ClusterError::Failed(Failure::Unavailable(_))))
                if written == 0 =>
            {
                last = error;
            }
            other => return other,
        }
    }
    Err(last)
}

/// Asks the nodes of the URL in turn, until one passes the request on to the node that leads.
async fn ask_any<T>(
    config: &Config,
    command: &Command,
    timeout: Duration,
    read: impl Fn(&BytesFrame) -> Result<T, Unexpected> + Copy,
) -> Result<T, ClusterError> {
    let mut last = None;
    for at in 0..config.addresses.len() {
        match ask(config, at, command, timeout, read).await {
            // A node that answers says more than one that does not.
            Err(ClusterError::Failed(Failure::Unavailable(_))) if matches!(last, Some(ClusterError::NoLeader(_))) => {
            }
            Err(error @ (ClusterError::NoLeader(_) | ClusterError::Failed(Failure::Unavailable(_)))) => {
                last = Some(error);
            }
            other => return other,
        }
    }
    Err(last.unwrap_or_else(no_node))
}

fn no_node() -> ClusterError {
    ClusterError::NoLeader("the URL names no node".to_owned())
}

async fn ask<T>(
    config: &Config,
    at: usize,
    command: &Command,
    timeout: Duration,
    read: impl Fn(&BytesFrame) -> Result<T, Unexpected>,
) -> Result<T, ClusterError> {
    with_node(config, at, async |connection: &Connection| call(connection, command, timeout, &read).await).await
}

/// Does something on a connection to one node.
async fn with_node<T>(
    config: &Config,
    at: usize,
    does: impl AsyncFnOnce(&Connection) -> Result<T, ClusterError>,
) -> Result<T, ClusterError> {
    let dialer = Dialer::new(config.clone());
    let peer = Peer::new(ServiceBackend::NAME, dialer.address(at).to_string());
    let failed = |error: ConnectError| ClusterError::Failed(error.at(&peer).failure(false));
    LocalSet::new()
        .run_until(async {
            let stream = within(CALL_TIMEOUT, dialer.dial(at)).await.map_err(failed)?;
            let connection = Connection::new(peer.clone(), Rc::default());
            let work = async {
                // The node need not lead.
                let hello = hello(&connection, config.login.as_ref()).map_err(failed)?.await.map_err(failed)?;
                hello.check_is_node(config).map_err(failed)?;
                does(&connection).await
            };
            let mut work = pin!(work);
            tokio::select! {
                done = &mut work => done,
                // The last reply may have come together with the end of the connection.
                error = connection.drive(stream) => work.now_or_never().unwrap_or_else(|| Err(failed(error))),
            }
        })
        .await
}

async fn call<T>(
    connection: &Connection,
    command: &Command,
    timeout: Duration,
    read: impl Fn(&BytesFrame) -> Result<T, Unexpected>,
) -> Result<T, ClusterError> {
    let reply = wire::accepted(connection.request(command, timeout).await?);
    let reply = reply.map_err(|error| match error {
        ReplyError::NotLeader(message) => ClusterError::NoLeader(message),
        ReplyError::Invalid(message) => match message.split_once(' ') {
            Some(("BUSY", message)) => ClusterError::Busy(message.to_owned()),
            Some(("NOTTHERE", message)) => ClusterError::NotThere(message.to_owned()),
            Some(("REFUSED" | "BADARG", message)) => ClusterError::Refused(message.to_owned()),
            _ => ClusterError::Refused(message),
        },
        other => ClusterError::Failed(connection.failure_of(other)),
    })?;
    read(&reply).map_err(|unexpected| ClusterError::Failed(connection.unexpected(unexpected)))
}

fn status(reply: &BytesFrame) -> Result<ClusterStatus, Unexpected> {
    let owned = |name| text(field(reply, name)?).map(str::to_owned);
    Ok(ClusterStatus {
        cluster: owned("cluster")?,
        answered_by: owned("answered_by")?,
        leader: optional(field(reply, "leader")?, text)?.map(str::to_owned),
        term: number(field(reply, "term")?)?,
        last_index: number(field(reply, "last_index")?)?,
        members: items(field(reply, "members")?)?.iter().map(member).collect::<Result<_, _>>()?,
    })
}

fn member(reply: &BytesFrame) -> Result<MemberStatus, Unexpected> {
    let owned = |name| text(field(reply, name)?).map(str::to_owned);
    let problem = optional(field(reply, "problem")?, text)?.map(str::to_owned);
    let state = match problem {
        Some(_) => None,
        None => Some(MemberState {
            build: owned("build")?,
            term: number(field(reply, "term")?)?,
            applied: number(field(reply, "applied")?)?,
            last_index: number(field(reply, "last_index")?)?,
            write_us: number(field(reply, "write_us")?)?,
            round_trip_us: number(field(reply, "round_trip_us")?)?,
        }),
    };
    Ok(MemberStatus {
        name: owned("name")?,
        number: owned("number")?,
        address: owned("address")?,
        role: owned("role")?,
        matched: optional(field(reply, "matched")?, number)?,
        problem,
        state,
    })
}
