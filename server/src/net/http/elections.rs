//! Elections: campaign, publish a value, observe the leader.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use palisade_core::{Mode, Value, Want};
use smallvec::SmallVec;

use super::App;
use super::client::Client;
use super::input::{Json, Params};
use super::problem::Problem;
use super::shapes::{Campaign, Election, Granted, Named, Publish, holder};
use crate::node::{RequestContext, Response};
use crate::request::{AcquireRequest, Query, Request};

/// Campaigns in an election, and waits up to `wait_ms` to become the leader. Release the lock to resign.
pub(super) async fn campaign(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Extension(client): Extension<Arc<Client>>,
    Json(body): Json<Campaign>,
) -> Result<Answer<Granted>, Problem> {
    let request = AcquireRequest {
        holder: holder(body.session, body.ttl_ms, body.request)?,
        wants: SmallVec::from([Want { lock: body.name, mode: Mode::Exclusive }]),
        wait_ms: body.wait_ms,
        delay: None,
        number: body.request,
        is_async: false,
        value: Some(Value::new(body.value.as_bytes())),
        secret: None,
        renews: false,
    };
    app.acquire(context, &client, request).await.map(Answer)
}

/// Replaces the value that a leader publishes.
pub(super) async fn publish(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(Publish { name, session, token, value }): Json<Publish>,
) -> Result<StatusCode, Problem> {
    let value = Value::new(value.as_bytes());
    app.request(context, Request::Publish { session, lock: name, token, value }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the leader.
pub(super) async fn leader(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Params(Named { name }): Params<Named>,
) -> Result<Answer<Election>, Problem> {
    match app.request(context, Request::Query(Query::Leader { lock: name })).await? {
        Response::Leader(leader) => Ok(Answer(Election { leader: leader.map(Into::into) })),
        other => unreachable!("a query of a leader is not answered with {other:?}"),
    }
}
