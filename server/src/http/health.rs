//! For whoever looks after the service: does it run, is it of use, what does it do.

use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::{Extension, Json as Answer};

use super::problem::Problem;
use super::shapes::Well;
use super::{App, metrics};
use crate::service::{Asker, Far};

/// A write that takes longer than this is not expected to succeed.
const LONGEST_WRITE: Duration = Duration::from_secs(5);

/// The process answers.
#[utoipa::path(get, path = "/healthz", tag = "operation", responses((status = 200, body = Well)))]
pub(super) async fn healthz() -> Answer<Well> {
    Answer(Well { ok: true })
}

/// It leads, it has made something durable, and no write hangs: send requests here.
#[utoipa::path(
    get, path = "/readyz", tag = "operation",
    responses((status = 200, body = Well), (status = 503, body = Problem, content_type = "application/problem+json"))
)]
pub(super) async fn readyz(State(app): State<App>) -> Result<Answer<Well>, Problem> {
    let measures = app
        .answered(app.far.measure())
        .await
        .map_err(|_| Problem::not_ready("the service's thread does not answer: it hangs, or has ended"))?;
    // The first thing that a leader writes is that it leads: who holds office has written.
    if !measures.leads {
        return Err(Problem::not_ready("this node does not lead"));
    }
    match measures.write_under_way {
        Some(age) if age > LONGEST_WRITE => {
            Err(Problem::not_ready(format!("a write has not become durable for {} ms", age.as_millis())))
        }
        _ => Ok(Answer(Well { ok: true })),
    }
}

/// Numbers for Prometheus, for whoever may observe any lock. None is about a single one.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn numbers(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
) -> Result<impl IntoResponse, Problem> {
    Far::may_measure(&asker)?;
    let measures = app.answered(app.far.measure()).await?;
    let text = metrics::render(&measures, &app.traffic.counts(), app.traffic.connections());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// This description.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operation", responses((status = 200, body = Object, content_type = "application/json"))
)]
pub(super) async fn openapi(State(app): State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], app.openapi.to_string())
}
