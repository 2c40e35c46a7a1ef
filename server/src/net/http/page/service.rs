//! The page of a service: its readers are the service's users.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json as Answer, Router};
use palisade_core::Label;
use serde::Deserialize;

use super::super::client::{Authenticator, Client};
use super::super::input::{Json, Params};
use super::super::problem::Problem;
use super::super::shapes::Named;
use super::super::traffic::RequestPermit;
use super::super::{App, host};
use super::login::{Login, Logins};
use super::source::NodeSource;
use super::{Me, TakeAway, check_origin, guarded, static_files};
use crate::access::Verb;
use crate::net::handle::ServiceHandle;
use crate::node::{Principal, RequestContext, Response as NodeResponse};
use crate::page::{Board, Broken, Details, Lock, Reader, details, stream};
use crate::peers::LeaderDialer;
use crate::request::{Query, Request as NodeRequest};

/// What the handlers of the page share.
#[derive(Clone)]
pub(in super::super) struct PageState {
    pub(in super::super) board: Arc<Board>,
    logins: Arc<Logins>,
    authenticator: Authenticator,
    /// The port of RESP, for commands that the page shows.
    resp_port: u16,
    has_tls: bool,
}

/// Returns the state of the page. The caller runs the board.
pub(in super::super) fn begin(
    service: ServiceHandle,
    authenticator: Authenticator,
    has_tls: bool,
    resp_port: u16,
) -> PageState {
    let board = Board::new(Arc::new(NodeSource(service)));
    PageState { board, logins: Arc::new(Logins::new(!has_tls)), authenticator, resp_port, has_tls }
}

/// The files, which anybody may have.
pub(in super::super) fn files() -> Router<App> {
    Router::new().route("/", get(static_files::index)).route("/page/{file}", get(static_files::asset))
}

/// Requests that are answered at once.
pub(in super::super) fn at_once() -> Router<App> {
    Router::new()
        .route("/page/me", get(me))
        .route("/page/lock", get(show))
        .route("/page/login", post(log_in))
        .route("/page/logout", post(log_out))
        .route("/page/break", post(take_away))
}

/// Streams, which last until the page is closed.
pub(in super::super) fn streams() -> Router<App> {
    Router::new().route("/page/stream", get(follow))
}

/// Finds out who reads the page: the user of the cookie, or of the certificate.
pub(in super::super) async fn identify(State(page): State<PageState>, mut request: Request, next: Next) -> Response {
    match page.principal(&request) {
        Ok((context, login)) => {
            request.extensions_mut().insert(context);
            request.extensions_mut().insert(login);
            request.extensions_mut().insert(page);
            guarded(next.run(request).await)
        }
        Err(problem) => guarded(problem),
    }
}

impl PageState {
    fn principal(&self, request: &Request) -> Result<(RequestContext, Option<Arc<Login>>), Problem> {
        if let Some(hosts) = &self.authenticator.hosts {
            host::check(hosts, request.uri(), request.headers())?;
        }
        if request.method() != axum::http::Method::GET {
            check_origin(request.uri(), request.headers())?;
        }
        let client = request.extensions().get::<Arc<Client>>().ok_or_else(Problem::no_auth)?;
        let Some(users) = &self.authenticator.users else { return Ok((client.context(Principal::Anyone), None)) };
        let login = self.logins.find(request.headers());
        let user = login.as_ref().map(|login| login.user.clone()).or_else(|| client.certified_user(users));
        let Some(user) = user else { return Ok((client.context(Principal::Unauthenticated), None)) };
        client.set_authenticated(Some(user.name()))?;
        Ok((client.context(Principal::User(user)), login))
    }
}

fn need_login(context: &RequestContext) -> Result<(), Problem> {
    match context.principal {
        Principal::Unauthenticated => Err(Problem::no_auth()),
        _ => Ok(()),
    }
}

async fn me(
    Extension(page): Extension<PageState>,
    Extension(context): Extension<RequestContext>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer<Me> {
    let named = uri.authority().map(|authority| authority.as_str().to_owned());
    let named = named.or_else(|| Some(headers.get(header::HOST)?.to_str().ok()?.to_owned())).unwrap_or_default();
    let host = named.rsplit_once(':').map_or(named.as_str(), |(host, _)| host);
    let place = format!("{host}:{}", page.resp_port);
    let scheme = if page.has_tls { "palisades" } else { "palisade" };
    let login = context.principal.user_name().map(|user| format!("{user}@")).unwrap_or_default();
    let (principal, user) = (&context.principal, context.principal.user_name().map(str::to_owned));
    let may_break = match principal {
        Principal::Anyone => true,
        Principal::Unauthenticated => false,
        Principal::User(user) => user.may_somewhere(Verb::Break),
    };
    Answer(Me {
        engine: "service".to_owned(),
        command: format!("palisade --url {scheme}://{login}{place}"),
        r#where: place,
        version: env!("CARGO_PKG_VERSION"),
        user,
        login: matches!(principal, Principal::Unauthenticated),
        may_break,
    })
}

/// A user of the service that reads the page.
struct UserReader {
    principal: Principal,
    login: Option<Arc<Login>>,
    dialer: Option<LeaderDialer>,
    _permit: RequestPermit,
}

impl Reader for UserReader {
    fn sees_all(&self) -> bool {
        self.principal.user().is_none_or(|user| user.may(Verb::Observe, ""))
    }

    fn sees(&self, lock: &str) -> bool {
        self.principal.sees(lock)
    }

    fn is_over(&self) -> bool {
        // The browser connects again, and gets the page of the node that leads.
        let leads_another = self.dialer.as_ref().is_some_and(|dialer| dialer.other_leader().is_some());
        leads_another || self.principal.is_revoked() || self.login.as_ref().is_some_and(|login| login.is_over())
    }
}

async fn follow(
    State(app): State<App>,
    Extension(page): Extension<PageState>,
    Extension(context): Extension<RequestContext>,
    Extension(login): Extension<Option<Arc<Login>>>,
    Extension(dialer): Extension<Option<LeaderDialer>>,
    Extension(permit): Extension<RequestPermit>,
) -> Result<impl IntoResponse, Problem> {
    need_login(&context)?;
    // The numbers are those of all locks, as in the metrics.
    ServiceHandle::may_report(&context)?;
    let reader = UserReader { principal: context.principal, login, dialer, _permit: permit };
    Ok(Sse::new(stream(&page.board, reader)).keep_alive(KeepAlive::new().interval(app.bounds.silence)))
}

async fn show(
    State(app): State<App>,
    Extension(page): Extension<PageState>,
    Extension(context): Extension<RequestContext>,
    Params(Named { name }): Params<Named>,
) -> Result<Answer<Details>, Problem> {
    need_login(&context)?;
    let query = Query::Lock { lock: name.clone(), cursor: 0, count: 1000 };
    match app.request(context, NodeRequest::Query(query)).await? {
        NodeResponse::Lock(report) => {
            let lock = report.map(|report| Lock::from(*report));
            Ok(Answer(details(&page.board, name.as_str(), lock)))
        }
        other => unreachable!("a query of a lock is not answered with {other:?}"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Credentials {
    user: String,
    secret: String,
}

async fn log_in(
    Extension(page): Extension<PageState>,
    Extension(client): Extension<Arc<Client>>,
    headers: HeaderMap,
    Json(Credentials { user, secret }): Json<Credentials>,
) -> Result<impl IntoResponse, Problem> {
    let Some(users) = &page.authenticator.users else {
        return Err(Problem::bad("no users are configured here; there is nothing to log in to"));
    };
    let user = client.log_in(users, user.as_bytes(), secret.as_bytes()).await?;
    page.logins.end(&headers);
    let cookie = page.logins.add(user).map_err(|error| Problem::bad(error.to_string()))?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]))
}

async fn log_out(Extension(page): Extension<PageState>, headers: HeaderMap) -> impl IntoResponse {
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, page.logins.end(&headers))])
}

async fn take_away(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(TakeAway { lock, token, reason }): Json<TakeAway>,
) -> Result<Answer<Broken>, Problem> {
    need_login(&context)?;
    let request = NodeRequest::Break { lock, only: token, by: None, reason: Label::new(&reason) };
    match app.request(context, request).await? {
        NodeResponse::Broken { grants, moved_to } => Ok(Answer(Broken { grants, moved_to: moved_to.get() })),
        other => unreachable!("a force-release is not answered with {other:?}"),
    }
}
