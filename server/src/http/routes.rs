//! Every path, and what a request passes on its way there.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Known;
use super::problem::Problem;
use super::traffic::{self, Places, Traffic};
use super::{App, Bounds, access, elections, health, locks, principal, sessions, shapes, sign, watch};
use crate::service::Far;
use crate::sign::Signer;

#[derive(OpenApi)]
#[openapi(
    info(title = "Palisade", description = "A distributed lock whose every grant carries a fencing token."),
    components(schemas(Problem, shapes::Event))
)]
struct Description;

/// What is answered at once.
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

/// What may wait.
fn waiting() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(locks::acquire)).routes(routes!(elections::campaign))
}

/// What goes on until somebody ends it.
fn watching() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(watch::watch))
}

/// What must be answered however much is going on.
fn operation() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::openapi))
        .routes(routes!(sign::keys))
}

pub(super) fn router(
    far: Far,
    bounds: Bounds,
    traffic: Arc<Traffic>,
    known: Known,
    signer: Option<Signer>,
) -> Router {
    let admit = |most| from_fn_with_state((Places::new(most), bounds), traffic::admit);
    let (router, mut description) = OpenApiRouter::with_openapi(Description::openapi())
        .merge(at_once().layer(admit(bounds.at_once)))
        .merge(waiting().layer(admit(bounds.waiting)))
        .merge(watching().layer(admit(bounds.watching)))
        .merge(OpenApiRouter::new().routes(routes!(health::numbers)))
        .layer(from_fn_with_state(known, principal::identify))
        .merge(operation())
        .split_for_parts();
    access::describe(&mut description);
    let openapi = description.to_json().unwrap_or_default().into();
    router
        .fallback(async || Problem::no_such_path())
        .method_not_allowed_fallback(async || Problem::no_such_method())
        .layer(from_fn_with_state(traffic.clone(), traffic::count))
        .with_state(App { far, bounds, traffic, openapi, signer })
}
