//! Signed tokens, and the public keys that verify them.

use axum::extract::State;
use axum::{Extension, Json as Answer};

use super::App;
use super::input::Json;
use super::problem::Problem;
use super::shapes::{Sign, Signed};
use crate::node::{RequestContext, Response};
use crate::request::{Query, Request};
use crate::sign::PublicKeys;

/// Signs a token that holds a lock now, for a resource that requires signed tokens.
pub(super) async fn sign(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Json(Sign { lock, token, session }): Json<Sign>,
) -> Result<Answer<Signed>, Problem> {
    match app.request(context, Request::Query(Query::Claims { lock, token, session })).await? {
        Response::Signed(signed_token) => Ok(Answer(Signed { signed_token })),
        other => unreachable!("a request to sign is not answered with {other:?}"),
    }
}

/// Returns the public keys that verify signed tokens. Needs no authentication.
pub(super) async fn keys(State(app): State<App>) -> Result<Answer<PublicKeys>, Problem> {
    app.signer.as_ref().map(|signer| Answer(signer.public())).ok_or_else(Problem::not_signing)
}
