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

/// Fences a service: each request carries a token, and an overtaken token is refused. For axum, hyper, tonic, and any
/// other tower service.
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
/// Writes to one resource run one at a time. Each runs to completion even if its client disconnects, and a seal waits
/// for it. Reads do not wait. A read is refused if a newer token seals the resource before the answer.
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
    /// The last write of each resource whose outcome is unknown, and when this fence first saw it.
    unknown_outcomes: Mutex<HashMap<LockName, (Mark, Instant)>>,
    /// The number of running writes.
    writes: watch::Sender<usize>,
}

/// Limits on bodies and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest body of a write, in bytes. The fence reads all of it before it checks the write.
    pub request_bytes: usize,
    /// How long the body of a write may take to arrive.
    pub request_time: Duration,
    /// The longest stored body of an answer, in bytes. A longer body is passed on and not stored, so that a repeat of
    /// the write gets the status and the headers only.
    pub answer_bytes: usize,
    /// How long a resource refuses every seal after a write with an unknown outcome, which may still be running. It
    /// must be as long as a write can run behind the layer; zero, if writes end with the layer's process.
    pub quarantine: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_bytes: 1 << 20,
            request_time: Duration::from_secs(30),
            answer_bytes: 64 << 10,
            quarantine: Duration::ZERO,
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
            unknown_outcomes: Mutex::default(),
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
        let (unknown_outcomes, writes) = (Mutex::default(), watch::Sender::new(0));
        FenceLayer {
            fence: Arc::new(Fence { scope, marks, limits, signatures: Some(signatures), unknown_outcomes, writes }),
        }
    }

    /// Waits until no write is running. If the process ends earlier, the outcome of running writes is unknown.
    pub async fn drain(&self) {
        // It fails only without a sender, which `self` has.
        let _ = self.fence.writes.subscribe().wait_for(|writes| *writes == 0).await;
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("scope", &self.scope).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Fence {
    /// Counts a write as running until the guard is dropped.
    pub(super) fn begin_write(self: &Arc<Fence>) -> RunningWrite {
        self.writes.send_modify(|writes| *writes += 1);
        RunningWrite(self.clone())
    }

    /// Returns the rest of a resource's quarantine after this write, whose outcome is unknown; `None` once it is over.
    /// The time counts from the first call for this write: a quarantine after an earlier write does not count, since
    /// another instance may have ended it.
    pub(super) fn quarantine_left(&self, resource: &LockName, write: Mark) -> Option<Duration> {
        let mut unknown_outcomes = self.unknown_outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let (known_write, since) =
            unknown_outcomes.entry(resource.clone()).or_insert_with(|| (write, Instant::now()));
        if *known_write != write {
            (*known_write, *since) = (write, Instant::now());
        }
        self.limits.quarantine.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Ends a resource's quarantine: a newer token has sealed it.
    pub(super) fn end_quarantine(&self, resource: &LockName) {
        self.unknown_outcomes.lock().unwrap_or_else(PoisonError::into_inner).remove(resource);
    }
}

/// A running write.
pub(super) struct RunningWrite(Arc<Fence>);

impl Drop for RunningWrite {
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

/// A service behind a [`FenceLayer`]. If the service fails, the fence answers.
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

/// A function that calls the service once.
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
