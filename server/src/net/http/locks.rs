//! Locks: acquire, release, cancel, show, force-release, resize.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use palisade_core::{Label, Want};

use super::App;
use super::client::Client;
use super::input::{Json, Params};
use super::problem::Problem;
use super::shapes::{
    Acquire, Break, Broken, Cancel, Cancelled, Granted, Locks, Page, RaiseTokens, Release, Resize, Shown,
    TokensRaised, holder,
};
use crate::node::{RequestContext, Response};
use crate::page::lock::Lock;
use crate::request::{AcquireRequest, Query, Request};

/// Acquires locks, all or none, and waits for them up to `wait_ms`. A client that closes its connection
/// while it waits leaves nothing queued or held.
pub(super) async fn acquire(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Extension(client): Extension<Arc<Client>>,
    Json(body): Json<Acquire>,
) -> Result<Answer<Granted>, Problem> {
    let holder = holder(body.session, body.ttl_ms, body.request)?;
    let mode = body.mode.into();
    let request = AcquireRequest {
        wants: body.locks.iter().map(|lock| Want { lock: lock.clone(), mode }).collect(),
        holder,
        wait_ms: body.wait_ms,
        delay: body.delay_ms,
        number: body.request,
        is_async: false,
        value: None,
        secret: None,
        renews: false,
    };
    app.acquire(context, &client, request).await.map(Answer)
}

/// Releases a grant, of one lock or of several.
pub(super) async fn release(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(Release { lock, token, session, request }): Json<Release>,
) -> Result<StatusCode, Problem> {
    if request.is_some() && session.is_none() {
        return Err(Problem::bad("request: a number needs a session in which a repeat can be known"));
    }
    app.request(context, Request::Release { lock, token, session, number: request }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends the wait of a numbered request, or keeps it from beginning.
pub(super) async fn cancel(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(Cancel { session, request }): Json<Cancel>,
) -> Result<Answer<Cancelled>, Problem> {
    match app.request(context, Request::Cancel { session, number: request }).await? {
        Response::Cancelled { granted } => Ok(Answer(Cancelled { granted })),
        other => unreachable!("a cancel is not answered with {other:?}"),
    }
}

/// Lists the locks in use.
pub(super) async fn list(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Params(Page { prefix, cursor, count }): Params<Page>,
) -> Result<Answer<Locks>, Problem> {
    let query = Query::Locks { prefix, cursor, count: count.unwrap_or(100) };
    match app.request(context, Request::Query(query)).await? {
        Response::Locks { cursor, locks } => Ok(Answer(Locks::new(cursor, locks))),
        other => unreachable!("a list is not answered with {other:?}"),
    }
}

/// Shows one lock, in use or not.
pub(super) async fn show(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Params(Shown { name, cursor, count }): Params<Shown>,
) -> Result<Answer<Lock>, Problem> {
    let query = Query::Lock { lock: name.clone(), cursor, count: count.unwrap_or(1000) };
    match app.request(context, Request::Query(query)).await? {
        Response::Lock(Some(report)) => Ok(Answer((*report).into())),
        Response::Lock(None) => Ok(Answer(Lock::unused(&name))),
        other => unreachable!("a query of a lock is not answered with {other:?}"),
    }
}

/// Force-releases a lock. The audit log records it, and it uses up a token.
pub(super) async fn take_away(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(Break { lock, token, reason, by }): Json<Break>,
) -> Result<Answer<Broken>, Problem> {
    let by = by.as_deref().map(Label::new);
    match app.request(context, Request::Break { lock, only: token, by, reason: Label::new(&reason) }).await? {
        Response::Broken { grants, moved_to } => Ok(Answer(Broken { grants, moved_to })),
        other => unreachable!("a force-release is not answered with {other:?}"),
    }
}

/// Raises the tokens: every lock that is granted from now on has a token above this one. Recorded.
pub(super) async fn raise_tokens(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(RaiseTokens { above }): Json<RaiseTokens>,
) -> Result<Answer<TokensRaised>, Problem> {
    match app.request(context, Request::RaiseTokens { above }).await? {
        Response::TokensRaised(raised) => Ok(Answer(TokensRaised { raised })),
        other => unreachable!("raising tokens is not answered with {other:?}"),
    }
}

/// Gives a semaphore in use another number of permits.
pub(super) async fn resize(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(Resize { lock, permits }): Json<Resize>,
) -> Result<StatusCode, Problem> {
    app.request(context, Request::Resize { lock, permits }).await?;
    Ok(StatusCode::NO_CONTENT)
}
