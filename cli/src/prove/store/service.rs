//! The HTTP service of the experiment: GET returns what was PUT. Three routes lead to the same numbers: `/none` directly,
//! `/ratchet` through a ratchet, `/strict` through the fence's layer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use palisade_fence::http::{Body, BoxError, FENCING_TOKEN, FenceLayer, Fenced, Forward, MemoryMarks, Scope};
use tokio::net::{TcpListener, TcpStream};
use tower_layer::Layer;
use tower_service::Service;

use crate::outcome::Failure;

/// How long the user's service may take to answer.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest body in bytes. A number has at most 20 digits.
const MAX_BODY: usize = 1 << 10;

/// Starts the service, in front of the user's service or of numbers in memory, and returns its URL. It runs until this
/// process ends.
pub(in crate::prove) async fn start(upstream: Option<&str>) -> Result<String, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    match upstream {
        None => {
            tokio::spawn(serve(listener, Routes::to(MemoryStore::default())));
            Ok(format!("http://{address}"))
        }
        Some(url) => {
            let forward =
                Forward::to(url, UPSTREAM_TIMEOUT, MAX_BODY).map_err(|error| Failure::Misuse(error.to_string()))?;
            tokio::spawn(serve(listener, Routes::to(forward)));
            Ok(format!("http://{address}#{url}"))
        }
    }
}

/// The three routes.
#[derive(Clone)]
struct Routes<S> {
    unfenced: Fenced<S>,
    fenced: Fenced<S>,
    /// The ratchet: the highest token of each path. A write holds the mutex until it is done.
    highest: Arc<tokio::sync::Mutex<HashMap<String, u64>>>,
}

impl<S: Clone> Routes<S> {
    fn to(service: S) -> Routes<S> {
        let unfenced = FenceLayer::new(Scope::per_path().except(|_| true), MemoryMarks::default());
        // The marks need not outlive this process, since the numbers do not.
        let fence = FenceLayer::new(Scope::per_path(), MemoryMarks::default());
        Routes { unfenced: unfenced.layer(service.clone()), fenced: fence.layer(service), highest: Arc::default() }
    }
}

impl<S> Routes<S>
where
    Fenced<S>: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone,
{
    async fn answer(
        mut self,
        mut request: Request<Incoming>,
    ) -> Result<Response<Either<Body, Empty<Bytes>>>, Infallible> {
        let Some((route, path)) = split(request.uri()) else { return Ok(empty(StatusCode::NOT_FOUND)) };
        let name = path.to_string();
        *request.uri_mut() = path.into();
        let answer = match route.as_str() {
            "none" => self.unfenced.call(request).await,
            "strict" => self.fenced.call(request).await,
            "ratchet" => {
                let token = request.headers().get(FENCING_TOKEN).and_then(|value| value.to_str().ok()?.parse().ok());
                let Some(token) = token else { return Ok(empty(StatusCode::PRECONDITION_REQUIRED)) };
                let mut tokens = self.highest.lock().await;
                let highest = tokens.entry(name).or_default();
                if *highest > token {
                    return Ok(empty(StatusCode::PRECONDITION_FAILED));
                }
                *highest = token;
                self.unfenced.call(request).await
            }
            _ => return Ok(empty(StatusCode::NOT_FOUND)),
        };
        answer.map(|response| response.map(Either::Left))
    }
}

/// Splits `/none/name` into `none` and `/name`.
fn split(uri: &Uri) -> Option<(String, PathAndQuery)> {
    let (route, name) = uri.path().strip_prefix('/')?.split_once('/')?;
    Some((route.to_owned(), format!("/{name}").parse().ok()?))
}

fn empty(status: StatusCode) -> Response<Either<Body, Empty<Bytes>>> {
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = status;
    response
}

async fn serve<S>(listener: TcpListener, routes: Routes<S>)
where
    Routes<S>: Clone + Send + Sync + 'static,
    Fenced<S>: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send,
{
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve_connection_to(stream, routes.clone()))),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve_connection_to<S>(stream: TcpStream, routes: Routes<S>)
where
    Routes<S>: Clone + Send + Sync,
    Fenced<S>: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send,
{
    // Without it replies are only slower.
    drop(stream.set_nodelay(true));
    let answer = service_fn(|request| routes.clone().answer(request));
    // A writer that has closed its connection needs no answer.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

/// The bodies that were PUT, by path.
#[derive(Clone, Default)]
struct MemoryStore(Arc<Mutex<HashMap<String, Bytes>>>);

impl MemoryStore {
    async fn answer(self, request: Request<Body>) -> Result<Response<Full<Bytes>>, BoxError> {
        let (parts, body) = request.into_parts();
        let (path, body) = (parts.uri.path().to_owned(), body.collect().await?.to_bytes());
        let mut bodies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match parts.method {
            Method::GET => bodies.get(&path).cloned(),
            Method::PUT => {
                bodies.insert(path, body);
                Some(Bytes::new())
            }
            Method::DELETE => bodies.remove(&path),
            _ => None,
        };
        let mut response = Response::new(Full::new(found.clone().unwrap_or_default()));
        *response.status_mut() = found.map_or(StatusCode::NOT_FOUND, |_| StatusCode::OK);
        Ok(response)
    }
}

impl Service<Request<Body>> for MemoryStore {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}
