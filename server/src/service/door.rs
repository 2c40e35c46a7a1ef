//! How clients come in: counted, in time, encrypted where that is wanted.

use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::Service;
use super::audit::Audit;
use super::bounds::Counted;
use super::connection::Connection;
use super::pace::Paces;
use super::transport::Transport;
use super::who::Who;
use crate::storage::disk::Disk;

pub(super) async fn accept<D: Disk>(service: Rc<Service<D>>, listener: TcpListener) {
    let paces = Paces::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Where nobody has to say who it is, nobody is a stranger.
                let is_guarded = service.tls.is_some() || service.users.is_some();
                let stranger = is_guarded.then(|| service.strangers.one_more(service.bounds.strangers));
                match (service.connections.one_more(service.bounds.connections), stranger) {
                    (None, _) | (_, Some(None)) => turn_away(&service, &stream),
                    (Some(counted), stranger) => {
                        let unmet = Audit::paced(peer.to_string(), paces.of(peer.ip()));
                        enter(&service, stream, peer.to_string(), unmet, counted, stranger.flatten());
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// There are too many.
fn turn_away<D: Disk>(service: &Service<D>, stream: &TcpStream) {
    if service.tls.is_none() {
        // It is told if that is possible at once.
        drop(stream.try_write(b"-LIMIT there are too many connections; come back later\r\n"));
    }
}

fn enter<D: Disk>(
    service: &Rc<Service<D>>,
    stream: TcpStream,
    peer: String,
    unmet: Audit,
    counted: Counted,
    stranger: Option<Counted>,
) {
    // It only costs time if it cannot be set, and a client that has vanished is then noticed later.
    drop(stream.set_nodelay(true));
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    let service = service.clone();
    spawn_local(async move {
        let Some((transport, named)) = greet(&service, stream, unmet).await else { return };
        let who = match (&service.users, named) {
            (None, _) => Who::Anyone,
            (Some(users), Some(name)) => users.vouched_for(&name).map_or(Who::Stranger, Who::User),
            (Some(_), None) => Who::Stranger,
        };
        let stranger = stranger.filter(|_| matches!(who, Who::Stranger));
        service.state.borrow_mut().tally.resp_connections += 1;
        Connection::new(service.clone(), transport, peer, who, counted, stranger).serve().await;
        service.state.borrow_mut().tally.resp_connections -= 1;
    });
}

/// The line, encrypted if that is wanted, and the user whom the client's certificate names.
async fn greet<D: Disk>(
    service: &Service<D>,
    stream: TcpStream,
    audit: Audit,
) -> Option<(Transport, Option<String>)> {
    let Some(tls) = &service.tls else { return Some((Transport::plain(stream), None)) };
    match timeout(service.bounds.greeting, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let (stream, session) = stream.into_inner();
            let named = tls.user(&session);
            Some((Transport::encrypted(stream, session), named))
        }
        Ok(Err(error)) => {
            audit.not_encrypted(&error.to_string());
            None
        }
        Err(_) => {
            audit.not_encrypted("it took too long");
            None
        }
    }
}
