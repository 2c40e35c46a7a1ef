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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::Bounds;
use super::principal::Visitor;
use super::problem::Problem;
use super::traffic::Traffic;
use crate::access::Users;
use crate::service::Paces;
use crate::tls::Tls;

/// How long a stranger whose time is over may take to read its last answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who is let in, and how.
#[derive(Debug, Clone)]
pub(crate) struct Entrance {
    pub(crate) users: Option<Users>,
    pub(crate) tls: Option<Tls>,
    /// Connections at once that are not yet encrypted, or do not yet say who they are.
    pub(crate) strangers: usize,
    /// How long one may take to do so.
    pub(crate) greeting: Duration,
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
    let places = Arc::new(Semaphore::new(hall.bounds.connections));
    let strangers = Arc::new(Semaphore::new(hall.entrance.strangers));
    let (hall, paces) = (Arc::new(hall), Paces::new());
    // Never closed, so never refused.
    while let Ok(place) = places.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let stranger = hall.entrance.is_guarded().then(|| strangers.clone().try_acquire_owned());
                match stranger.transpose() {
                    Ok(stranger) => {
                        let visitor = Visitor::new(peer, &paces, stranger);
                        tokio::spawn(receive(hall.clone(), stream, peer, visitor, place));
                    }
                    Err(_) => turn_away(&hall.entrance, &stream),
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// There are too many who have not said who they are.
fn turn_away(entrance: &Entrance, stream: &TcpStream) {
    if entrance.tls.is_none() {
        let body = Problem::overloaded(entrance.strangers).to_json();
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
async fn receive(
    hall: Arc<Hall>,
    stream: TcpStream,
    peer: SocketAddr,
    mut visitor: Visitor,
    _place: OwnedSemaphorePermit,
) {
    let _counted = hall.traffic.clone().connected();
    // It only costs time if it cannot be set.
    drop(stream.set_nodelay(true));
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(hall.bounds.stall));
    let stream = Box::pin(stream);
    let served = match &hall.entrance.tls {
        None => converse(&hall, stream, visitor).await,
        Some(tls) => match encrypted(tls, hall.entrance.greeting, stream).await {
            Ok((stream, named)) => {
                visitor.be_named(named);
                converse(&hall, stream, visitor).await
            }
            Err(why) => return visitor.audit().not_encrypted(&why),
        },
    };
    if let Err(error) = served {
        tracing::debug!(%error, %peer, "a connection ended badly");
    }
}

type Plain = Pin<Box<TimeoutStream<TcpStream>>>;

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
    if hall.entrance.users.is_none() {
        visitor.be_known();
    }
    let visitor = Arc::new(visitor);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(visitor.clone());
        hall.router.clone().oneshot(request.map(Body::new))
    });
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(hall.bounds.head).max_buf_size(32 << 10);
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = &mut connection => return served,
        () = tokio::time::sleep(hall.entrance.greeting) => {}
    }
    if visitor.is_stranger() {
        connection.as_mut().graceful_shutdown();
        return timeout(FAREWELL, connection).await.unwrap_or(Ok(()));
    }
    connection.await
}
