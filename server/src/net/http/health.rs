//! For operators: health, readiness and metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::{Extension, Json as Answer};

use super::client::Client;
use super::problem::Problem;
use super::shapes::Health;
use super::{App, metrics};
use crate::net::handle::ServiceHandle;
use crate::node::{NodeReport, RequestContext};

/// A write that takes longer than this is not expected to succeed.
const LONGEST_WRITE: Duration = Duration::from_secs(5);

/// The process answers.
pub(super) async fn healthz() -> Answer<Health> {
    Answer(Health { ok: true })
}

/// Returns whether requests can be sent here: this node leads or relays them to the node that does, and no write hangs.
pub(super) async fn readyz(State(app): State<App>) -> Result<Answer<Health>, Problem> {
    let report = app
        .within(Duration::ZERO, app.service.report())
        .await
        .map_err(|_| Problem::not_ready("the service's thread does not answer: it hangs, or has ended"))?;
    let NodeReport { is_leader, cluster, oldest_write, .. } = &report.node;
    match cluster.leader {
        // A leader has applied an entry of its own term, so it has written.
        _ if *is_leader => {}
        Some(leader) if leader != cluster.member => {}
        Some(_) => return Err(Problem::not_ready("this node was elected, and is about to lead")),
        None => {
            return Err(Problem::not_ready(
                "this node knows no leader: it cannot reach a majority of the nodes, or they elect one",
            ));
        }
    }
    match oldest_write {
        Some(age) if *age > LONGEST_WRITE => {
            Err(Problem::not_ready(format!("a write has not become durable for {} ms", age.as_millis())))
        }
        _ => Ok(Answer(Health { ok: true })),
    }
}

/// Metrics for Prometheus, for users that may observe any lock. None of them names a lock.
pub(super) async fn numbers(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Extension(client): Extension<Arc<Client>>,
) -> Result<impl IntoResponse, Problem> {
    if let Err(refused) = ServiceHandle::may_report(&context) {
        client.audit().refused(&context, &refused);
        return Err(refused.into());
    }
    let report = app.within(Duration::ZERO, app.service.report()).await?;
    let text = metrics::render(&report, &app.traffic.counts(), app.traffic.connections());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}
