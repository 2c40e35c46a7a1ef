//! The OpenAPI description of the API.

use axum::http::header;
use axum::response::IntoResponse;

/// The description. The tests compare it with the code.
const DESCRIPTION: &str = include_str!("openapi.json");

/// Returns the description.
pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION)
}

#[cfg(test)]
mod tests;
