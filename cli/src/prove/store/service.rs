//! The HTTP service of the experiment: what is PUT is there for GET, in three ways that lead to the same. `/none` leads
//! straight there, `/ratchet` past a ratchet, `/strict` past the fence's layer.

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

/// For a service of the user.
const PATIENCE: Duration = Duration::from_secs(30);
/// Numbers are short.
const LONGEST: usize = 1 << 10;

/// Begins to serve, as long as this process lives, and says where: numbers of its own, or those of the service behind.
pub(in crate::prove) async fn start(behind: Option<&str>) -> Result<String, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let at = listener.local_addr()?;
    match behind {
        None => {
            tokio::spawn(serve(listener, Front::before(Numbers::default())));
            Ok(format!("http://{at}"))
        }
        Some(url) => {
            let forward = Forward::to(url, PATIENCE, LONGEST).map_err(|error| Failure::Misuse(error.to_string()))?;
            tokio::spawn(serve(listener, Front::before(forward)));
            Ok(format!("http://{at}#{url}"))
        }
    }
}

/// The three ways.
#[derive(Clone)]
struct Front<S> {
    open: Fenced<S>,
    fenced: Fenced<S>,
    /// The highest token that each path has seen. A write has it for itself until it is done.
    seen: Arc<tokio::sync::Mutex<HashMap<String, u64>>>,
}

impl<S: Clone> Front<S> {
    fn before(service: S) -> Front<S> {
        let open = FenceLayer::new(Scope::per_path().except(|_| true), MemoryMarks::default());
        // The marks end with the numbers.
        let fence = FenceLayer::new(Scope::per_path(), MemoryMarks::default());
        Front { open: open.layer(service.clone()), fenced: fence.layer(service), seen: Arc::default() }
    }
}

impl<S> Front<S>
where
    Fenced<S>: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone,
{
    async fn answer(
        mut self,
        mut request: Request<Incoming>,
    ) -> Result<Response<Either<Body, Empty<Bytes>>>, Infallible> {
        let Some((way, path)) = split(request.uri()) else { return Ok(empty(StatusCode::NOT_FOUND)) };
        let name = path.to_string();
        *request.uri_mut() = path.into();
        let answer = match way.as_str() {
            "none" => self.open.call(request).await,
            "strict" => self.fenced.call(request).await,
            "ratchet" => {
                let shown = request.headers().get(FENCING_TOKEN).and_then(|value| value.to_str().ok()?.parse().ok());
                let Some(token) = shown else { return Ok(empty(StatusCode::PRECONDITION_REQUIRED)) };
                let mut seen = self.seen.lock().await;
                let highest = seen.entry(name).or_default();
                if *highest > token {
                    return Ok(empty(StatusCode::PRECONDITION_FAILED));
                }
                *highest = token;
                self.open.call(request).await
            }
            _ => return Ok(empty(StatusCode::NOT_FOUND)),
        };
        answer.map(|response| response.map(Either::Left))
    }
}

/// `none` and `/name` of `/none/name`.
fn split(uri: &Uri) -> Option<(String, PathAndQuery)> {
    let (way, name) = uri.path().strip_prefix('/')?.split_once('/')?;
    Some((way.to_owned(), format!("/{name}").parse().ok()?))
}

fn empty(status: StatusCode) -> Response<Either<Body, Empty<Bytes>>> {
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = status;
    response
}

async fn serve<S>(listener: TcpListener, front: Front<S>)
where
    Front<S>: Clone + Send + Sync + 'static,
    Fenced<S>: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send,
{
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(converse(stream, front.clone()))),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn converse<S>(stream: TcpStream, front: Front<S>)
where
    Front<S>: Clone + Send + Sync,
    Fenced<S>: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send,
{
    // It only costs time if it cannot be set.
    drop(stream.set_nodelay(true));
    let answer = service_fn(|request| front.clone().answer(request));
    // A writer that goes away needs no answer.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

/// What was PUT, under its path.
#[derive(Clone, Default)]
struct Numbers(Arc<Mutex<HashMap<String, Bytes>>>);

impl Numbers {
    async fn answer(self, request: Request<Body>) -> Result<Response<Full<Bytes>>, BoxError> {
        let (parts, body) = request.into_parts();
        let (path, body) = (parts.uri.path().to_owned(), body.collect().await?.to_bytes());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match parts.method {
            Method::GET => kept.get(&path).cloned(),
            Method::PUT => {
                kept.insert(path, body);
                Some(Bytes::new())
            }
            Method::DELETE => kept.remove(&path),
            _ => None,
        };
        let mut response = Response::new(Full::new(found.clone().unwrap_or_default()));
        *response.status_mut() = found.map_or(StatusCode::NOT_FOUND, |_| StatusCode::OK);
        Ok(response)
    }
}

impl Service<Request<Body>> for Numbers {
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
