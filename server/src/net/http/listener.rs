//! Accepts connections: limited, within a time limit, with TLS if the service has it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::Bounds;
use super::client::{Client, closing};
use super::problem::Problem;
use super::socket::Socket;
use super::traffic::Traffic;
use crate::access::Users;
use crate::net::bounds::Bounds as ServiceBounds;
use crate::net::connection_limit::{ConnectionLimit, ConnectionPermit};
use crate::net::hangup::enable_keepalive;
use crate::net::rate_limit::RateLimiters;
use crate::net::server::RelayedConnection;
use crate::net::unread::SHARE;
use crate::peers::RelayedClient;
use crate::tls::{Accepted, Tls};

/// How long a client that did not log in in time may take to read its last response.
const LINGER: Duration = Duration::from_secs(1);

/// The state that all connections share.
pub(super) struct Shared {
    pub(super) users: Option<Users>,
    pub(super) tls: Option<Tls>,
    /// Limits on connections that have not logged in, as for RESP.
    pub(super) service_bounds: ServiceBounds,
    pub(super) bounds: Bounds,
    pub(super) router: Router,
    pub(super) traffic: Arc<Traffic>,
    pub(super) limiters: Arc<RateLimiters>,
}

impl Shared {
    /// Returns whether clients have to log in, or to finish a TLS handshake.
    fn is_guarded(&self) -> bool {
        self.users.is_some() || self.tls.is_some()
    }
}

pub(super) async fn accept(listener: TcpListener, mut relayed: mpsc::Receiver<RelayedConnection>, shared: Shared) {
    let (most, is_guarded) = (shared.bounds.connections, shared.is_guarded());
    let bounds = shared.service_bounds.of_connections(most, (most / SHARE).max(1), is_guarded);
    let connections = ConnectionLimit::new(bounds, true);
    let shared = Arc::new(shared);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some((stream, client)) = relayed.recv() => {
                let permit = connections.enter(client.address.ip());
                tokio::spawn(serve_relayed(shared.clone(), stream, client, permit));
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => match connections.enter(peer.ip()) {
                Some(permit) => {
                    // Without it responses only take longer.
                    drop(stream.set_nodelay(true));
                    enable_keepalive(&stream);
                    let socket = Socket::new(stream);
                    let client = Client::new(peer, &shared.limiters, permit, Some(socket.clone()));
                    tokio::spawn(serve(shared.clone(), socket, peer, client));
                }
                None => reject_connection(&shared, &stream),
            },
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Disconnects a client because there are too many.
fn reject_connection(shared: &Shared, stream: &TcpStream) {
    if shared.tls.is_none() {
        let body = Problem::too_many_connections(shared.bounds.connections).to_json();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\n\
             retry-after: 1\r\nconnection: close\r\n\r\n{body}"
        );
        // Best effort: the error is sent only if the socket is writable now.
        drop(stream.try_write(answer.as_bytes()));
    }
}

/// Serves one connection until it ends.
async fn serve(shared: Arc<Shared>, socket: Socket, peer: SocketAddr, mut client: Client) {
    let _counted = shared.traffic.clone().connected();
    let mut stream = TimeoutStream::new(socket);
    stream.set_write_timeout(Some(shared.bounds.stall));
    let stream = Box::pin(stream);
    let served = match &shared.tls {
        None => serve_requests(&shared, stream, client, shared.bounds.head).await,
        Some(tls) => {
            let handshaken = tokio::select! {
                handshaken = handshake(tls, shared.service_bounds.greeting, stream) => handshaken,
                () = client.until_cut_off() => return,
            };
            match handshaken {
                Ok((stream, certified)) => {
                    client.set_certified(certified);
                    serve_requests(&shared, stream, client, shared.bounds.head).await
                }
                Err(why) => return client.audit().tls_failed(&why),
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, %peer, "a connection ended badly");
    }
}

/// Serves a client whose connection another node relays.
async fn serve_relayed(
    shared: Arc<Shared>,
    stream: Accepted,
    relayed: RelayedClient,
    permit: Option<ConnectionPermit>,
) {
    let mut stream = TimeoutStream::new(stream.boxed());
    stream.set_write_timeout(Some(shared.bounds.stall));
    let stream = Box::pin(stream);
    let Some(permit) = permit else { return refuse_relayed(&shared, stream).await };
    let _counted = shared.traffic.clone().connected();
    let peer = relayed.address;
    let mut client = Client::new(peer, &shared.limiters, permit, None);
    client.set_certified(relayed.user);
    // The other node disconnects an idle client first, so that no request meets a connection that is just being closed.
    if let Err(error) = serve_requests(&shared, stream, client, 2 * shared.bounds.head).await {
        tracing::debug!(%error, %peer, "a relayed connection ended badly");
    }
}

/// Answers the first request of a relayed client, because there are too many connections.
async fn refuse_relayed(shared: &Shared, stream: impl AsyncRead + AsyncWrite + Unpin + Send) {
    let most = shared.bounds.connections;
    let service = service_fn(async |_: hyper::Request<Incoming>| {
        Ok::<_, Infallible>(closing(Problem::too_many_connections(most).into_response()))
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // An error or the time-out only closes the connection.
    drop(timeout(LINGER, connection).await);
}

type Plain = Pin<Box<TimeoutStream<Socket>>>;

/// Does the TLS handshake. Returns the connection, and the user that the client's certificate names.
async fn handshake(
    tls: &Tls,
    limit: Duration,
    stream: Plain,
) -> Result<(tokio_rustls::server::TlsStream<Plain>, Option<String>), String> {
    match timeout(limit, tls.http_acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let certified = tls.user(stream.get_ref().1);
            Ok((stream, certified))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it took too long".to_owned()),
    }
}

async fn serve_requests(
    shared: &Shared,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: Client,
    idle: Duration,
) -> hyper::Result<()> {
    let client = Arc::new(client);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        if shared.users.is_none() {
            // Without users a client counts as authenticated after its first request. There is no limit per user then.
            let _ = client.set_authenticated(None);
        }
        request.extensions_mut().insert(client.clone());
        shared.router.clone().oneshot(request.map(Body::new))
    });
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(32 << 10);
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(stream), service));
    let mut login_deadline = pin!(tokio::time::sleep(shared.service_bounds.greeting));
    let mut is_login_over = shared.users.is_none();
    loop {
        tokio::select! {
            biased;
            served = &mut connection => return served,
            () = client.until_cut_off() => return Ok(()),
            () = &mut login_deadline, if !is_login_over => is_login_over = true,
        }
        if client.is_unauthenticated() {
            connection.as_mut().graceful_shutdown();
            return timeout(LINGER, connection).await.unwrap_or(Ok(()));
        }
    }
}
