//! Connections from other members.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::timeout;

use super::wire::{self, Answer, FRAME_BYTES, Greeting, Purpose};
use super::{CONNECT_TIMEOUT, PeerTls, Peers};
use crate::net::enable_keepalive;
use crate::net::resp::serve_relayed;
use crate::node::{Input, Protocol};
use crate::replica::PeerMessage;
use crate::storage::disk::Disk;
use crate::storage::{Identity, Member};
use crate::tls::{Accepted, ByteStream};

/// How many connections are open at most: a few for each member, and strangers that have not greeted yet.
const CONNECTIONS: usize = 256;
const READ_BYTES: usize = 64 << 10;

/// Serves other members.
pub(crate) async fn accept<D: Disk>(peers: Rc<Peers<D>>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) if connections.len() < CONNECTIONS => {
                    let peers = peers.clone();
                    connections.spawn_local(async move {
                        if let Err(error) = serve(&peers, stream).await {
                            // The other side tries again and again. What it does not know yet, it soon does.
                            if peers.notices.borrow_mut().is_due(&format!("{}: {error}", from.ip()), 3) {
                                tracing::warn!(%from, %error, "a connection to the port of the nodes has ended");
                            }
                        }
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "a member could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Receives the greeting of a connection.
pub(super) async fn greeted(
    stream: TcpStream,
    tls: Option<&PeerTls>,
) -> io::Result<(Accepted, Result<Purpose, String>)> {
    let greeting = async {
        drop(stream.set_nodelay(true));
        // The other machine may lose its power, and close nothing.
        enable_keepalive(&stream);
        let mut stream = match tls {
            None => Accepted::Plain(stream),
            Some(tls) => Accepted::Encrypted(Box::new(tls.accept(stream).await?)),
        };
        let greeting: Greeting = wire::receive(&mut stream.bytes()).await?;
        Ok((stream, greeting.purpose()))
    };
    timeout(CONNECT_TIMEOUT, greeting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn serve<D: Disk>(peers: &Rc<Peers<D>>, stream: TcpStream) -> io::Result<()> {
    let (mut stream, purpose) = greeted(stream, peers.tls.as_ref()).await?;
    if let Ok(Purpose::Invite(invited)) = &purpose
        && invited.cluster != peers.identity.cluster
    {
        return wire::send(&mut stream.bytes(), &Answer::InOtherCluster).await;
    }
    let checked = purpose.and_then(|purpose| check(&peers.identity, purpose)).and_then(|purpose| {
        let leads = peers.server.with_node(|node| node.is_leader());
        match purpose {
            Purpose::Relay { .. } if !leads => Err("this node does not lead".to_owned()),
            Purpose::Relay { protocol: Protocol::Http, .. } if !peers.server.offers_http() => {
                Err("this node leads and does not offer HTTP; start all nodes with --http".to_owned())
            }
            purpose => Ok(purpose),
        }
    });
    let checked = checked.and_then(|purpose| check_users(peers, purpose));
    if let Ok(Purpose::Messages { from, .. }) = &checked
        && peers.server.with_node(|node| node.membership().removed.contains(from))
    {
        return wire::send(&mut stream.bytes(), &Answer::Removed).await;
    }
    let purpose = match checked {
        Ok(purpose) => purpose,
        Err(why) => {
            wire::send(&mut stream.bytes(), &Answer::Refused(why.clone())).await?;
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    };
    wire::send(&mut stream.bytes(), &Answer::Welcome).await?;
    match purpose {
        Purpose::Messages { from, log, node, .. } => {
            peers.refused.borrow_mut().remove(&from);
            peers.server.step(Input::MemberConnected { id: from, member: node.filter(is_valid), log });
            let connection = peers.begin_inbound(from);
            let ended = receive_messages(peers, from, stream.boxed()).await;
            // After a cut, an old connection may end long after a new one was opened.
            if peers.is_newest_inbound(from, connection) {
                peers.server.step(Input::Suspect { member: from });
            }
            ended
        }
        Purpose::Snapshot { message, bytes, .. } => {
            let message = PeerMessage::decode(&message).map_err(io::Error::other)?;
            peers.receive_snapshot(message, bytes, stream.boxed()).await
        }
        Purpose::Relay { client, protocol: Protocol::Http, .. } => {
            peers.server.pass_to_http(stream, client);
            Ok(())
        }
        Purpose::Relay { client, protocol: Protocol::Resp, .. } => {
            // It counts as a client from now on, so that many of them keep no member out.
            spawn_local(serve_relayed(peers.server.clone(), stream, client));
            Ok(())
        }
        Purpose::Report { .. } => wire::send(&mut stream.bytes(), &peers.report()).await,
        Purpose::Invite(_) => Ok(()),
    }
}

/// Refuses a member without users, if this one has some: clients that this member relays to it could do everything.
fn check_users<D: Disk>(peers: &Peers<D>, purpose: Purpose) -> Result<Purpose, String> {
    match &purpose {
        Purpose::Messages { from, has_users: false, .. } if peers.server.users.is_some() => {
            let name = peers.server.with_node(|node| {
                node.membership().members.get(from).map_or_else(|| format!("{from:x}"), |member| member.name.clone())
            });
            let why = format!(
                "this node has users, and node '{name}' has none: every client could do everything there. Set the same \
                 users on every node ([[serve.users]])"
            );
            let own = peers.identity.node.as_ref().map_or("", |node| node.name.as_str());
            let shown = format!(
                "it has no users, so node '{own}' refuses its messages: set the same users on every node ([[serve.users]])"
            );
            peers.refused.borrow_mut().insert(*from, shown);
            Err(why)
        }
        _ => Ok(purpose),
    }
}

/// Returns why a connection is not for this member.
pub(super) fn check(identity: &Identity, purpose: Purpose) -> Result<Purpose, String> {
    let (cluster, to) = match &purpose {
        Purpose::Messages { cluster, to, .. }
        | Purpose::Snapshot { cluster, to, .. }
        | Purpose::Relay { cluster, to, .. }
        | Purpose::Report { cluster, to } => (*cluster, *to),
        Purpose::Invite(invited) => (invited.cluster, invited.member),
    };
    if cluster != identity.cluster {
        return Err(format!(
            "this node belongs to cluster {:x}, and the other one to cluster {cluster:x}; check the addresses",
            identity.cluster
        ));
    }
    if to != identity.member {
        return Err(format!(
            "this node is member {:x}, and member {to:x} is meant: its directory was lost or is another one's; remove that \
             member and add this node as a new one",
            identity.member
        ));
    }
    Ok(purpose)
}

/// Returns whether a member can have this name and address.
fn is_valid(member: &Member) -> bool {
    Member::check_name(&member.name).is_ok() && Member::check_address(&member.address).is_ok()
}

async fn receive_messages<D: Disk>(peers: &Rc<Peers<D>>, from: u64, stream: ByteStream) -> io::Result<()> {
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    let mut frame = Vec::new();
    let mut removed = peers.removed_members.subscribe();
    loop {
        let read = tokio::select! {
            biased;
            // Its next attempt to connect is told so.
            _ = removed.wait_for(|removed| removed.contains(&from)) => return Ok(()),
            read = wire::read_frame(&mut stream, &mut frame, FRAME_BYTES) => read,
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let message = PeerMessage::decode(&frame).map_err(io::Error::other)?;
        if message.from() != from {
            return Err(io::Error::other("a member has sent a message of another one"));
        }
        peers.server.step(Input::Received(message));
    }
}
