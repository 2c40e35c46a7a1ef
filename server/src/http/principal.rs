//! Who asks. This is the one place where it is decided.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

use crate::service::Origin;

/// The other end of the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Who asks: what they are called in labels and in the audit log.
#[derive(Debug, Clone)]
pub(super) struct Principal(pub(super) Arc<str>);

impl Principal {
    pub(super) fn origin(&self) -> Origin {
        Origin::Http(self.0.clone())
    }
}

/// Finds out who asks, before anything is done for them.
pub(super) async fn identify(mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().map_or_else(|| "unknown".to_owned(), |peer| peer.0.to_string());
    request.extensions_mut().insert(Principal(peer.into()));
    next.run(request).await
}
