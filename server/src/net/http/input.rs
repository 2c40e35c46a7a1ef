//! Input of requests: JSON bodies and query parameters. Unknown fields are refused.

use std::error::Error;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use palisade_core::SessionId;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use super::{App, Bounds};

/// Reads the whole body of a request.
pub(super) async fn read_body(request: Request, bounds: &Bounds) -> Result<Request, Problem> {
    let limit = bounds.body_bytes;
    if request.body().size_hint().lower() > limit as u64 {
        return Err(Problem::too_large(limit));
    }
    let (head, body) = request.into_parts();
    match tokio::time::timeout(bounds.body, Limited::new(body, limit).collect()).await {
        Err(_) => Err(Problem::too_slow(bounds.body)),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => Err(Problem::too_large(limit)),
        Ok(Err(error)) => Err(Problem::bad(format!("the body did not arrive: {error}"))),
        Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
    }
}

/// A body of JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Json<T>, Problem> {
        // This also stops cross-site requests: a browser sends no JSON to another site without a preflight.
        if !is_json(&request) {
            return Err(Problem::not_json());
        }
        let body = request.into_body().collect().await;
        let body: Bytes = body.map_err(|error| Problem::bad(format!("the body did not arrive: {error}")))?.to_bytes();
        // serde would read a JSON list as the fields in their order.
        if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
            return Err(Problem::bad("the body is not a JSON object"));
        }
        let mut reader = serde_json::Deserializer::from_slice(&body);
        let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            let prefix = if [".", "?"].contains(&path.as_str()) { String::new() } else { format!("{path}: ") };
            Problem::bad(format!("{prefix}{}", error.into_inner()))
        })?;
        reader.end().map_err(|error| Problem::bad(error.to_string()))?;
        Ok(Json(value))
    }
}

fn is_json(request: &Request) -> bool {
    let value = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// Query parameters.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Params<T>, Problem> {
        // The decoder would replace invalid bytes by another character.
        let query = parts.uri.query().unwrap_or_default();
        if percent_encoding::percent_decode_str(query).decode_utf8().is_err() {
            return Err(Problem::bad("the query is not UTF-8"));
        }
        let Query(params) = Query::try_from_uri(&parts.uri).map_err(|bad| Problem::bad(innermost(&bad)))?;
        Ok(Params(params))
    }
}

/// Returns the message of the innermost cause.
fn innermost(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

/// The session that a path names.
pub(super) struct SessionInPath(pub(super) SessionId);

impl FromRequestParts<App> for SessionInPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<SessionInPath, Problem> {
        let bad = |why: &str| Problem::bad(format!("the session in the path {why}"));
        let Path(text) = Path::<String>::from_request_parts(parts, app).await.map_err(|_| bad("is not UTF-8"))?;
        let number = text.parse().map_err(|_| bad("is not a number"))?;
        SessionId::new(number).map(SessionInPath).map_err(|why| bad(&format!("is refused: {why}")))
    }
}
