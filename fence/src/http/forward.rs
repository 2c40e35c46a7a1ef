//! The other end of a reverse proxy: a service that asks another one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use bytes::Bytes;
use reqwest::{Client, Url};
use tower_service::Service;

use super::answer::{Body, BoxError, Gathered, gather};

/// Headers that are between two neighbours only (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// A service that passes requests on to another one. Behind a [`FenceLayer`](super::FenceLayer) it fences a service that
/// cannot be changed.
///
/// A request that certainly did not reach the service is answered with 502. One that did, and was not answered in time,
/// is an error: the fence then says that nobody knows.
#[derive(Debug, Clone)]
pub struct Forward {
    client: Client,
    upstream: Arc<str>,
    request_bytes: usize,
}

impl Forward {
    /// To the service at this address, which answers within this time. Request bodies are held in memory, up to so many
    /// bytes; answers are passed on as they come.
    ///
    /// # Errors
    ///
    /// It is no address of an HTTP service without TLS, or there can be no client.
    pub fn to(upstream: &str, time_out: Duration, request_bytes: usize) -> Result<Forward, BoxError> {
        let url =
            Url::parse(upstream).map_err(|error| format!("'{}' is no URL: {error}", upstream.escape_debug()))?;
        let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        if url.scheme() != "http" || !is_plain || url.password().is_some() {
            return Err(format!("'{}' is not like http://host:port/path", upstream.escape_debug()).into());
        }
        let client =
            Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().retry(reqwest::retry::never());
        let client = client.connect_timeout(time_out).read_timeout(time_out).build()?;
        let upstream = url.as_str().trim_end_matches('/').into();
        Ok(Forward { client, upstream, request_bytes })
    }

    async fn pass_on(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (mut parts, body) = request.into_parts();
        let Ok(Gathered::Whole { body, .. }) = gather(body, self.request_bytes).await else {
            return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long, or broke off"));
        };
        let Ok(url) = Url::parse(&format!("{}{}", self.upstream, path(&parts.uri))) else {
            return Ok(plain(StatusCode::BAD_REQUEST, "the path makes no sense"));
        };
        let host = parts.headers.remove(header::HOST);
        between_neighbours(&mut parts.headers);
        // The body is sent whole, with its own length.
        parts.headers.remove(header::CONTENT_LENGTH);
        if let Some(host) = host {
            parts.headers.insert(HeaderName::from_static("x-forwarded-host"), host);
        }
        parts.headers.append(header::VIA, HeaderValue::from_static("1.1 palisade"));
        let request = self.client.request(parts.method, url).headers(parts.headers).body(body);
        match request.send().await {
            Ok(response) => {
                let mut response = Response::<reqwest::Body>::from(response).map(Body::new);
                between_neighbours(response.headers_mut());
                // Each side speaks its own.
                *response.version_mut() = Version::HTTP_11;
                Ok(response)
            }
            Err(error) if error.is_connect() => Ok(plain(StatusCode::BAD_GATEWAY, "the service cannot be reached")),
            Err(error) => Err(error.without_url().into()),
        }
    }
}

fn path(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", |path| path.as_str())
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

/// Removes what is not to be passed on.
fn between_neighbours(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

impl Service<Request<Body>> for Forward {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().pass_on(request))
    }
}
