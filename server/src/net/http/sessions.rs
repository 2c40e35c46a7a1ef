//! Sessions: open, keep alive, close.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use palisade_core::{Label, Refusal, SessionId, Ttl};

use super::App;
use super::input::{Json, SessionInPath};
use super::problem::Problem;
use super::shapes::{KeepAlive, Kept, KeptAlive, OpenSession, Session};
use crate::node::{RequestContext, Response};
use crate::request::Request;

/// Opens a session.
pub(super) async fn open(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(OpenSession { ttl_ms, label }): Json<OpenSession>,
) -> Result<(StatusCode, Answer<Session>), Problem> {
    let label = label.as_deref().map(Label::new);
    match app.request(context, Request::OpenSession { ttl: ttl_ms, label }).await? {
        Response::Opened { session, .. } => Ok((StatusCode::CREATED, Answer(Session { session, ttl_ms }))),
        other => unreachable!("an open is not answered with {other:?}"),
    }
}

/// Keeps a session alive for its TTL from now on.
pub(super) async fn keep_alive(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    SessionInPath(session): SessionInPath,
) -> Result<Answer<Session>, Problem> {
    match kept_alive(&app, context, vec![session]).await?[..] {
        [Some(ttl_ms)] => Ok(Answer(Session { session, ttl_ms })),
        _ => Err(Refusal::NoSuchSession { session }.into()),
    }
}

/// Keeps several sessions alive at once.
pub(super) async fn keep_all_alive(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(KeepAlive { sessions }): Json<KeepAlive>,
) -> Result<Answer<KeptAlive>, Problem> {
    let kept = kept_alive(&app, context, sessions.clone()).await?;
    let sessions = sessions.into_iter().zip(kept).map(|(session, ttl_ms)| Kept { session, ttl_ms }).collect();
    Ok(Answer(KeptAlive { sessions }))
}

/// Keeps sessions alive; `None` for one that has ended.
async fn kept_alive(
    app: &App,
    context: RequestContext,
    sessions: Vec<SessionId>,
) -> Result<Vec<Option<Ttl>>, Problem> {
    match app.request(context, Request::KeepAlive { sessions }).await? {
        Response::KeptAlive(kept) => Ok(kept),
        other => unreachable!("a keep-alive is not answered with {other:?}"),
    }
}

/// Closes a session: its locks are free, its waits are over.
pub(super) async fn close(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    SessionInPath(session): SessionInPath,
) -> Result<StatusCode, Problem> {
    app.request(context, Request::CloseSession { session }).await?;
    Ok(StatusCode::NO_CONTENT)
}
