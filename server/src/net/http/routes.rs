//! All paths, and the order of the layers.

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::client::Authenticator;
use super::page::{self, PageState};
use super::problem::Problem;
use super::relay::{self, RelayConfig};
use super::traffic::{self, RequestLimit, Traffic};
use super::{App, Bounds, access, client, elections, health, locks, sessions, shapes, sign, watch};
use crate::net::handle::ServiceHandle;
use crate::peers::LeaderDialer;
use crate::sign::Signer;

#[derive(OpenApi)]
#[openapi(
    info(title = "Palisade", description = "A distributed lock whose every grant carries a fencing token."),
    components(schemas(Problem, shapes::Event))
)]
struct Description;

/// Requests that are answered at once.
fn at_once() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::keep_alive))
        .routes(routes!(sessions::keep_all_alive))
        .routes(routes!(sessions::close))
        .routes(routes!(locks::release))
        .routes(routes!(locks::cancel))
        .routes(routes!(locks::list))
        .routes(routes!(locks::show))
        .routes(routes!(locks::take_away))
        .routes(routes!(locks::resize))
        .routes(routes!(locks::raise_tokens))
        .routes(routes!(sign::sign))
        .routes(routes!(elections::publish))
        .routes(routes!(elections::leader))
}

/// Requests that may wait.
fn waiting() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(locks::acquire)).routes(routes!(elections::campaign))
}

/// Watches, which last until the client ends them.
fn watching() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(watch::watch))
}

/// Requests of operators about this node, which no limit applies to. They are never relayed.
fn operation() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::openapi))
        .routes(routes!(sign::keys))
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
    let at_once = at_once().layer(admit(bounds.at_once)).layer(authenticate.clone()).layer(relay(false));
    let waiting = waiting().layer(admit(bounds.waiting)).layer(authenticate.clone()).layer(relay(true));
    let watching = watching().layer(admit(bounds.watching)).layer(authenticate.clone()).layer(relay(true));
    let (router, mut description) = OpenApiRouter::with_openapi(Description::openapi())
        .merge(at_once)
        .merge(waiting)
        .merge(watching)
        .merge(OpenApiRouter::new().routes(routes!(health::numbers)).layer(authenticate))
        .merge(operation())
        .split_for_parts();
    access::describe(&mut description);
    // The page is for browsers; the description is for programs.
    let identify = from_fn_with_state(page.clone(), page::identify);
    let router = router
        .merge(page::at_once().layer(admit(bounds.at_once)).layer(identify.clone()).layer(relay(false)))
        .merge(
            page::streams()
                .layer(Extension(dialer.clone()))
                .layer(admit(bounds.watching))
                .layer(identify)
                .layer(relay(true)),
        )
        .merge(page::files());
    let openapi = description.to_json().unwrap_or_default().into();
    router
        .fallback(async || Problem::no_such_path())
        .method_not_allowed_fallback(async || Problem::no_such_method())
        .layer(from_fn_with_state(traffic.clone(), traffic::count))
        .with_state(App { service, bounds, traffic, openapi, signer })
}
