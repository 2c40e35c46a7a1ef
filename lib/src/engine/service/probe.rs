//! Looks for another leader while a reply is overdue. A leader that is stopped or cut off closes no connection, and its clients
//! would notice only when their calls time out.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{join_all, select_ok};

use super::ServiceBackend;
use super::connection::{Connection, Dialer, Stream};
use super::hello::{Hello, hello};
use crate::engine::remote::{Backend, ConnectError, Peer, jittered, within};
use crate::time::sleep;

/// How long the other nodes may take to answer.
const ROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// The pauses between rounds.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Drives a connection to this node until it breaks, or until another node has begun to lead since the client logged in. Returns
/// the reason.
pub(super) async fn drive(connection: &Connection, stream: Stream, dialer: &Dialer, node: usize) -> ConnectError {
    let mut driving = pin!(connection.drive(stream));
    let error = tokio::select! {
        biased;
        error = &mut driving => error,
        (leader, waited) = new_leader(connection, dialer, node) => {
            dialer.try_first(leader);
            connection.give_up(ConnectError::no_answer(waited));
            driving.await
        }
    };
    if error.is_silent() {
        dialer.set_silent(Some(node));
    }
    error
}

/// Waits until a reply is overdue and another node says that a leader was elected since the client logged in. Returns the node that
/// says so, and how long the reply was waited for.
async fn new_leader(connection: &Connection, dialer: &Dialer, node: usize) -> (usize, Duration) {
    loop {
        connection.until_overdue().await;
        let mut pause = FIRST_PAUSE;
        while let (Some(waited), Some(term)) = (connection.overdue(), connection.term()) {
            let ask = |other| Box::pin(leads_later(dialer, other, term));
            let asked: Vec<_> = dialer.others(node).map(ask).collect();
            if asked.is_empty() {
                break;
            }
            let round = async { select_ok(asked).await.map(|(leader, _)| leader) };
            if let Ok(leader) = within(ROUND_TIMEOUT, round).await
                && connection.overdue().is_some()
            {
                return (leader, waited);
            }
            sleep(jittered(pause)).await;
            pause = LONGEST_PAUSE.min(2 * pause);
        }
    }
}

/// Returns this node if it leads in a later term, or relays to a node that does. The leader of the same term may only be slow.
async fn leads_later(dialer: &Dialer, node: usize, term: u64) -> Result<usize, ConnectError> {
    let reply = greet(dialer, node).await?;
    let is_of_cluster = !reply.is_alone() && reply.cluster == dialer.cluster();
    match reply.is_leader && is_of_cluster && reply.term.is_some_and(|later| later > term) {
        true => Ok(node),
        false => Err(ConnectError::transient("it knows no later leader")),
    }
}

/// Logs in on a connection that is used for nothing else.
async fn greet(dialer: &Dialer, node: usize) -> Result<Hello, ConnectError> {
    let stream = dialer.dial(node).await?;
    let peer = Peer::new(ServiceBackend::NAME, dialer.address(node).to_string());
    let connection = Connection::new(peer, Rc::default());
    let hello = hello(&connection, dialer.config.login.as_ref())?;
    tokio::select! {
        biased;
        error = connection.drive(stream) => Err(error),
        reply = hello => reply,
    }
}

/// Which cluster is refused, if a URL names two and the client was connected to none of them before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Each that has fewer nodes than the URL: a client must not choose.
    Smaller,
    /// Each that does not have more nodes than the other one: an operator must be able to repair the larger one.
    UnlessLarger,
}

/// Refuses the cluster of this node if another node of the URL is in another one. The other nodes are asked only if there is reason to:
/// the cluster has fewer nodes than the URL, or is not the one that the client was connected to. A node whose directory was lost may
/// have been started as a cluster of its own, or an old cluster may still run beside the one that was restored.
pub(super) async fn check_cluster(
    dialer: &Dialer,
    node: usize,
    hello: &Hello,
    refused: Refused,
) -> Result<(), ConnectError> {
    let (addresses, last) = (dialer.config.addresses.len(), dialer.cluster());
    let is_another = last.is_some() && last != hello.cluster;
    if addresses == 1 || (hello.nodes >= addresses && !is_another) {
        return Ok(());
    }
    let asked = join_all(
        dialer
            .others(node)
            .map(|other| async move { (other, within(ROUND_TIMEOUT, greet(dialer, other)).await.ok()) }),
    );
    // An unknown cluster is left alone while the known one can be reached, and a small one while there is any other.
    let is_preferred = |reply: &Hello| match is_another {
        true => reply.cluster == last,
        false => reply.cluster != hello.cluster && (refused == Refused::Smaller || reply.nodes >= hello.nodes),
    };
    let is_of_cluster = |reply: &&Hello| reply.cluster.is_some();
    match asked.await.into_iter().find(|(_, reply)| reply.as_ref().filter(is_of_cluster).is_some_and(is_preferred)) {
        Some((other, _)) => Err(ConnectError::transient(format!(
            "it is in another cluster than {}: the URL names two clusters (palisade doctor shows them)",
            dialer.address(other)
        ))),
        None => Ok(()),
    }
}
