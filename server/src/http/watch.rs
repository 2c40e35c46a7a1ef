//! Events as they happen, for as long as somebody listens.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;

use super::App;
use super::input::Params;
use super::principal::Visitor;
use super::problem::Problem;
use super::shapes::{Event, Prefix, shaped};
use super::traffic::Place;
use crate::resp::Reply;
use crate::service::{Asker, Seen};

/// Watches locks: server-sent events, each of them an `Event` as JSON. Whatever happens after the response has begun
/// is seen; a watcher that reads too slowly is told how many events it missed, and should look at the locks again.
#[utoipa::path(
    get, path = "/v1/locks/watch", tag = "locks", params(Prefix),
    responses(
        (status = 200, body = Event, content_type = "text/event-stream"),
        (status = "default", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn watch(
    State(app): State<App>,
    Extension(asker): Extension<Asker>,
    Extension(place): Extension<Place>,
    Extension(visitor): Extension<Arc<Visitor>>,
    Params(Prefix { prefix }): Params<Prefix>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Problem> {
    let watch = app.answered(app.far.watch(asker, prefix, app.bounds.backlog)).await??;
    let events = unfold((watch, place, visitor), |(mut watch, place, visitor)| async {
        let seen = tokio::select! {
            seen = watch.next() => seen?,
            // What it has sent behind this request keeps the protocol from noticing.
            () = visitor.gone() => return None,
        };
        let event = match seen {
            Seen::Event(event) => shown(event),
            Seen::Missed(count) => Event::missed(count),
        };
        let data = serde_json::to_string(&event).unwrap_or_default();
        Some((Ok(sse::Event::default().data(data)), (watch, place, visitor)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(app.bounds.silence)))
}

/// The event itself: before it stands what a line needs to tell it from an answer.
fn shown(push: Reply) -> Event {
    match push {
        Reply::Push(mut parts) => shaped(parts.pop().unwrap_or(Reply::Nil)),
        other => shaped(other),
    }
}
