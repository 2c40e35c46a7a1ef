//! How clients come in: counted, in time, encrypted where that is wanted.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::Service;
use super::audit::Audit;
use super::connection::Connection;
use super::connections::{Counted, TooMany};
use super::hangup;
use super::transport::Transport;
use super::who::Who;
use crate::resp::{Reply, Version};
use crate::storage::disk::Disk;

pub(super) async fn accept<D: Disk>(service: Rc<Service<D>>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match service.connections.enter(peer.ip()) {
                Some(counted) => {
                    let audit = Audit::new(peer.to_string(), None, service.paces.of_address(peer.ip()));
                    enter(&service, stream, audit, counted);
                }
                None => turn_away(&service, &stream),
            },
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

fn enter<D: Disk>(service: &Rc<Service<D>>, stream: TcpStream, audit: Audit, counted: Counted) {
    // It only costs time if it cannot be set.
    drop(stream.set_nodelay(true));
    hangup::probe(&stream);
    let service = service.clone();
    spawn_local(async move {
        let greeted = tokio::select! {
            greeted = greet(&service, stream, &audit) => greeted,
            () = counted.displaced() => None,
        };
        let Some((transport, named)) = greeted else { return };
        let who = match (&service.users, named) {
            (None, _) => Who::Anyone,
            (Some(users), Some(name)) => users.vouched_for(&name).map_or(Who::Stranger, Who::User),
            (Some(_), None) => Who::Stranger,
        };
        let known = who.user().map(|user| counted.be_known(Some(user.name())));
        if let Some(Err(TooMany(most))) = known {
            return refuse(&transport, &who, most);
        }
        let audit = match who.user() {
            Some(user) => audit.of_user(user.name(), service.paces.of_user(user.name())),
            None => audit,
        };
        service.state.borrow_mut().tally.resp_connections += 1;
        service.state.borrow_mut().tally.resp_connections_ever += 1;
        Connection::new(service.clone(), transport, Arc::new(audit), who, counted).serve().await;
        service.state.borrow_mut().tally.resp_connections -= 1;
    });
}

/// The user whom a certificate names has too many connections.
fn refuse(transport: &Transport, who: &Who, most: usize) {
    let mut bytes = Vec::new();
    too_many(who, most).encode(Version::Two, &mut bytes);
    // It is told if that is possible at once.
    drop(transport.try_write(&bytes));
    transport.shut();
}

pub(super) fn too_many(who: &Who, most: usize) -> Reply {
    let name = who.user().map_or("", |user| user.name());
    let why = format!("user '{name}' has {most} connections, and may have no more; close one of them");
    Reply::Error("LIMIT", why)
}

/// The line, encrypted if that is wanted, and the user whom the client's certificate names.
async fn greet<D: Disk>(
    service: &Service<D>,
    stream: TcpStream,
    audit: &Audit,
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
