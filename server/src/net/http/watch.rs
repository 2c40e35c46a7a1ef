//! Events as they happen, until the client disconnects.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;

use super::App;
use super::client::Client;
use super::input::Params;
use super::problem::Problem;
use super::shapes::{Event, Prefix};
use super::traffic::RequestPermit;
use crate::net::handle::WatchItem;
use crate::node::RequestContext;

/// Watches locks: server-sent events, each of them an `Event` as JSON. A watcher gets all events after the response has
/// begun. If it reads too slowly, it gets the number of missed events, and should list the locks again.
pub(super) async fn watch(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    Extension(permit): Extension<RequestPermit>,
    Extension(client): Extension<Arc<Client>>,
    Params(Prefix { prefix }): Params<Prefix>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Problem> {
    let watch = app.service.watch(context, prefix, app.bounds.backlog);
    let watch = app.within(Duration::ZERO, watch).await??;
    let events = unfold((watch, permit, client), |(mut watch, permit, client)| async {
        let item = tokio::select! {
            item = watch.next() => item?,
            // hyper does not notice a disconnect while bytes after this request are unread.
            () = client.closed() => return None,
        };
        let event = match item {
            WatchItem::Event(event) => Event::of(&event),
            WatchItem::Missed(count) => Event::missed(count),
        };
        let data = serde_json::to_string(&event).unwrap_or_default();
        Some((Ok(sse::Event::default().data(data)), (watch, permit, client)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(app.bounds.silence)))
}
