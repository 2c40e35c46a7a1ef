//! A tower layer for HTTP services that honour `Idempotency-Key`.
//!
//! A client that got no reply repeats its request with the same key. The layer lets the first request through and keeps its
//! response. A repeat gets that response, with status, headers and body, and with the header `idempotent-replayed: true`.
//!
//! | request | response |
//! |---|---|
//! | the first with a key | that of the service |
//! | a repeat | the kept one |
//! | a repeat while the first is under way | it waits for up to [`wait`](IdempotencyLayer::wait), then 409 with `retry-after` |
//! | the same key with another method, path or body | 422 |
//! | one whose response is longer than [allowed](IdempotencyLayer::max_body_bytes), and its repeats | 500, which says that it was performed |
//! | a malformed key, or none where one is [`required`](IdempotencyLayer::required) | 400 |
//! | a body that is longer than allowed | 413 |
//! | the lock engine or the store fails before the service was called | 503 with `retry-after` |
//!
//! A response with a status of 500 or above is not kept: the next repeat reaches the service. If the client closes its connection,
//! the service finishes nevertheless, and a repeat gets its response. Requests without the header, and those with a method that changes
//! nothing (GET, HEAD, OPTIONS, TRACE), pass as they are.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use ring::digest::{Context as Digest, SHA256};
use serde::{Deserialize, Serialize};
use tower_layer::Layer;
use tower_service::Service;

use super::{KEEP, MAX_OUTCOME_BYTES, OnceError, OnceStore};
use crate::Palisade;

/// The header with the key of a request.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of a response that was kept.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// The longest key that is accepted.
const MAX_KEY_BYTES: usize = 255;
/// The longest request and response body, unless [`IdempotencyLayer::max_body_bytes`] says otherwise.
const MAX_BODY_BYTES: usize = 1 << 20;
const WAIT: Duration = Duration::from_secs(10);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Derives something from the head of a request.
type Derive = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// A layer that lets a request with an `Idempotency-Key` happen once. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, routing::post};
/// use palisade::recipe::once::http::IdempotencyLayer;
/// use palisade::recipe::store::Sqlite;
///
/// let palisade = palisade::connect("memory:").await?;
/// let store = Sqlite::open(":memory:").await?;
/// // Each caller has its own keys. Without this, one could read the responses of another.
/// let caller = |request: &http::request::Parts| match request.headers.get("authorization") {
///     Some(user) => String::from_utf8_lossy(user.as_bytes()).into_owned(),
///     None => String::new(),
/// };
/// let app: Router = Router::new()
///     .route("/charges", post(|| async { "charged" }))
///     .layer(IdempotencyLayer::new(palisade, store, caller).required());
/// # let _ = app; Ok(()) }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer<S> {
    palisade: Palisade,
    store: S,
    caller: Derive,
    target: Derive,
    settings: Settings,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    keep: Duration,
    wait: Duration,
    max_body_bytes: usize,
    is_required: bool,
    accepts_failover: bool,
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IdempotencyLayer { palisade, store, settings, .. } = self;
        let mut debug = f.debug_struct("IdempotencyLayer");
        debug.field("palisade", palisade).field("store", store).field("settings", settings).finish_non_exhaustive()
    }
}

impl<S: OnceStore> IdempotencyLayer<S> {
    /// A layer with these locks and this store. `caller` returns the user or tenant that sends a request, after its authentication: each
    /// has its own keys.
    pub fn new(palisade: Palisade, store: S, caller: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        let settings = Settings {
            keep: KEEP,
            wait: WAIT,
            max_body_bytes: MAX_BODY_BYTES,
            is_required: false,
            accepts_failover: false,
        };
        let target = |request: &Parts| request.uri.path_and_query().map_or("", PathAndQuery::as_str).to_owned();
        IdempotencyLayer { palisade, store, caller: Arc::new(caller), target: Arc::new(target), settings }
    }

    /// Sets how the target of a request is found: what the request changes, which a key must not be used for twice. Otherwise it is the
    /// path and query of the request. A router that strips a prefix, as `Router::nest` of axum does, hides that prefix from the
    /// layers inside: put the layer outside of it, or return the whole path here.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::recipe::{once::http::IdempotencyLayer, store::Sqlite};
    /// # let (palisade, store) = (palisade::connect("memory:").await?, Sqlite::open(":memory:").await?);
    /// use axum::extract::OriginalUri;
    /// use axum::{Router, routing::post};
    ///
    /// let whole = |request: &http::request::Parts| match request.extensions.get::<OriginalUri>() {
    ///     Some(OriginalUri(uri)) => uri.to_string(),
    ///     None => request.uri.to_string(),
    /// };
    /// let layer = IdempotencyLayer::new(palisade, store, |_| "the only caller".to_owned()).target(whole);
    /// let charges: Router = Router::new().route("/charges", post(|| async { "charged" })).layer(layer);
    /// let app: Router = Router::new().nest("/accounts/{id}", charges);
    /// # let _ = app; Ok(()) }
    /// ```
    pub fn target(mut self, target: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.target = Arc::new(target);
        self
    }

    /// Sets how long a response is kept; a day otherwise.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.settings.keep = keep;
        self
    }

    /// Sets how long a repeat waits while the first request is under way; 10 s otherwise. It gets 409 afterwards, or at once if
    /// this is zero.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets the longest body of a request, and of a response that is kept; 1 MiB otherwise. A response of more than 4 MiB is never
    /// kept. Instead of a longer response, the first caller and its repeats get an error, 500, that says that the request was performed.
    pub fn max_body_bytes(mut self, max: usize) -> Self {
        self.settings.max_body_bytes = max;
        self
    }

    /// Refuses requests without a key, unless their method changes nothing.
    pub fn required(mut self) -> Self {
        self.settings.is_required = true;
        self
    }

    /// Accepts a lock engine whose tokens can go back in a failover. See
    /// [`Once::dangerous_accept_failover`](super::Once::dangerous_accept_failover).
    pub fn dangerous_accept_failover(mut self) -> Self {
        self.settings.accepts_failover = true;
        self
    }
}

impl<S: Clone, I> Layer<I> for IdempotencyLayer<S> {
    type Service = Idempotency<S, I>;

    fn layer(&self, inner: I) -> Idempotency<S, I> {
        Idempotency { layer: self.clone(), inner }
    }
}

/// A service behind an [`IdempotencyLayer`].
#[derive(Clone, Debug)]
pub struct Idempotency<S, I> {
    layer: IdempotencyLayer<S>,
    inner: I,
}

/// The body of a response: that of the service, or a kept one.
pub type ResponseBody<B> = http_body_util::Either<B, Full<Bytes>>;

impl<S, I, B, R> Service<Request<B>> for Idempotency<S, I>
where
    S: OnceStore + Clone + 'static,
    I: Service<Request<ResponseBody<B>>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    I::Error: Into<BoxError> + Send,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    R: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, I::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone may not be ready, so the original is called.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let changes_nothing = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(request.method());
        let key = request.headers().get(IDEMPOTENCY_KEY).cloned();
        match key {
            Some(key) if !changes_nothing => Box::pin(async move {
                // A client that closes its connection drops this future, and the service must finish nevertheless.
                let perform = tokio::spawn(async move { layer.perform(&key, request, inner).await });
                Ok(perform.await.unwrap_or_else(|_| Refusal::PANICKED.response()).map(http_body_util::Either::Right))
            }),
            None if layer.settings.is_required && !changes_nothing => {
                Box::pin(async { Ok(Refusal::MISSING_KEY.response().map(http_body_util::Either::Right)) })
            }
            _ => {
                let passing = inner.call(request.map(http_body_util::Either::Left));
                Box::pin(async move { Ok(passing.await?.map(http_body_util::Either::Left)) })
            }
        }
    }
}

/// A response as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    /// `None` if it was too long.
    body: Option<Vec<u8>>,
}

/// Why the service's response is not kept.
enum NotKept {
    /// Its status is 500 or above.
    Failed(Response<Full<Bytes>>),
    /// The service returned an error instead of a response, or its body broke off.
    Broken(BoxError),
}

impl<S: OnceStore + Clone> IdempotencyLayer<S> {
    async fn perform<I, B, R>(&self, key: &HeaderValue, request: Request<B>, mut inner: I) -> Response<Full<Bytes>>
    where
        I: Service<Request<ResponseBody<B>>, Response = Response<R>, Future: Send> + Send,
        I::Error: Into<BoxError>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send,
        R: Body<Data: Send, Error: Into<BoxError>> + Send,
    {
        let Some(key) = parse_key(key) else { return Refusal::BAD_KEY.response() };
        let (mut parts, body) = request.into_parts();
        let body = match Limited::new(body, self.settings.max_body_bytes).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Refusal::TOO_LONG.response(),
            Err(_) => return Refusal::BROKEN_BODY.response(),
        };
        let caller = (self.caller)(&parts);
        let target = (self.target)(&parts);
        let request = digest(&[parts.method.as_str().as_bytes(), target.as_bytes(), &body]);
        let mut once = self.palisade.once(format!("http/{}", hex(&digest(&[caller.as_bytes(), key]))), &self.store);
        once = once.request(request).keep(self.settings.keep);
        if self.settings.accepts_failover {
            once = once.dangerous_accept_failover();
        }
        let max_bytes = self.settings.max_body_bytes;
        let mut is_first = false;
        let work = async |step| {
            is_first = true;
            // A handler can pass on the key and the token, and learn of an attempt that did not finish.
            parts.extensions.insert(Arc::new(step));
            let request = Request::from_parts(parts, http_body_util::Either::Right(Full::new(body)));
            let response = inner.call(request).await.map_err(|error| NotKept::Broken(error.into()))?;
            encode(keep(response, max_bytes).await?).map_err(|error| NotKept::Broken(error.into()))
        };
        let response = match once.run_bytes(Some(self.settings.wait), work).await {
            Ok(Some(kept)) => kept,
            Ok(None) => return Refusal::UNDER_WAY.response(),
            Err(OnceError::Work(NotKept::Failed(response))) => return response,
            Err(OnceError::Work(NotKept::Broken(error))) => {
                tracing::warn!(%error, "the service failed");
                return Refusal::FAILED.response();
            }
            Err(OnceError::OtherRequest { .. }) => return Refusal::OTHER_REQUEST.response(),
            Err(OnceError::TakenOver { token, by: Some(by), .. }) => {
                tracing::warn!(%token, %by, "the response was refused, because a repeat has taken over");
                return Refusal::UNDER_WAY.response();
            }
            // No repeat is under way, and one would perform the request again.
            Err(OnceError::TakenOver { token, by: None, .. }) => {
                tracing::warn!(%token, "the response was refused, because its record is gone");
                return Refusal::NOT_KEPT.response();
            }
            Err(OnceError::Failed(error)) => {
                tracing::warn!(%error, "a request with an idempotency key failed");
                return if is_first { Refusal::NOT_KEPT } else { Refusal::UNAVAILABLE }.response();
            }
        };
        let Ok(kept) = postcard::from_bytes::<Kept>(&response) else { return Refusal::FAILED.response() };
        replay(kept, is_first)
    }
}

/// Encodes a response, without its body if that is too long for a record.
fn encode(mut kept: Kept) -> Result<Vec<u8>, postcard::Error> {
    let encoded = postcard::to_allocvec(&kept)?;
    if encoded.len() <= MAX_OUTCOME_BYTES {
        return Ok(encoded);
    }
    kept.body = None;
    postcard::to_allocvec(&kept)
}

/// Reads a response, if it is one to keep.
async fn keep<R>(response: Response<R>, max_bytes: usize) -> Result<Kept, NotKept>
where
    R: Body<Data: Buf, Error: Into<BoxError>>,
{
    let (mut parts, body) = response.into_parts();
    // A response that is too long is read to its end, so that the service finishes, but not kept in memory.
    let body = match read(body, max_bytes).await {
        Ok(body) => body,
        Err(error) => return Err(NotKept::Broken(error.into())),
    };
    // These describe one connection or are computed for each response.
    for name in [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, KEEP_ALIVE] {
        parts.headers.remove(name);
    }
    if parts.status.is_server_error() {
        let body = Full::new(body.map(Bytes::from).unwrap_or_default());
        return Err(NotKept::Failed(Response::from_parts(parts, body)));
    }
    let headers =
        parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_owned())).collect();
    Ok(Kept { status: parts.status.as_u16(), headers, body })
}

/// Reads a body; `None` if it is longer.
async fn read<R: Body>(body: R, max_bytes: usize) -> Result<Option<Vec<u8>>, R::Error> {
    let mut body = std::pin::pin!(body);
    let mut bytes = Some(Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(mut data) = frame?.into_data() else { continue };
        bytes = bytes.filter(|bytes| bytes.len() + data.remaining() <= max_bytes);
        if let Some(bytes) = &mut bytes {
            bytes.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
    }
    Ok(bytes)
}

fn replay(kept: Kept, is_first: bool) -> Response<Full<Bytes>> {
    let Some(body) = kept.body else { return Refusal::NOT_REPLAYED.response() };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in kept.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(&value)) {
            response.headers_mut().append(name, value);
        }
    }
    if !is_first {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// Returns the key of a header: visible characters, with or without the quotes of a structured field.
fn parse_key(value: &HeaderValue) -> Option<&[u8]> {
    let bytes = value.as_bytes();
    let key = bytes.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(bytes);
    let is_valid =
        !key.is_empty() && key.len() <= MAX_KEY_BYTES && key.iter().all(|byte| (b' '..=b'~').contains(byte));
    is_valid.then_some(key)
}

/// Returns the digest of several parts, each with its length, so that no two lists of parts have the same.
fn digest(parts: &[&[u8]]) -> Vec<u8> {
    let mut digest = Digest::new(&SHA256);
    for part in parts {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finish().as_ref().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A response of the layer itself, as a problem document (RFC 9457).
struct Refusal {
    status: StatusCode,
    title: &'static str,
    detail: &'static str,
}

impl Refusal {
    const MISSING_KEY: Refusal = Refusal {
        status: StatusCode::BAD_REQUEST,
        title: "the header Idempotency-Key is missing",
        detail: "Send a key that is the same in every attempt of this operation. Nothing has changed.",
    };
    const BAD_KEY: Refusal = Refusal {
        status: StatusCode::BAD_REQUEST,
        title: "the header Idempotency-Key is malformed",
        detail: "A key has 1 to 255 visible ASCII characters. Nothing has changed.",
    };
    const BROKEN_BODY: Refusal = Refusal {
        status: StatusCode::BAD_REQUEST,
        title: "the request's body broke off",
        detail: "Send the request again with the same key. Nothing has changed.",
    };
    const TOO_LONG: Refusal = Refusal {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        title: "the request's body is too long",
        detail: "Nothing has changed.",
    };
    const UNDER_WAY: Refusal = Refusal {
        status: StatusCode::CONFLICT,
        title: "a request with this key is under way",
        detail: "Send it again with the same key later, to get its response.",
    };
    const OTHER_REQUEST: Refusal = Refusal {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        title: "this key was used for another request",
        detail: "Use another key for another method, path or body. Nothing has changed.",
    };
    const UNAVAILABLE: Refusal = Refusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        title: "the record of this key cannot be reached",
        detail: "Send the request again with the same key later. This attempt has not reached the service.",
    };
    const NOT_KEPT: Refusal = Refusal {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        title: "the request was performed, but its response could not be kept",
        detail: "Find out whether the operation has happened before you send it again: it may be performed a second time.",
    };
    const NOT_REPLAYED: Refusal = Refusal {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        title: "the request was performed, and its response is too long to be kept",
        detail: "Do not send it again. Fetch the result in another way.",
    };
    const FAILED: Refusal = Refusal {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        title: "the service failed",
        detail: "Send the request again with the same key.",
    };
    const PANICKED: Refusal = Refusal::FAILED;

    fn response(&self) -> Response<Full<Bytes>> {
        let problem = serde_json::json!({
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = Response::new(Full::new(Bytes::from(problem.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE].contains(&self.status) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
