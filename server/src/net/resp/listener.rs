//! Accepts connections: limited, within a time limit, with TLS if the service has it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::connection::Connection;
use super::transport::Transport;
use super::{Reply, Version};
use crate::net::audit::Audit;
use crate::net::connection_limit::{ConnectionPermit, TooManyConnections};
use crate::net::hangup;
use crate::net::server::Server;
use crate::node::{Principal, Protocol, RequestContext};
use crate::peers::RelayedClient;
use crate::tls::Accepted;

pub(crate) async fn accept(server: Rc<Server>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match server.connection_limit.enter(peer.ip()) {
                Some(permit) => {
                    // Failure only costs latency.
                    drop(stream.set_nodelay(true));
                    hangup::enable_keepalive(&stream);
                    spawn_local(serve(server.clone(), stream, peer, permit));
                }
                None => reject_connection(&server, &stream),
            },
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Disconnects a client because the service has too many connections.
fn reject_connection(server: &Server, stream: &TcpStream) {
    if server.tls.is_none() {
        // Best effort: the error is sent only if the socket is writable now.
        drop(stream.try_write(b"-LIMIT there are too many connections; come back later\r\n"));
    }
}

async fn serve(server: Rc<Server>, stream: TcpStream, peer: SocketAddr, permit: ConnectionPermit) {
    let audit = Audit::new(peer.to_string().into(), None, server.limiters.of_address(peer.ip()));
    let handshake = tokio::select! {
        handshake = handshake(&server, stream, &audit) => handshake,
        () = permit.displaced() => None,
    };
    let Some((stream, certified)) = handshake else { return };
    // A node that does not lead passes the client on to the one that does.
    if server.is_relaying()
        && let Some(relay) = server.relay()
    {
        // The other node checks the login, and disconnects strangers.
        let _ = permit.set_authenticated(None);
        return tokio::select! {
            () = relay.relay(stream.boxed(), RelayedClient { address: peer, user: certified }) => {}
            () = permit.displaced() => {}
        };
    }
    serve_client(server, stream, certified, peer, permit, audit, false).await;
}

/// Serves a client whose connection another node relays.
pub(crate) async fn serve_relayed(server: Rc<Server>, stream: Accepted, client: RelayedClient) {
    let RelayedClient { address, user } = client;
    let Some(permit) = server.connection_limit.enter(address.ip()) else { return };
    let audit = Audit::new(address.to_string().into(), None, server.limiters.of_address(address.ip()));
    serve_client(server, stream, user, address, permit, audit, true).await;
}

async fn serve_client(
    server: Rc<Server>,
    stream: Accepted,
    certified: Option<String>,
    peer: SocketAddr,
    permit: ConnectionPermit,
    audit: Audit,
    is_relayed: bool,
) {
    let transport = match stream {
        Accepted::Plain(stream) => Transport::plain(stream),
        Accepted::Encrypted(stream) => {
            let (stream, session) = stream.into_inner();
            Transport::encrypted(stream, session)
        }
    };
    let principal = match (&server.users, certified) {
        (None, _) => Principal::Anyone,
        (Some(users), Some(name)) => users.find(&name).map_or(Principal::Unauthenticated, Principal::User),
        (Some(_), None) => Principal::Unauthenticated,
    };
    let limited = principal.user_name().map(|user| permit.set_authenticated(Some(user)));
    if let Some(Err(TooManyConnections(most))) = limited {
        return reject_user(&transport, &principal, most);
    }
    let audit = match principal.user_name() {
        Some(user) => audit.of_user(user, server.limiters.of_user(user)),
        None => audit,
    };
    let (peer_text, address) = (audit.peer().clone(), peer.ip());
    let context = RequestContext { principal, protocol: Protocol::Resp, peer: peer_text, address };
    server.metrics.borrow_mut().connections += 1;
    server.metrics.borrow_mut().connections_total += 1;
    let mut connection = Connection::new(server.clone(), transport, context, audit, permit);
    connection.is_relayed = is_relayed;
    connection.serve().await;
    server.metrics.borrow_mut().connections -= 1;
}

/// Disconnects a client whose certificate names a user with too many connections.
fn reject_user(transport: &Transport, principal: &Principal, most: usize) {
    let mut bytes = Vec::new();
    too_many_connections(principal, most).encode(Version::Two, &mut bytes);
    // Best effort: the error is sent only if the socket is writable now.
    drop(transport.try_write(&bytes));
    transport.close_write();
}

pub(super) fn too_many_connections(principal: &Principal, most: usize) -> Reply {
    let name = principal.user_name().unwrap_or_default();
    let why = format!("user '{name}' has {most} connections, and may have no more; close one of them");
    Reply::Error("LIMIT", why)
}

/// Does the TLS handshake. Returns the connection, and the user that the client's certificate names.
async fn handshake(server: &Server, stream: TcpStream, audit: &Audit) -> Option<(Accepted, Option<String>)> {
    let Some(tls) = &server.tls else { return Some((Accepted::Plain(stream), None)) };
    match timeout(server.bounds.greeting, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let certified = tls.user(stream.get_ref().1);
            Some((Accepted::Encrypted(Box::new(stream)), certified))
        }
        Ok(Err(error)) => {
            audit.tls_failed(&error.to_string());
            None
        }
        Err(_) => {
            audit.tls_failed("it took too long");
            None
        }
    }
}
