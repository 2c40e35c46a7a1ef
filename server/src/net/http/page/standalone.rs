//! The page of any engine, for the one who has started it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json as Answer, Router};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tower::ServiceExt;

use super::super::input::{Json, Params};
use super::super::problem::Problem;
use super::super::shapes::Named;
use super::super::{Bounds, host, input};
use super::{Me, TakeAway, check_origin, cookie, guarded, static_files};
use crate::net::connection_limit::{ConnectionBounds, ConnectionLimit, ConnectionPermit, TooManyConnections};
use crate::page::{Board, Broken, Details, Reader, details, stream};

/// The limits on connections. Other users of this machine have no key. At their limit, a new connection displaces the oldest silent one,
/// however new that is: a browser sends its request at once.
const CONNECTIONS: ConnectionBounds = ConnectionBounds {
    total: 256,
    unauthenticated: 64,
    unauthenticated_per_address: 64,
    per_user: 192,
    grace: Duration::ZERO,
};
/// The user of all connections with the key, for their limit.
const OWNER: &str = "the owner of the page";
/// How often a page gets a comment while nothing happens.
const SILENCE: Duration = Duration::from_secs(15);
/// How long the head of a request may take, and how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(30);

/// What a page says about the engine that it shows, and who may read it.
#[derive(Debug, Clone)]
pub struct Standalone {
    /// The engine.
    pub engine: String,
    /// Where it is, without a password.
    pub place: String,
    /// The beginning of a command that shows the same locks, without a password.
    pub command: String,
    /// Whether locks can be taken away from the page.
    pub may_break: bool,
    /// The key that a browser presents once, as `/?key=`. Other users of this machine do not know it.
    pub key: String,
}

#[derive(Clone)]
struct Shown {
    board: Arc<Board>,
    about: Arc<Standalone>,
    /// Browsers send a cookie to all ports of a host, so its name has the port: two pages do not overwrite each other's.
    cookie: Arc<str>,
}

/// Serves the page until this is dropped. The caller runs the board.
///
/// # Errors
///
/// The socket fails.
pub async fn serve_page(listener: TcpListener, board: Arc<Board>, about: Standalone) -> io::Result<()> {
    let limit = ConnectionLimit::new(CONNECTIONS, false);
    let cookie = format!("palisade-page-{}", listener.local_addr()?.port());
    let router = router(Shown { board, about: Arc::new(about), cookie: cookie.into() });
    loop {
        let (stream, peer) = listener.accept().await?;
        let Some(permit) = limit.enter(peer.ip()).map(Arc::new) else { continue };
        let router = router.clone();
        tokio::spawn(async move {
            let service = service_fn(|mut request: hyper::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(permit.clone());
                router.clone().oneshot(request.map(axum::body::Body::new))
            });
            let mut protocol = http1::Builder::new();
            protocol.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(32 << 10);
            tokio::select! {
                () = permit.displaced() => {}
                served = protocol.serve_connection(TokioIo::new(stream), service) => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "a connection of the page ended badly");
                    }
                }
            }
        });
    }
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/page/me", get(me))
        .route("/page/stream", get(follow))
        .route("/page/lock", get(show))
        .route("/page/break", post(take_away))
        .route("/page/{file}", get(static_files::asset))
        .route("/", get(static_files::index))
        .fallback(async || Problem::no_such_path())
        .layer(from_fn_with_state(shown.clone(), admit))
        .with_state(shown)
}

/// Admits requests of browsers that have presented the key.
async fn admit(
    State(shown): State<Shown>,
    Extension(permit): Extension<Arc<ConnectionPermit>>,
    RawQuery(query): RawQuery,
    request: Request,
    next: Next,
) -> Response {
    if let Err(problem) = host::check(&[], request.uri(), request.headers()) {
        return guarded(problem);
    }
    let is_key = |given: &str| bool::from(given.as_bytes().ct_eq(shown.about.key.as_bytes()));
    let given = query.as_deref().and_then(|query| query.strip_prefix("key="));
    if request.uri().path() == "/" && given.is_some_and(is_key) {
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", shown.cookie, shown.about.key);
        return guarded((StatusCode::SEE_OTHER, [(header::LOCATION, "/".to_owned()), (header::SET_COOKIE, cookie)]));
    }
    if !cookie(request.headers(), &shown.cookie).is_some_and(is_key) {
        const WHY: &str = "open the address that `palisade page` has printed: it has a key that only you know";
        return match request.uri().path() {
            // A person has typed the address.
            "/" => guarded((StatusCode::FORBIDDEN, format!("Palisade: {WHY}.\n"))),
            _ => guarded(Problem::denied(WHY)),
        };
    }
    if let Err(TooManyConnections(most)) = permit.set_authenticated(Some(OWNER)) {
        return guarded(Problem::too_many_connections(most));
    }
    if request.method() != Method::GET
        && let Err(problem) = check_origin(request.uri(), request.headers())
    {
        return guarded(problem);
    }
    match input::read_body(request, &Bounds::default()).await {
        Ok(request) => guarded(next.run(request).await),
        Err(problem) => guarded(problem),
    }
}

async fn me(State(shown): State<Shown>) -> Answer<Me> {
    let about = &shown.about;
    Answer(Me {
        engine: about.engine.clone(),
        r#where: about.place.clone(),
        version: env!("CARGO_PKG_VERSION"),
        user: None,
        login: false,
        may_break: about.may_break,
        command: about.command.clone(),
    })
}

/// The one who has started the page, with the rights of the engine's client.
struct Owner;

impl Reader for Owner {
    fn sees_all(&self) -> bool {
        true
    }

    fn sees(&self, _: &str) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        false
    }
}

async fn follow(State(shown): State<Shown>) -> impl IntoResponse {
    Sse::new(stream(&shown.board, Owner)).keep_alive(KeepAlive::new().interval(SILENCE))
}

async fn show(State(shown): State<Shown>, Params(Named { name }): Params<Named>) -> Result<Answer<Details>, Problem> {
    let lock = shown.board.source().lock(name.clone()).await.map_err(Problem::engine_failed)?;
    Ok(Answer(details(&shown.board, name.as_str(), lock)))
}

async fn take_away(
    State(shown): State<Shown>,
    Json(TakeAway { lock, token, reason }): Json<TakeAway>,
) -> Result<Answer<Broken>, Problem> {
    if !shown.about.may_break {
        return Err(Problem::denied("this page only shows; start it with --allow-break"));
    }
    let broken = shown.board.source().take_away(lock, token, reason).await;
    broken.map(Answer).map_err(Problem::engine_failed)
}
