//! The live page over HTTP: its files, and the requests that its scripts send.

mod login;
mod service;
mod source;
mod standalone;
mod static_files;

use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Response};
use palisade_core::{LockName, Token};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
pub(super) use service::{PageState, at_once, begin, files, identify, streams};
pub use standalone::{Standalone, serve_page};

/// The header that the page's scripts send with everything that changes something. Another site cannot send it.
const MARK: &str = "x-palisade-page";

/// What the page says about where it comes from.
#[derive(Debug, Serialize)]
struct Me {
    engine: String,
    r#where: String,
    version: &'static str,
    user: Option<String>,
    /// Whether the reader has to log in first.
    login: bool,
    may_break: bool,
    /// The beginning of a command that shows the same locks.
    command: String,
}

/// A lock to be taken away.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeAway {
    lock: LockName,
    /// Only the grant with this token.
    token: Option<Token>,
    reason: String,
}

/// Refuses a request that the page's own scripts have not sent.
fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |why: &str| Err(Problem::denied(format!("{why}; nothing was done")));
    if !headers.contains_key(MARK) {
        return refused("this is for the page alone; programs use /v1");
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = uri.authority().map(|authority| authority.as_str()).or_else(|| text(header::HOST));
    match text(header::ORIGIN) {
        Some(origin) if origin.split_once("://").map(|(_, host)| host) != host => {
            refused("another site has sent this request")
        }
        _ => Ok(()),
    }
}

/// Returns the value of a cookie.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Answers with the page's security headers.
fn guarded(response: impl IntoResponse) -> Response {
    static_files::guard(response.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_itself_may_change_something() {
        let uri = Uri::from_static("/page/break");
        let headers = |list: &[(&'static str, &'static str)]| {
            let pairs =
                list.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
            pairs.collect::<HeaderMap>()
        };
        let sent = |list: &[(&'static str, &'static str)]| check_origin(&uri, &headers(list)).is_ok();
        assert!(sent(&[("host", "locks:7421"), ("x-palisade-page", "1"), ("origin", "https://locks:7421")]));
        assert!(sent(&[("host", "locks:7421"), ("x-palisade-page", "1")]));
        assert!(!sent(&[("host", "locks:7421"), ("origin", "http://locks:7421")]));
        assert!(!sent(&[("host", "locks:7421"), ("x-palisade-page", "1"), ("origin", "https://evil.example")]));
        assert!(!sent(&[("host", "locks:7421"), ("x-palisade-page", "1"), ("origin", "null")]));
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let headers: HeaderMap =
            [(header::COOKIE, "a=1; palisade=x; palisade2=y".parse().expect("a value"))].into_iter().collect();
        assert_eq!(cookie(&headers, "palisade"), Some("x"));
        assert_eq!(cookie(&headers, "palisade2"), Some("y"));
        assert_eq!(cookie(&headers, "pal"), None);
    }
}
