//! The upstream side of a reverse proxy: a service that calls another one.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::uri::{Authority, Scheme};
use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use reqwest::Url;
use tokio::time::timeout;
use tower_service::Service;

use super::answer::{Body, BoxError, Gathered, gather};
use super::path;

/// Hop-by-hop headers, which a proxy does not pass on (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// A service that passes requests on to another one. Behind a [`FenceLayer`](super::FenceLayer) it fences a service that
/// cannot be changed.
///
/// The path and the query of a request are passed on byte for byte, below the path of the service's address; a path that
/// could be read as another one is refused. A request that certainly did not reach the service is the error [`NotSent`].
/// After any other error the request may have been carried out.
#[derive(Debug, Clone)]
pub struct Forward {
    client: Client<HttpConnector, Full<Bytes>>,
    upstream: Arc<Upstream>,
}

#[derive(Debug)]
struct Upstream {
    authority: Authority,
    /// Without a slash at its end.
    prefix: String,
    time_out: Duration,
    request_bytes: usize,
}

/// A request that certainly did not reach the service: no connection could be opened. It can be sent again.
#[derive(Debug)]
pub struct NotSent(BoxError);

impl NotSent {
    /// Returns an error with this cause.
    pub fn new(why: impl Into<BoxError>) -> NotSent {
        NotSent(why.into())
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cause: &dyn StdError = &*self.0;
        while let Some(source) = cause.source() {
            cause = source;
        }
        write!(f, "the service cannot be reached ({cause})")
    }
}

impl StdError for NotSent {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

impl Forward {
    /// Forwards to the service at this address. `time_out` bounds the time to the beginning of the answer and between its
    /// parts, and the arrival of the request body; half of it bounds connecting. Request bodies are held in memory, up to
    /// `request_bytes`; answers are streamed.
    ///
    /// # Errors
    ///
    /// It is no address of an HTTP service without TLS.
    pub fn to(upstream: &str, time_out: Duration, request_bytes: usize) -> Result<Forward, BoxError> {
        // The error does not quote the address, which may contain a password.
        let url = Url::parse(upstream).map_err(|error| format!("the service's address is no URL: {error}"))?;
        let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        if url.scheme() != "http" || !is_plain || url.password().is_some() {
            return Err("the service's address is not like http://host:port/path".into());
        }
        let authority = url.authority().parse::<Authority>()?;
        let prefix = url.path().trim_end_matches('/').to_owned();
        path::check(&::http::Method::GET, &format!("{prefix}/").parse()?)?;
        let mut connector = HttpConnector::new();
        // Shorter than the whole time-out, so that a time-out while connecting is recognised as such: nothing was sent.
        connector.set_connect_timeout(Some(time_out / 2));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let upstream = Upstream { authority, prefix, time_out, request_bytes };
        Ok(Forward { client, upstream: Arc::new(upstream) })
    }

    async fn pass_on(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let Upstream { time_out, request_bytes, .. } = *self.upstream;
        let (mut parts, body) = request.into_parts();
        if let Err(detail) = path::check(&parts.method, &parts.uri) {
            return Ok(plain(StatusCode::BAD_REQUEST, detail));
        }
        let body = match timeout(time_out, gather(body, request_bytes)).await {
            Ok(Ok(Gathered::Whole { body, .. })) => body,
            Ok(Ok(Gathered::Longer { .. })) => {
                return Ok(plain(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("the body has more than {request_bytes} bytes"),
                ));
            }
            Ok(Err(error)) => return Ok(plain(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))),
            Err(_) => {
                let what = format!("the body did not arrive within {} ms", time_out.as_millis());
                return Ok(plain(StatusCode::REQUEST_TIMEOUT, what));
            }
        };
        parts.uri = self.upstream.target(&parts.uri)?;
        parts.version = Version::HTTP_11;
        // The client's `Connection` does not decide what the service sees: a header that it names may be one by which the
        // fence or a proxy before it has judged the request.
        for name in HOP_BY_HOP {
            parts.headers.remove(name);
        }
        // The body is sent whole, with its own length.
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.remove(FORWARDED_HOST);
        if let Some(host) = parts.headers.remove(header::HOST) {
            parts.headers.insert(FORWARDED_HOST, host);
        }
        parts.headers.append(header::VIA, HeaderValue::from_static("1.1 palisade"));
        let answer = self.client.request(Request::from_parts(parts, Full::new(body)));
        let response = match timeout(time_out, answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_connect() => return Err(NotSent(error.into()).into()),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(format!("it did not answer within {} ms", time_out.as_millis()).into()),
        };
        let mut response = response.map(|body| Body::new(body).within(time_out));
        for name in named_in_connection(response.headers()).into_iter().chain(HOP_BY_HOP) {
            response.headers_mut().remove(name);
        }
        // Each connection has its own HTTP version.
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }
}

impl Upstream {
    /// Returns the service's URI with the same path and query, byte for byte.
    fn target(&self, uri: &Uri) -> Result<Uri, ::http::Error> {
        let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
        let target = format!("{}{}{query}", self.prefix, uri.path());
        Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(target).build()
    }
}

fn plain(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::full(text));
    *response.status_mut() = status;
    response
}

/// Returns the headers that `Connection` names as hop-by-hop.
fn named_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
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
