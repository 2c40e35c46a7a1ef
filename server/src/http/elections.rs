//! Elections: stood for, looked at, spoken from.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use palisade_core::{Mode, Value, Want};
use smallvec::SmallVec;

use super::App;
use super::input::{Json, Params};
use super::principal::Visitor;
use super::problem::Problem;
use super::shapes::{Campaign, Election, Granted, Named, Publish, by, shaped};
use crate::resp::{Holding, Reply, Request};
use crate::service::Asker;

/// Stands for election, and waits for the office as long as it is told to. Release it to resign.
#[utoipa::path(
    post, path = "/v1/elections/campaign", tag = "elections", request_body = Campaign,
    responses((status = 200, body = Granted), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn campaign(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Extension(visitor): Extension<Arc<Visitor>>,
    Json(ask): Json<Campaign>,
) -> Result<Answer<Granted>, Problem> {
    let holding = Holding {
        by: by(ask.session, ask.ttl_ms, ask.request)?,
        wants: SmallVec::from([Want { lock: ask.name, mode: Mode::Exclusive }]),
        wait_ms: ask.wait_ms,
        delay: None,
        number: ask.request,
        is_async: false,
        value: Some(Value::new(ask.value.as_bytes())),
    };
    app.acquire(asker, &visitor, holding).await.map(Answer)
}

/// Replaces what a leader publishes.
#[utoipa::path(
    post, path = "/v1/elections/publish", tag = "elections", request_body = Publish,
    responses((status = 204), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn publish(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(Publish { name, session, token, value }): Json<Publish>,
) -> Result<StatusCode, Problem> {
    let value = Value::new(value.as_bytes());
    app.ask(asker, Request::Publish { session, lock: name, token, value }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Says who leads.
#[utoipa::path(
    get, path = "/v1/elections/leader", tag = "elections", params(Named),
    responses((status = 200, body = Election), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn leader(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Params(Named { name }): Params<Named>,
) -> Result<Answer<Election>, Problem> {
    let leader = match app.look(asker, Request::Observe { lock: name }).await? {
        Reply::Nil => None,
        shown => Some(shaped(shown)),
    };
    Ok(Answer(Election { leader }))
}
