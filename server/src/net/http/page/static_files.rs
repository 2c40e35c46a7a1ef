//! The files of the page, which are part of the binary.

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use super::super::problem::Problem;

/// A file with its name and content.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../../page/", $name)))),*]
    };
}

const INDEX: &[u8] = include_bytes!("../../../../page/index.html");
const FILES: &[(&str, &[u8])] = files![
    "api.js",
    "break.js",
    "chart.js",
    "dom.js",
    "elections.js",
    "format.js",
    "icon.svg",
    "list.js",
    "lock.js",
    "locks.js",
    "login.js",
    "page.css",
    "page.js",
    "routes.js",
    "rows.js",
    "sentence.js",
    "service.js",
    "sessions.js",
    "stream.js",
    "theme.js",
    "timeline.js",
];

/// A browser loads and runs only files of this server, shows the page in no frame of another site, and does not send the page's
/// address to other sites.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; font-src 'none'; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Adds the security headers, and removes the challenge, for which a browser would show its own login dialog.
pub(super) fn guard(mut response: Response) -> Response {
    response.headers_mut().remove(header::WWW_AUTHENTICATE);
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn file(kind: &'static str, content: &'static [u8]) -> Response {
    guard(([(header::CONTENT_TYPE, kind)], content).into_response())
}

pub(super) async fn index() -> Response {
    file("text/html; charset=utf-8", INDEX)
}

pub(super) async fn asset(Path(name): Path<String>) -> Response {
    let Some((name, content)) = FILES.iter().find(|(known, _)| *known == name) else {
        return guard(Problem::no_such_path().into_response());
    };
    let kind = match name.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    file(kind, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_asks_no_other_site_for_anything() {
        let total: usize = FILES.iter().map(|(_, content)| content.len()).sum::<usize>() + INDEX.len();
        assert!(total < 150_000, "{total} bytes");
        for (name, content) in FILES {
            let text = std::str::from_utf8(content).expect("text");
            let links = text.matches("://").count() - text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(links, 0, "{name} names another site");
        }
    }
}
