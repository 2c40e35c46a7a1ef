//! Connections: let in, encrypted, served, and let go.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use palisade_fence::http::{Fenced, Forward};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use super::stall::Unstalled;

/// How many connections there are at most; others wait outside.
const CONNECTIONS: usize = 1024;
/// For a handshake, and for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a connection that could not be accepted, as when there are no files left.
const PAUSE: Duration = Duration::from_millis(50);

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Where clients come in.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) service: Fenced<Forward>,
    /// How long a client may leave an answer unread.
    pub(super) time_out: Duration,
}

impl Door {
    /// Serves until it is told to stop; then each connection gets the answer that it waits for.
    pub(super) async fn serve(self, stop: impl Future<Output = ()>) {
        let connections = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = async {
                let place = places.clone().acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let (place, stream, peer) = tokio::select! {
                () = &mut stop => break,
                (place, accepted) = accepted => match (place, accepted) {
                    (Ok(place), Ok((stream, peer))) => (place, stream, peer),
                    _ => {
                        sleep(PAUSE).await;
                        continue;
                    }
                },
            };
            let (tls, service, watcher) = (self.tls.clone(), self.service.clone(), connections.watcher());
            // It only costs time if it cannot be set.
            drop(stream.set_nodelay(true));
            let stream = Unstalled::new(stream, self.time_out);
            tokio::spawn(async move {
                enter(stream, peer, tls, service, watcher).await;
                drop(place);
            });
        }
        drop(self.listener);
        connections.shutdown().await;
    }
}

async fn enter(
    stream: Unstalled,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    service: Fenced<Forward>,
    watcher: Watcher,
) {
    match tls {
        None => converse(stream, peer, service, watcher).await,
        Some(tls) => match timeout(PATIENCE, tls.accept(stream)).await {
            Ok(Ok(stream)) => converse(stream, peer, service, watcher).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no encrypted connection"),
            Err(_) => tracing::debug!(%peer, "the handshake took too long"),
        },
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: SocketAddr,
    service: Fenced<Forward>,
    watcher: Watcher,
) {
    let answer = service_fn(|mut request: Request<Incoming>| {
        if let Ok(peer) = HeaderValue::from_str(&peer.ip().to_string()) {
            request.headers_mut().append(FORWARDED_FOR, peer);
        }
        service.clone().call(request)
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let connection = server.serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%peer, %error, "a connection broke");
    }
}
