//! Sessions: opened, kept alive, closed.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use palisade_core::{Label, Refusal};

use super::App;
use super::input::{Json, SessionInPath};
use super::problem::Problem;
use super::shapes::{KeepAlive, Kept, KeptAlive, OpenSession, Session};
use crate::resp::Request;
use crate::service::Asker;

/// Opens a session.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions", request_body = OpenSession,
    responses((status = 201, body = Session), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn open(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(OpenSession { ttl_ms, label }): Json<OpenSession>,
) -> Result<(StatusCode, Answer<Session>), Problem> {
    let label = label.as_deref().map(Label::new);
    match app.ask(asker, Request::OpenSession { ttl: ttl_ms, label }).await? {
        palisade_core::Answer::Opened { session } => Ok((StatusCode::CREATED, Answer(Session { session, ttl_ms }))),
        other => unreachable!("an open is not answered with {other:?}"),
    }
}

/// Keeps a session alive for its TTL from now on.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/keepalive", tag = "sessions", params(("id" = u64, Path, description = "The session.")),
    responses((status = 200, body = Session), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn keep_alive(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    SessionInPath(session): SessionInPath,
) -> Result<Answer<Session>, Problem> {
    match app.answered(app.far.keep_alive(asker, vec![session])).await??[..] {
        [Some(ttl_ms)] => Ok(Answer(Session { session, ttl_ms })),
        _ => Err(Refusal::NoSuchSession { session }.into()),
    }
}

/// Keeps several sessions alive at once.
#[utoipa::path(
    post, path = "/v1/sessions/keepalive", tag = "sessions", request_body = KeepAlive,
    responses((status = 200, body = KeptAlive), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn keep_all_alive(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(KeepAlive { sessions }): Json<KeepAlive>,
) -> Result<Answer<KeptAlive>, Problem> {
    let kept = app.answered(app.far.keep_alive(asker, sessions.clone())).await??;
    let sessions = sessions.into_iter().zip(kept).map(|(session, ttl_ms)| Kept { session, ttl_ms }).collect();
    Ok(Answer(KeptAlive { sessions }))
}

/// Closes a session: its locks are free, its waits are over.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = u64, Path, description = "The session.")),
    responses((status = 204), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn close(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    SessionInPath(session): SessionInPath,
) -> Result<StatusCode, Problem> {
    app.ask(asker, Request::CloseSession { session }).await?;
    Ok(StatusCode::NO_CONTENT)
}
