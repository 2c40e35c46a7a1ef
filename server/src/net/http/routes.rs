//! All paths, and the order of the layers.

use std::sync::Arc;

use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Router};

use super::client::Authenticator;
use super::page::{self, PageState};
use super::problem::Problem;
use super::relay::{self, RelayConfig};
use super::traffic::{self, RequestLimit, Traffic};
use super::{App, Bounds, client, elections, health, locks, openapi, sessions, sign, watch};
use crate::net::handle::ServiceHandle;
use crate::peers::LeaderDialer;
use crate::sign::Signer;

/// The layers that a request passes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layers {
    /// The request is answered at once.
    AtOnce,
    /// The request may wait.
    Waiting,
    /// The request is a watch, which lasts until the client ends it.
    Watching,
    /// The request of an operator is about this node: no limit applies to it, and it is never relayed.
    Metrics,
    /// The same, without authentication.
    Public,
}

/// A method of a path, and its handler.
pub(super) type Operation = (Layers, MethodFilter, &'static str, MethodRouter<App>);

fn operation<H, T>(layers: Layers, method: MethodFilter, path: &'static str, handler: H) -> Operation
where
    H: Handler<T, App>,
    T: 'static,
{
    (layers, method, path, on(method, handler))
}

/// Returns all operations of the API. `openapi.json` describes them, and a test compares the two.
pub(super) fn operations() -> Vec<Operation> {
    use Layers::{AtOnce, Metrics, Public, Waiting, Watching};
    const GET: MethodFilter = MethodFilter::GET;
    const POST: MethodFilter = MethodFilter::POST;
    const DELETE: MethodFilter = MethodFilter::DELETE;
    vec![
        operation(AtOnce, POST, "/v1/sessions", sessions::open),
        operation(AtOnce, POST, "/v1/sessions/keepalive", sessions::keep_all_alive),
        operation(AtOnce, POST, "/v1/sessions/{id}/keepalive", sessions::keep_alive),
        operation(AtOnce, DELETE, "/v1/sessions/{id}", sessions::close),
        operation(Waiting, POST, "/v1/locks/acquire", locks::acquire),
        operation(AtOnce, POST, "/v1/locks/release", locks::release),
        operation(AtOnce, POST, "/v1/locks/cancel", locks::cancel),
        operation(AtOnce, GET, "/v1/locks", locks::list),
        operation(AtOnce, GET, "/v1/locks/show", locks::show),
        operation(Watching, GET, "/v1/locks/watch", watch::watch),
        operation(AtOnce, POST, "/v1/locks/break", locks::take_away),
        operation(AtOnce, POST, "/v1/locks/resize", locks::resize),
        operation(AtOnce, POST, "/v1/locks/sign", sign::sign),
        operation(AtOnce, POST, "/v1/tokens/raise", locks::raise_tokens),
        operation(Waiting, POST, "/v1/elections/campaign", elections::campaign),
        operation(AtOnce, POST, "/v1/elections/publish", elections::publish),
        operation(AtOnce, GET, "/v1/elections/leader", elections::leader),
        operation(Metrics, GET, "/metrics", health::numbers),
        operation(Public, GET, "/healthz", health::healthz),
        operation(Public, GET, "/readyz", health::readyz),
        operation(Public, GET, "/openapi.json", openapi::openapi),
        operation(Public, GET, "/v1/keys", sign::keys),
    ]
}

/// Returns the operations with these layers, without the layers.
fn with(layers: Layers) -> Router<App> {
    let operations = operations().into_iter().filter(|operation| operation.0 == layers);
    operations.fold(Router::new(), |router, (_, _, path, handler)| router.route(path, handler))
}

pub(super) fn router(
    service: ServiceHandle,
    bounds: Bounds,
    traffic: Arc<Traffic>,
    authenticator: Authenticator,
    signer: Option<Signer>,
    dialer: Option<LeaderDialer>,
    page: &PageState,
) -> Router {
    let admit = |most| from_fn_with_state((RequestLimit::new(most), bounds), traffic::admit);
    let authenticate = from_fn_with_state(authenticator, client::authenticate);
    let relay = |may_wait| from_fn_with_state(RelayConfig { dialer: dialer.clone(), bounds, may_wait }, relay::relay);
    // The node that leads authenticates and limits what is relayed to it.
    let limited =
        |layers, most, may_wait| with(layers).layer(admit(most)).layer(authenticate.clone()).layer(relay(may_wait));
    let identify = from_fn_with_state(page.clone(), page::identify);
    Router::new()
        .merge(limited(Layers::AtOnce, bounds.at_once, false))
        .merge(limited(Layers::Waiting, bounds.waiting, true))
        .merge(limited(Layers::Watching, bounds.watching, true))
        .merge(with(Layers::Metrics).layer(authenticate.clone()))
        .merge(with(Layers::Public))
        .merge(page::at_once().layer(admit(bounds.at_once)).layer(identify.clone()).layer(relay(false)))
        .merge(
            page::streams()
                .layer(Extension(dialer.clone()))
                .layer(admit(bounds.watching))
                .layer(identify)
                .layer(relay(true)),
        )
        .merge(page::files())
        .fallback(async || Problem::no_such_path())
        .method_not_allowed_fallback(async || Problem::no_such_method())
        .layer(from_fn_with_state(traffic.clone(), traffic::count))
        .with_state(App { service, bounds, traffic, signer })
}
