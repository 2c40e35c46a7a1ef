//! The layer, and the service that it makes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::http::{Request, Response};
use bytes::Bytes;
use http_body::Body as HttpBody;
use palisade_core::LockName;
use tokio::sync::watch;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{Body, BoxError};
use super::marks::Marks;
use super::scope::Scope;
#[cfg(feature = "signed")]
use super::signatures::Signatures;
use crate::Mark;

/// Fences a service: each request carries a token, and one that was overtaken is refused. For axum, hyper, tonic, and
/// whatever else is a tower service.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use palisade_fence::http::{FenceLayer, Scope, SqliteMarks};
/// # fn example() -> Result<Router, Box<dyn std::error::Error>> {
/// let marks = SqliteMarks::open("/var/lib/orders/marks.db")?;
/// let fence = FenceLayer::new(Scope::one("orders")?, marks);
/// let app = Router::new().route("/orders", get(list).post(add)).layer(fence);
/// # Ok(app) }
/// # async fn list() {}
/// # async fn add() {}
/// ```
///
/// Writes to one resource are carried out one after the other, each to its end even if its client disconnects; a seal waits
/// for the running write. Reads do not wait, and are refused if a newer seal came before their answer.
#[derive(Clone, Debug)]
pub struct FenceLayer {
    fence: Arc<Fence>,
}

/// The state that the layer and its services share.
pub(super) struct Fence {
    pub(super) scope: Scope,
    pub(super) marks: Arc<dyn Marks>,
    pub(super) limits: Limits,
    #[cfg(feature = "signed")]
    pub(super) signatures: Option<Signatures>,
    /// Writes with an unknown outcome, and when this was first seen.
    doubts: Mutex<HashMap<LockName, (Mark, Instant)>>,
    /// How many writes are under way.
    writes: watch::Sender<usize>,
}

/// Limits on bodies and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest body of a write, in bytes. It is read to its end before anything is decided.
    pub request_bytes: usize,
    /// How long it may take to arrive.
    pub request_time: Duration,
    /// The longest answer to a write whose body is kept, in bytes. The body of a longer one is passed on, but a repeat
    /// of the write gets its status and its headers only.
    pub answer_bytes: usize,
    /// How long a resource stays shut after a write with an unknown outcome. It must be as long as such a write can go on
    /// behind the layer: zero, if the write ends with the layer's process.
    pub shut_time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_bytes: 1 << 20,
            request_time: Duration::from_secs(30),
            answer_bytes: 64 << 10,
            shut_time: Duration::ZERO,
        }
    }
}

impl FenceLayer {
    /// Returns a fence with marks in this store.
    pub fn new(scope: Scope, marks: impl Marks) -> FenceLayer {
        FenceLayer::with_limits(scope, marks, Limits::default())
    }

    /// Returns a fence with other limits.
    pub fn with_limits(scope: Scope, marks: impl Marks, limits: Limits) -> FenceLayer {
        let fence = Fence {
            scope,
            marks: Arc::new(marks),
            limits,
            #[cfg(feature = "signed")]
            signatures: None,
            doubts: Mutex::default(),
            writes: watch::Sender::new(0),
        };
        FenceLayer { fence: Arc::new(fence) }
    }

    /// Requires signed tokens. Call it before the layer is used.
    #[cfg(feature = "signed")]
    #[must_use]
    pub fn signed(self, signatures: Signatures) -> FenceLayer {
        let Fence { scope, marks, limits, .. } = &*self.fence;
        let (scope, marks, limits) = (scope.clone(), marks.clone(), *limits);
        let (doubts, writes) = (Mutex::default(), watch::Sender::new(0));
        FenceLayer { fence: Arc::new(Fence { scope, marks, limits, signatures: Some(signatures), doubts, writes }) }
    }

    /// Waits until no write is running. A process that ends before leaves writes with an unknown outcome.
    pub async fn idle(&self) {
        // The sender is here, so it cannot be gone.
        let _ = self.fence.writes.subscribe().wait_for(|writes| *writes == 0).await;
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("scope", &self.scope).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Fence {
    /// A write is under way until this is dropped.
    pub(super) fn write_begins(self: &Arc<Fence>) -> Writing {
        self.writes.send_modify(|writes| *writes += 1);
        Writing(self.clone())
    }

    /// Returns for how long a resource stays shut because it is unknown whether its last write, this one, was carried out.
    /// The time counts from the first call for this write: another instance may have ended the doubt about an earlier one.
    pub(super) fn shut_for(&self, resource: &LockName, write: Mark) -> Option<Duration> {
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        let (doubted, since) = doubts.entry(resource.clone()).or_insert_with(|| (write, Instant::now()));
        if *doubted != write {
            (*doubted, *since) = (write, Instant::now());
        }
        self.limits.shut_time.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// A newer seal has ended the doubt.
    pub(super) fn doubt_ends(&self, resource: &LockName) {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner).remove(resource);
    }
}

/// A write that is under way.
pub(super) struct Writing(Arc<Fence>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writes.send_modify(|writes| *writes -= 1);
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { inner, fence: self.fence.clone() }
    }
}

/// A service behind a [`FenceLayer`]. It answers everything, also where the service itself fails.
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    fence: Arc<Fence>,
}

impl<S, B, R> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    R: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The service's readiness is polled when the request reaches it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, fence) = (self.inner.clone(), self.fence.clone());
        let call: CallService = Box::new(move |request| Box::pin(call_service(inner, request)));
        let request = request.map(Body::new);
        Box::pin(async move { Ok(fence.pass(call, request).await) })
    }
}

/// Calls the service, once.
pub(super) type CallService = Box<dyn FnOnce(Request<Body>) -> ServiceFuture + Send>;

/// The future of the service's response.
type ServiceFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

async fn call_service<S, R>(mut inner: S, request: Request<Body>) -> Result<Response<Body>, BoxError>
where
    S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>>,
    R: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
    Ok(inner.call(request).await.map_err(Into::into)?.map(Body::new))
}
