//! A service behind a fence, and a client that writes the headers itself.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use palisade_fence::http::{
    Body, BoxError, FENCING_TOKEN, FENCING_VERDICT, FenceLayer, Fenced, Limits, Marks, NotSent, Scope,
};
use tokio::sync::{Semaphore, watch};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

/// The service's behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    Answers,
    Fails,
    Panics,
    BreaksOff,
    CannotBeReached,
}

/// The service behind the fence: its behavior, and the requests that it has got.
#[derive(Clone)]
pub(crate) struct Backend {
    /// The bodies of writes, in the order in which they were carried out.
    pub(crate) written: Arc<Mutex<Vec<String>>>,
    pub(crate) behavior: Arc<Mutex<Behavior>>,
    /// A request needs one of these to go on.
    pub(crate) permits: Arc<Semaphore>,
    /// How many requests have arrived.
    pub(crate) arrived: watch::Sender<usize>,
}

type Inner = BoxCloneSyncService<Request<Body>, Response<Breaking>, Failed>;

/// A fence with a service behind it.
#[derive(Clone)]
pub(crate) struct Fixture {
    fenced: Fenced<Inner>,
    pub(crate) layer: FenceLayer,
    pub(crate) backend: Backend,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) verdict: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Fixture {
    pub(crate) fn new(scope: Scope, marks: impl Marks, limits: Limits) -> Fixture {
        Fixture::of(scope, marks, limits, |layer| layer)
    }

    /// Returns a fixture with a changed layer.
    pub(crate) fn of(
        scope: Scope,
        marks: impl Marks,
        limits: Limits,
        more: impl FnOnce(FenceLayer) -> FenceLayer,
    ) -> Fixture {
        let backend = Backend {
            written: Arc::default(),
            behavior: Arc::new(Mutex::new(Behavior::Answers)),
            permits: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            arrived: watch::Sender::new(0),
        };
        let layer = more(FenceLayer::with_limits(scope, marks, limits));
        let (service_backend, inner) = (backend.clone(), layer.clone());
        let service = service_fn(move |request| service_backend.clone().answer(request));
        Fixture { fenced: inner.layer(BoxCloneSyncService::new(service)), layer, backend }
    }

    /// Sends a request with this header, or none.
    pub(crate) async fn send(&self, method: Method, path: &str, header: &str, body: &str) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if !header.is_empty() {
            request = request.header(FENCING_TOKEN, header);
        }
        let request = request.body(http_body_util::Full::new(Bytes::from(body.to_owned()))).expect("a request");
        self.pass(request).await
    }

    pub(crate) async fn pass<B>(&self, request: Request<B>) -> Reply
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let response = self.fenced.clone().oneshot(request).await.expect("it answers everything");
        let (parts, body) = response.into_parts();
        let verdict = parts.headers.get(FENCING_VERDICT).map(|value| value.to_str().expect("ASCII").to_owned());
        let body = body.collect().await.expect("a body").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("UTF-8");
        Reply { status: parts.status, verdict: verdict.unwrap_or_default(), headers: parts.headers, body }
    }

    pub(crate) async fn seal(&self, token: u64) -> Reply {
        self.send(Method::POST, "/orders", &format!("{token}; seal"), "").await
    }

    pub(crate) async fn write(&self, token: u64, seq: u64, body: &str) -> Reply {
        self.send(Method::PUT, "/orders", &format!("{token}; seq={seq}"), body).await
    }

    pub(crate) async fn settle(&self, token: u64, seq: u64) -> Reply {
        self.send(Method::POST, "/orders", &format!("{token}; seq={seq}; settle"), "").await
    }

    pub(crate) async fn read(&self, token: u64) -> Reply {
        self.send(Method::GET, "/orders", &token.to_string(), "").await
    }

    pub(crate) fn written(&self) -> Vec<String> {
        self.backend.written.lock().expect("not poisoned").clone()
    }

    pub(crate) fn behavior(&self, behavior: Behavior) {
        *self.backend.behavior.lock().expect("not poisoned") = behavior;
    }

    /// Makes each request wait for a permit from now on.
    pub(crate) fn hold(&self) {
        self.backend.permits.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(crate) async fn until_arrived(&self, count: usize) {
        self.backend.arrived.subscribe().wait_for(|arrived| *arrived >= count).await.expect("it is there");
    }
}

/// How the service fails without an answer.
pub(crate) enum Failed {
    OutOfOrder,
    NotSent,
}

impl From<Failed> for BoxError {
    fn from(failed: Failed) -> BoxError {
        match failed {
            Failed::OutOfOrder => "out of order".into(),
            Failed::NotSent => NotSent::new("connection refused").into(),
        }
    }
}

impl Backend {
    async fn answer(self, request: Request<Body>) -> Result<Response<Breaking>, Failed> {
        if *self.behavior.lock().expect("not poisoned") == Behavior::CannotBeReached {
            return Err(Failed::NotSent);
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Failed::OutOfOrder)?.to_bytes();
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.permits.acquire().await.expect("it is open").forget();
        let body = String::from_utf8(body.to_vec()).expect("UTF-8");
        let (text, behavior) = {
            let mut written = self.written.lock().expect("not poisoned");
            if ![Method::GET, Method::HEAD, Method::OPTIONS].contains(&parts.method) {
                written.push(body.clone());
            }
            (written.join(","), *self.behavior.lock().expect("not poisoned"))
        };
        if behavior == Behavior::Fails {
            return Err(Failed::OutOfOrder);
        }
        assert!(behavior != Behavior::Panics, "the test asked for a panic");
        let echo = if let Some(length) = body.strip_prefix("long ") {
            "x".repeat(length.parse().expect("a length"))
        } else {
            text
        };
        let status = if body == "bad" { 422 } else { 200 };
        let response = Response::builder().status(status).header("content-type", "text/plain");
        let response = response.header("set-cookie", "secret").header(FENCING_VERDICT, "sealed; token=99; seq=0");
        Ok(response
            .body(Breaking { text: Some(echo.into()), breaks: behavior == Behavior::BreaksOff })
            .expect("a response"))
    }
}

/// A body that may break off.
pub(crate) struct Breaking {
    text: Option<Bytes>,
    breaks: bool,
}

impl http_body::Body for Breaking {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, io::Error>>> {
        let text = self.text.take().map(|text| Ok(http_body::Frame::data(text)));
        Poll::Ready(text.or_else(|| std::mem::take(&mut self.breaks).then(|| Err(io::Error::other("it broke off")))))
    }
}
