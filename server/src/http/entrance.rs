//! How connections come in: counted, in time, encrypted where that is wanted.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::Bounds;
use super::principal::Visitor;
use super::problem::Problem;
use super::socket::Socket;
use super::traffic::Traffic;
use crate::access::Users;
use crate::service::{Bounds as ServiceBounds, ConnectionLimit, Paces, SHARE, probe};
use crate::tls::Tls;

/// How long a stranger whose time is over may take to read its last answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who is let in, and how.
#[derive(Debug, Clone)]
pub(crate) struct Entrance {
    pub(crate) users: Option<Users>,
    pub(crate) tls: Option<Tls>,
    /// How many may come before they say who they are, and how long they may take for it.
    pub(crate) bounds: ServiceBounds,
}

impl Entrance {
    /// Whether anybody is a stranger at all.
    fn is_guarded(&self) -> bool {
        self.users.is_some() || self.tls.is_some()
    }
}

/// What all connections share.
pub(super) struct Hall {
    pub(super) entrance: Entrance,
    pub(super) bounds: Bounds,
    pub(super) router: Router,
    pub(super) traffic: Arc<Traffic>,
}

pub(super) async fn accept(listener: TcpListener, hall: Hall) {
    let (most, is_guarded) = (hall.bounds.connections, hall.entrance.is_guarded());
    let bounds = hall.entrance.bounds.of_connections(most, (most / SHARE).max(1), is_guarded);
    let connections = ConnectionLimit::new(bounds, true);
    let (hall, paces) = (Arc::new(hall), Arc::new(Paces::new()));
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match connections.enter(peer.ip()) {
                Some(counted) => {
                    // It only costs time if it cannot be set.
                    drop(stream.set_nodelay(true));
                    probe(&stream);
                    let socket = Socket::new(stream);
                    let visitor = Visitor::new(peer, paces.clone(), counted, socket.clone());
                    tokio::spawn(receive(hall.clone(), socket, peer, visitor));
                }
                None => turn_away(&hall, &stream),
            },
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// There are too many.
fn turn_away(hall: &Hall, stream: &TcpStream) {
    if hall.entrance.tls.is_none() {
        let body = Problem::too_many_connections(hall.bounds.connections).to_json();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\n\
             retry-after: 1\r\nconnection: close\r\n\r\n{body}"
        );
        // It is told if that is possible at once.
        drop(stream.try_write(answer.as_bytes()));
    }
}

/// Serves one connection until it ends.
async fn receive(hall: Arc<Hall>, socket: Socket, peer: SocketAddr, mut visitor: Visitor) {
    let _counted = hall.traffic.clone().connected();
    let mut stream = TimeoutStream::new(socket);
    stream.set_write_timeout(Some(hall.bounds.stall));
    let stream = Box::pin(stream);
    let served = match &hall.entrance.tls {
        None => converse(&hall, stream, visitor).await,
        Some(tls) => {
            let greeted = tokio::select! {
                greeted = encrypted(tls, hall.entrance.bounds.greeting, stream) => greeted,
                () = visitor.cut_off() => return,
            };
            match greeted {
                Ok((stream, named)) => {
                    visitor.be_named(named);
                    converse(&hall, stream, visitor).await
                }
                Err(why) => return visitor.audit().not_encrypted(&why),
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, %peer, "a connection ended badly");
    }
}

type Plain = Pin<Box<TimeoutStream<Socket>>>;

/// The line, and the user whom the client's certificate names.
async fn encrypted(
    tls: &Tls,
    greeting: Duration,
    stream: Plain,
) -> Result<(tokio_rustls::server::TlsStream<Plain>, Option<String>), String> {
    match timeout(greeting, tls.http_acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let named = tls.user(stream.get_ref().1);
            Ok((stream, named))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it took too long".to_owned()),
    }
}

async fn converse(
    hall: &Hall,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    visitor: Visitor,
) -> hyper::Result<()> {
    let visitor = Arc::new(visitor);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        if hall.entrance.users.is_none() {
            // Nobody has to say more than that where there are no users, and nobody is refused.
            let _ = visitor.be_known(None);
        }
        request.extensions_mut().insert(visitor.clone());
        hall.router.clone().oneshot(request.map(Body::new))
    });
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(hall.bounds.head).max_buf_size(32 << 10);
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(stream), service));
    let mut greeting = pin!(tokio::time::sleep(hall.entrance.bounds.greeting));
    let mut is_greeted = hall.entrance.users.is_none();
    loop {
        tokio::select! {
            biased;
            served = &mut connection => return served,
            () = visitor.cut_off() => return Ok(()),
            () = &mut greeting, if !is_greeted => is_greeted = true,
        }
        if visitor.is_stranger() {
            connection.as_mut().graceful_shutdown();
            return timeout(FAREWELL, connection).await.unwrap_or(Ok(()));
        }
    }
}
