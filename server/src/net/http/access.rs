//! The security part of the OpenAPI description.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

/// The paths without authentication.
const OPEN: &[&str] = &["/healthz", "/readyz", "/openapi.json", "/v1/keys"];

/// Adds the ways to authenticate, and the responses 401 and 403.
pub(super) fn describe(all: &mut OpenApi) {
    let none = [] as [String; 0];
    let schemes = all.components.get_or_insert_with(Components::new);
    schemes.add_security_scheme("secret", SecurityScheme::Http(Http::new(HttpAuthScheme::Basic)));
    let certificate = Some("A certificate that names a user, if the service accepts certificates.".to_owned());
    schemes.add_security_scheme(
        "certificate",
        SecurityScheme::MutualTls { description: certificate, deprecated: None, extensions: None },
    );
    // Either of them; or none, where there are no users.
    all.security = Some(vec![
        SecurityRequirement::new("secret", none.clone()),
        SecurityRequirement::new("certificate", none),
        SecurityRequirement::default(),
    ]);
    for (path, item) in &mut all.paths.paths {
        let operations = [&mut item.get, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            if OPEN.contains(&path.as_str()) {
                operation.security = Some(Vec::new());
            } else {
                add_refusals(operation);
            }
        }
    }
}

fn add_refusals(operation: &mut Operation) {
    for (status, why) in [("401", "The request is not authenticated."), ("403", "The user may not do this.")] {
        let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response = ResponseBuilder::new().description(why).content("application/problem+json", problem).build();
        operation.responses.responses.insert(status.to_owned(), RefOr::T(response));
    }
}
