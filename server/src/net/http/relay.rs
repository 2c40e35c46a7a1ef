//! Relays requests to the node that leads, while another node does. Each connection of a client has one to the leader, so
//! that the leader limits, authenticates and audits it like a direct one, and ends its requests when it closes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

use super::client::{Client, closing};
use super::problem::Problem;
use super::{Bounds, input};
use crate::peers::LeaderDialer;

/// Headers that are about one connection, and not about the message. The length follows from the body.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// How requests of one kind are relayed.
#[derive(Clone)]
pub(super) struct RelayConfig {
    /// `None` on a node without a cluster.
    pub(super) dialer: Option<LeaderDialer>,
    pub(super) bounds: Bounds,
    /// Whether the leader may take long to answer, so that a client that disconnects meanwhile must be noticed.
    pub(super) may_wait: bool,
}

/// A connection to the node that leads, for one connection of a client. It closes when this is dropped, or when another
/// node leads.
pub(super) struct LeaderConnection {
    leader: u64,
    requests: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Drop for LeaderConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LeaderConnection {
    async fn open(dialer: &LeaderDialer, leader: u64, client: &Client) -> io::Result<LeaderConnection> {
        let stream = dialer.dial(leader, client.to_relayed()).await?;
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let dialer = dialer.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                // Its requests learn the outcome.
                _ = connection => {}
                // The client asks again, and learns from the new leader what became of its requests.
                () = dialer.until_replaced(leader) => {}
            }
        });
        Ok(LeaderConnection { leader, requests, task: task.abort_handle() })
    }
}

/// A request on its way to the leader, and its response. Dropped before the response has ended, it closes the connection to
/// the leader, and the leader ends the request.
struct Exchange {
    client: Arc<Client>,
    connection: Option<LeaderConnection>,
}

impl Exchange {
    fn begin(client: Arc<Client>) -> Exchange {
        client.set_idle(false);
        Exchange { client, connection: None }
    }

    /// Keeps the connection for the next request.
    fn finish(mut self) {
        if let Some(connection) = self.connection.take() {
            self.client.keep_leader(connection);
        }
    }

    /// Sends the request to the leader, and waits for the head of the response.
    async fn send(
        &mut self,
        dialer: &LeaderDialer,
        leader: u64,
        mut request: hyper::Request<Full<Bytes>>,
    ) -> Result<hyper::Response<Incoming>, Problem> {
        if let Some(mut kept) = self.client.take_leader()
            && kept.leader == leader
            && kept.requests.ready().await.is_ok()
        {
            let sent = kept.requests.try_send_request(request);
            self.connection = Some(kept);
            match sent.await {
                Ok(response) => return Ok(response),
                // The leader has closed the connection in the meantime, and has not got the request.
                Err(mut error) => request = error.take_message().ok_or_else(Problem::relay_broken)?,
            }
        }
        let opened = LeaderConnection::open(dialer, leader, &self.client).await;
        let mut connection = opened.map_err(|error| Problem::leader_unreachable(&error))?;
        let sent = connection.requests.send_request(request);
        self.connection = Some(connection);
        sent.await.map_err(|_| Problem::relay_broken())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.client.set_idle(true);
    }
}

/// Relays a request if another node leads.
pub(super) async fn relay(State(config): State<RelayConfig>, request: Request, next: Next) -> Response {
    let client = request.extensions().get::<Arc<Client>>().filter(|client| !client.is_relayed()).cloned();
    let leader = config.dialer.as_ref().and_then(|dialer| Some((dialer, dialer.other_leader()?)));
    match (leader, client) {
        (Some((dialer, leader)), Some(client)) => {
            forward(dialer, leader, &config, client, request).await.unwrap_or_else(IntoResponse::into_response)
        }
        _ => next.run(request).await,
    }
}

async fn forward(
    dialer: &LeaderDialer,
    leader: u64,
    config: &RelayConfig,
    client: Arc<Client>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut head, body) = input::read_body(request, &config.bounds).await?.into_parts();
    let body = body.collect().await.map_err(|_| Problem::bad("the body did not arrive"))?.to_bytes();
    remove_hop_by_hop(&mut head.headers);
    head.headers.remove(header::CONTENT_LENGTH);
    let mut relayed = hyper::Request::new(Full::new(body));
    (*relayed.method_mut(), *relayed.uri_mut()) = (head.method, head.uri);
    *relayed.headers_mut() = head.headers;
    let mut exchange = Exchange::begin(client.clone());
    let response = tokio::select! {
        biased;
        response = exchange.send(dialer, leader, relayed) => response?,
        // hyper does not notice a disconnect while bytes after this request are unread.
        () = client.closed(), if config.may_wait => return Ok(closing(Problem::relay_broken().into_response())),
    };
    if client.is_unauthenticated() && is_authenticated(response.status()) {
        // The leader counts the connection for its user.
        drop(client.set_authenticated(None));
    }
    Ok(to_client(response, exchange, config.may_wait))
}

/// Turns the leader's response into that of this node.
fn to_client(response: hyper::Response<Incoming>, exchange: Exchange, may_wait: bool) -> Response {
    let (mut head, incoming) = response.into_parts();
    let closes = head.headers.get(header::CONNECTION).is_some_and(|value| value == "close");
    remove_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
    // The connection to the leader ends with its last response, for example after too many wrong secrets.
    if closes {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let client = exchange.client.clone();
    let closed: BoxFuture<'static, ()> =
        if may_wait { Box::pin(async move { client.closed().await }) } else { Box::pin(std::future::pending()) };
    let mut body = RelayedBody { incoming, exchange: Some(exchange), closed };
    body.finish_at_end();
    Response::from_parts(head, Body::new(body))
}

/// Returns whether the leader answers with this status only after the login.
fn is_authenticated(status: StatusCode) -> bool {
    status.is_success()
        || matches!(
            status,
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY
        )
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let listed = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let listed = listed.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse::<HeaderName>().ok());
    for name in listed.collect::<Vec<_>>().iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The body of the leader's response, as it arrives.
struct RelayedBody {
    incoming: Incoming,
    exchange: Option<Exchange>,
    /// Ready when the client has disconnected.
    closed: BoxFuture<'static, ()>,
}

impl RelayedBody {
    fn finish_at_end(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(exchange) = self.exchange.take()
        {
            exchange.finish();
        }
    }
}

impl hyper::body::Body for RelayedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.exchange.is_some() && self.closed.as_mut().poll(context).is_ready() {
            self.exchange = None;
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        match &frame {
            Some(Ok(_)) => self.finish_at_end(),
            Some(Err(_)) => self.exchange = None,
            None => {
                if let Some(exchange) = self.exchange.take() {
                    exchange.finish();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
