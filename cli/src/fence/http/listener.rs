//! The accept loop: TLS, connection limit, orderly shutdown.

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

use super::write_timeout::WriteTimeout;

/// The connection limit. Further clients wait in the listen backlog.
const CONNECTIONS: usize = 1024;
/// How long a client may take for the TLS handshake, and for the head of a request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay after a failed accept, as when all file descriptors are in use.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The accept loop of the proxy.
pub(super) struct Listener {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) service: Fenced<Forward>,
    /// How long a client may leave an answer unread.
    pub(super) time_out: Duration,
}

impl Listener {
    /// Serves until `stop` resolves, then finishes the requests that are under way.
    pub(super) async fn serve(self, stop: impl Future<Output = ()>) {
        let connections = GracefulShutdown::new();
        let limit = Arc::new(Semaphore::new(CONNECTIONS));
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = async {
                let permit = limit.clone().acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let (permit, stream, peer) = tokio::select! {
                () = &mut stop => break,
                (permit, accepted) = accepted => match (permit, accepted) {
                    (Ok(permit), Ok((stream, peer))) => (permit, stream, peer),
                    _ => {
                        sleep(ACCEPT_RETRY_DELAY).await;
                        continue;
                    }
                },
            };
            let (tls, service, watcher) = (self.tls.clone(), self.service.clone(), connections.watcher());
            // Without it replies are only slower.
            drop(stream.set_nodelay(true));
            let stream = WriteTimeout::new(stream, self.time_out);
            tokio::spawn(async move {
                handshake(stream, peer, tls, service, watcher).await;
                drop(permit);
            });
        }
        drop(self.listener);
        connections.shutdown().await;
    }
}

async fn handshake(
    stream: WriteTimeout,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    service: Fenced<Forward>,
    watcher: Watcher,
) {
    match tls {
        None => serve_connection(stream, peer, service, watcher).await,
        Some(tls) => match timeout(CLIENT_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve_connection(stream, peer, service, watcher).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
        },
    }
}

async fn serve_connection(
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
    server.timer(TokioTimer::new()).header_read_timeout(CLIENT_TIMEOUT);
    let connection = server.serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%peer, %error, "a connection broke");
    }
}
