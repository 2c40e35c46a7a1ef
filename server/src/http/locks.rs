//! Locks: acquired, released, looked at, taken away.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as Answer};
use palisade_core::{Label, Refusal, Want};

use super::App;
use super::input::{Json, Params};
use super::principal::Visitor;
use super::problem::Problem;
use super::shapes::{
    Acquire, Break, Broken, Cancel, Cancelled, Granted, Lock, Locks, Page, RaiseTokens, Release, Resize, Shown,
    TokensRaised, by, shaped,
};
use crate::resp::{Holding, Reply, Request};
use crate::service::{Asker, Refused};

/// Acquires locks, all or none, and waits for them as long as it is told to. A client that closes its connection
/// meanwhile leaves nothing queued or held.
#[utoipa::path(
    post, path = "/v1/locks/acquire", tag = "locks", request_body = Acquire,
    responses((status = 200, body = Granted), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn acquire(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Extension(visitor): Extension<Arc<Visitor>>,
    Json(ask): Json<Acquire>,
) -> Result<Answer<Granted>, Problem> {
    let by = by(ask.session, ask.ttl_ms, ask.request)?;
    let mode = ask.mode.into();
    let holding = Holding {
        wants: ask.locks.iter().map(|lock| Want { lock: lock.clone(), mode }).collect(),
        by,
        wait_ms: ask.wait_ms,
        delay: ask.delay_ms,
        number: ask.request,
        is_async: false,
        value: None,
    };
    app.acquire(asker, &visitor, holding).await.map(Answer)
}

/// Releases a grant, of one lock or of several.
#[utoipa::path(
    post, path = "/v1/locks/release", tag = "locks", request_body = Release,
    responses((status = 204), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn release(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(Release { lock, token, session, request }): Json<Release>,
) -> Result<StatusCode, Problem> {
    if request.is_some() && session.is_none() {
        return Err(Problem::bad("request: a number needs a session in which a repeat can be known"));
    }
    app.ask(asker, Request::Release { lock, token, session, number: request }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends the wait of a numbered request, or keeps it from beginning.
#[utoipa::path(
    post, path = "/v1/locks/cancel", tag = "locks", request_body = Cancel,
    responses((status = 200, body = Cancelled), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn cancel(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(Cancel { session, request }): Json<Cancel>,
) -> Result<Answer<Cancelled>, Problem> {
    let cancel = Request::Cancel { session, number: request };
    match app.answered(app.far.ask(asker, cancel)).await? {
        Ok(_) | Err(Refused::Refusal(Refusal::NotWaiting)) => Ok(Answer(Cancelled { granted: None })),
        Err(Refused::Refusal(Refusal::AlreadyGranted { token })) => Ok(Answer(Cancelled { granted: Some(token) })),
        Err(refused) => Err(refused.into()),
    }
}

/// Lists the locks in use.
#[utoipa::path(
    get, path = "/v1/locks", tag = "locks", params(Page),
    responses((status = 200, body = Locks), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn list(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Params(Page { prefix, cursor, count }): Params<Page>,
) -> Result<Answer<Locks>, Problem> {
    let list = Request::List { prefix, cursor, count: count.unwrap_or(100) };
    Ok(Answer(shaped(app.look(asker, list).await?)))
}

/// Shows one lock, in use or not.
#[utoipa::path(
    get, path = "/v1/locks/show", tag = "locks", params(Shown),
    responses((status = 200, body = Lock), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn show(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Params(Shown { name, cursor, count }): Params<Shown>,
) -> Result<Answer<Lock>, Problem> {
    let show = Request::Show { lock: name.clone(), cursor, count: count.unwrap_or(1000) };
    Ok(Answer(match app.look(asker, show).await? {
        Reply::Nil => Lock::unused(&name),
        shown => shaped(shown),
    }))
}

/// Takes a lock away from whoever holds it. Recorded, and moves the token on.
#[utoipa::path(
    post, path = "/v1/locks/break", tag = "locks", request_body = Break,
    responses((status = 200, body = Broken), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn take_away(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(Break { lock, token, reason, by }): Json<Break>,
) -> Result<Answer<Broken>, Problem> {
    let by = by.as_deref().map(Label::new);
    match app.ask(asker, Request::Break { lock, only: token, by, reason: Label::new(&reason) }).await? {
        palisade_core::Answer::Forced { grants, moved_to } => Ok(Answer(Broken { grants, moved_to })),
        other => unreachable!("a force-release is not answered with {other:?}"),
    }
}

/// Raises the tokens: every lock that is granted from now on has a token above this one. Recorded.
#[utoipa::path(
    post, path = "/v1/tokens/raise", tag = "tokens", request_body = RaiseTokens,
    responses((status = 200, body = TokensRaised), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn raise_tokens(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(RaiseTokens { above }): Json<RaiseTokens>,
) -> Result<Answer<TokensRaised>, Problem> {
    match app.ask(asker, Request::RaiseTokens { above }).await? {
        palisade_core::Answer::Raised { last } => Ok(Answer(TokensRaised { raised: last < above.get() })),
        other => unreachable!("raising tokens is not answered with {other:?}"),
    }
}

/// Gives a semaphore in use another number of permits.
#[utoipa::path(
    post, path = "/v1/locks/resize", tag = "locks", request_body = Resize,
    responses((status = 204), (status = "default", body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn resize(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Json(Resize { lock, permits }): Json<Resize>,
) -> Result<StatusCode, Problem> {
    app.ask(asker, Request::Resize { lock, permits }).await?;
    Ok(StatusCode::NO_CONTENT)
}
