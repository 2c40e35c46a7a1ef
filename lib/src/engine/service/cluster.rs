//! The requests of operators to a cluster. Any node passes them on to the one that leads.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use redis_protocol::resp3::types::BytesFrame;
use thiserror::Error;
use tokio::task::LocalSet;

use super::connection::{CALL_TIMEOUT, Connection, Dialer};
use super::error::{NoReply, ReplyError, Unexpected};
use super::hello::hello;
use super::nodes::{ClientAge, NodeErrors};
use super::probe::{Refused, check_cluster};
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
    #[error("{0}")]
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
    let mut leaderless = None;
    let asked = any_node(config, async |at| {
        let status = ask(config, at, &Command::new(&["CLUSTER", "STATUS"]), TIMEOUT, status).await?;
        if status.leader.is_some() {
            return Ok(status);
        }
        leaderless = Some(status);
        Err(ConnectError::leaderless().into())
    });
    match asked.await {
        Err(ClusterError::NoLeader(why)) => leaderless.ok_or(ClusterError::NoLeader(why)),
        asked => asked,
    }
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
    let mut written = 0;
    any_node(config, async |at| {
        let read = async |connection: &Connection| {
            let begun = |reply: &BytesFrame| Ok((number(field(reply, "backup")?)?, number(field(reply, "bytes")?)?));
            let (backup, bytes) =
                call(connection, &Command::new(&["CLUSTER", "BACKUP"]), BACKUP_TIMEOUT, begun).await?;
            while written < bytes {
                let part = Command::new(&["CLUSTER", "BACKUP"]).number(backup).text("FROM").number(written);
                let part = call(connection, &part, TIMEOUT, wire::blob).await?;
                if part.is_empty() {
                    return Err(ClusterError::Refused("the backup ended early".to_owned()).into());
                }
                if let Err(error) = write(&part) {
                    return Ok(Err(error));
                }
                written += part.len() as u64;
            }
            Ok(Ok(bytes))
        };
        match with_node(config, at, read).await {
            // Another node has another backup.
            Err(NodeError::NotServed(no_reply)) if written > 0 => Err(ClusterError::Failed(no_reply.into()).into()),
            done => done,
        }
    })
    .await
}

/// Asks the nodes of the URL in turn, until one passes the request on to the node that leads.
async fn ask_any<T>(
    config: &Config,
    command: &Command,
    timeout: Duration,
    read: impl Fn(&BytesFrame) -> Result<T, Unexpected> + Copy,
) -> Result<T, ClusterError> {
    any_node(config, async |at| ask(config, at, command, timeout, read).await).await
}

/// Why a node has not carried out a request.
enum NodeError {
    /// It does not serve this client. Another one may.
    NotServed(NoReply),
    /// Another one would answer the same.
    Answered(ClusterError),
}

impl From<ConnectError> for NodeError {
    fn from(error: ConnectError) -> NodeError {
        NodeError::NotServed(NoReply { error, may_have_taken_effect: false })
    }
}

impl From<ClusterError> for NodeError {
    fn from(error: ClusterError) -> NodeError {
        NodeError::Answered(error)
    }
}

/// Does something with the nodes of the URL in turn, until one answers. Otherwise the error says what is wrong with each.
async fn any_node<T>(
    config: &Config,
    mut does: impl AsyncFnMut(usize) -> Result<T, NodeError>,
) -> Result<T, ClusterError> {
    let (mut errors, mut may_have_happened) = (NodeErrors::new(config), false);
    for at in 0..config.addresses.len() {
        match does(at).await {
            Ok(done) => return Ok(done),
            Err(NodeError::Answered(error)) => return Err(error),
            Err(NodeError::NotServed(NoReply { error, may_have_taken_effect })) => {
                may_have_happened |= may_have_taken_effect;
                errors.note(at, error);
            }
        }
    }
    let is_leaderless = errors.is_leaderless();
    let error = errors.summary(ClientAge::New);
    Err(match is_leaderless {
        true => ClusterError::NoLeader(error.to_string()),
        false => ClusterError::Failed(error.failure(may_have_happened)),
    })
}

async fn ask<T>(
    config: &Config,
    at: usize,
    command: &Command,
    timeout: Duration,
    read: impl Fn(&BytesFrame) -> Result<T, Unexpected>,
) -> Result<T, NodeError> {
    with_node(config, at, async |connection: &Connection| call(connection, command, timeout, &read).await).await
}

/// Does something on a connection to one node.
async fn with_node<T>(
    config: &Config,
    at: usize,
    does: impl AsyncFnOnce(&Connection) -> Result<T, NodeError>,
) -> Result<T, NodeError> {
    let dialer = Dialer::new(config.clone());
    let peer = Peer::new(ServiceBackend::NAME, dialer.address(at).to_string());
    LocalSet::new()
        .run_until(async {
            let stream = within(CALL_TIMEOUT, dialer.dial(at)).await?;
            let connection = Connection::new(peer, Rc::default());
            let work = async {
                // The node need not lead.
                let hello = hello(&connection, config.login.as_ref())?.await?;
                hello.check_is_node(config)?;
                check_cluster(&dialer, at, &hello, Refused::UnlessLarger).await?;
                does(&connection).await
            };
            let mut work = pin!(work);
            tokio::select! {
                done = &mut work => done,
                // The last reply may have come together with the end of the connection.
                error = connection.drive(stream) => work.now_or_never().unwrap_or_else(|| Err(error.into())),
            }
        })
        .await
}

async fn call<T>(
    connection: &Connection,
    command: &Command,
    timeout: Duration,
    read: impl Fn(&BytesFrame) -> Result<T, Unexpected>,
) -> Result<T, NodeError> {
    let reply = wire::accepted(connection.request(command, timeout).await.map_err(NodeError::NotServed)?);
    let reply = reply.map_err(|error| match error {
        ReplyError::NotLeader(_) => ConnectError::leaderless().into(),
        error @ ReplyError::TryLater(_) => ConnectError::transient(error.to_string()).into(),
        ReplyError::Invalid(message) => NodeError::Answered(match message.split_once(' ') {
            Some(("BUSY", message)) => ClusterError::Busy(message.to_owned()),
            Some(("NOTTHERE", message)) => ClusterError::NotThere(message.to_owned()),
            Some(("REFUSED" | "BADARG", message)) => ClusterError::Refused(message.to_owned()),
            _ => ClusterError::Refused(message),
        }),
        other => ClusterError::Failed(connection.failure_of(other)).into(),
    })?;
    read(&reply).map_err(|unexpected| ClusterError::Failed(connection.unexpected(unexpected)).into())
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
