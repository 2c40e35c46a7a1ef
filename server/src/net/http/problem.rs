//! Problems (RFC 9457), each with a stable code and a remedy.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use palisade_core::Refusal;
use serde::Serialize;

use crate::net::handle::Unavailable;
use crate::net::words::{CLOSING, NOT_LEADER, NOT_SIGNING, refusal_code};
use crate::node::Refused;

/// The code of a problem in a response, for the metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code(pub(super) &'static str);

/// Why a request was not carried out (RFC 9457).
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    /// Names the kind of problem; it can be compared, not visited.
    r#type: String,
    /// The kind of problem, for people.
    title: &'static str,
    /// The status of the response.
    status: u16,
    /// The kind of problem, for programs: the same code as over RESP.
    code: &'static str,
    /// What went wrong this time.
    detail: String,
    /// The remedy.
    what_to_do: &'static str,
}

/// Every code: its status, its title, and what to do.
const KINDS: &[(&str, u16, &str, &str)] = &[
    ("BADARG", 400, "The request makes no sense", "Correct the request; /openapi.json describes it."),
    ("TIMEOUT", 408, "The request took too long to arrive", "Send the request again, at once and whole."),
    ("NOTFOUND", 404, "There is nothing here", "Look at /openapi.json for what there is."),
    ("METHOD", 405, "The method cannot be used here", "Use the method that /openapi.json names."),
    (
        "NOAUTH",
        401,
        "The request is not authenticated",
        "Send Authorization: Basic (curl -u user:secret), or use a certificate.",
    ),
    ("WRONGPASS", 401, "There is no such user with such a secret", "Check the user's name and the secret."),
    ("DENIED", 403, "The user may not do this", "Have the right given, or ask as another user."),
    ("NOSESSION", 404, "The session does not exist", "Open a new session. Its locks are lost: stop using them."),
    ("TOOLARGE", 413, "The request is too large", "Send less at once."),
    ("MEDIATYPE", 415, "The content type is not JSON", "Send content-type: application/json (curl --json)."),
    ("LIMIT", 422, "A limit of the service would be passed", "Stay within the limit, or have it raised."),
    ("BUSY", 409, "The lock was not available in time", "Try again later, or wait longer with wait_ms."),
    ("NOTSIGNING", 404, "Nothing is signed here", "Have the service started with --sign, or do without."),
    ("NOTHELD", 409, "It is not held", "Look at the lock. A token that was refused here is not to be used any more."),
    ("HELD", 409, "The session holds the lock already", "Release it first, or use another session."),
    ("GRANTED", 409, "The request was granted already", "Release the grant with its token."),
    ("CANCELLED", 409, "The request was cancelled", "Ask again under a new request number."),
    ("STALE", 409, "The request number cannot be used", "Look at the lock, then use a new, higher number."),
    ("KIND", 409, "The lock is in use in another way", "Use it as it is in use, or another name."),
    (
        "MISDIRECTED",
        421,
        "The request is for another host",
        "Use an IP address or localhost, or have the name added to serve.http_hosts.",
    ),
    ("OVERLOADED", 503, "Too many requests at once", "Try again later."),
    (
        "UNAVAILABLE",
        503,
        "The service cannot answer now",
        "Try again later; `detail` says whether it may have been carried out.",
    ),
    ("NOTREADY", 503, "The service is not ready", "Wait until it is; send requests elsewhere meanwhile."),
];

impl Problem {
    fn new(code: &'static str, detail: impl Into<String>) -> Problem {
        let kind = KINDS.iter().find(|kind| kind.0 == code);
        let (_, status, title, what_to_do) = *kind.unwrap_or_else(|| unreachable!("{code} is not listed"));
        Problem {
            r#type: format!("urn:palisade:problem:{}", code.to_ascii_lowercase()),
            title,
            status,
            code,
            detail: detail.into(),
            what_to_do,
        }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn bad(detail: impl Into<String>) -> Problem {
        Problem::new("BADARG", detail)
    }

    pub(super) fn too_slow(limit: std::time::Duration) -> Problem {
        Problem::new("TIMEOUT", format!("the body did not arrive within {} ms", limit.as_millis()))
    }

    pub(super) fn too_large(limit: usize) -> Problem {
        Problem::new("TOOLARGE", format!("a body has at most {limit} bytes"))
    }

    pub(super) fn not_json() -> Problem {
        Problem::new("MEDIATYPE", "the content-type is not application/json")
    }

    pub(super) fn no_auth() -> Problem {
        Problem::new("NOAUTH", "this service requires a login, and the request names no user; nothing was done")
    }

    pub(super) fn wrong_secret() -> Problem {
        Problem::new("WRONGPASS", "there is no such user with such a secret; nothing was done")
    }

    pub(super) fn denied(why: impl Into<String>) -> Problem {
        Problem::new("DENIED", why)
    }

    /// The engine that a page shows has failed.
    pub(super) fn engine_failed(why: String) -> Problem {
        Problem::new("UNAVAILABLE", why)
    }

    pub(super) fn no_such_path() -> Problem {
        Problem::new("NOTFOUND", "no operation has this path")
    }

    pub(super) fn no_such_method() -> Problem {
        Problem::new("METHOD", "no operation has this path and this method")
    }

    pub(super) fn busy(waited_ms: u64) -> Problem {
        Problem::new("BUSY", format!("it was not available within {waited_ms} ms; nothing is held or queued"))
    }

    pub(super) fn overloaded(most: usize) -> Problem {
        Problem::new("OVERLOADED", format!("{most} requests of this kind are under way; nothing was done"))
    }

    pub(super) fn over_share(user: &str, most: usize) -> Problem {
        let why =
            format!("{most} requests of this kind are under way for user '{user}', its share; nothing was done");
        Problem::new("OVERLOADED", why)
    }

    pub(super) fn too_many_connections_of(user: &str, most: usize) -> Problem {
        let why = format!("user '{user}' has {most} connections, and may have no more; nothing was done");
        Problem::new("OVERLOADED", why)
    }

    pub(super) fn too_many_connections(most: usize) -> Problem {
        Problem::new("OVERLOADED", format!("{most} connections are open, and there may be no more; nothing was done"))
    }

    pub(super) fn misdirected(host: &str) -> Problem {
        let host: String = host.chars().take(80).collect::<String>().escape_debug().to_string();
        Problem::new(
            "MISDIRECTED",
            format!("'{host}' is no name of this service, which has no users; nothing was done"),
        )
    }

    pub(super) fn no_answer() -> Problem {
        Problem::new("UNAVAILABLE", "the service did not answer in time; it is not known whether anything was done")
    }

    pub(super) fn leader_unreachable(error: &std::io::Error) -> Problem {
        let why = format!("the node that leads cannot be reached ({error}): nothing was done; ask again soon");
        Problem::new("UNAVAILABLE", why)
    }

    pub(super) fn relay_broken() -> Problem {
        let why = "the connection to the node that leads broke, or another node leads now; it is not known whether anything \
                   was done";
        Problem::new("UNAVAILABLE", why)
    }

    /// The node waits to become part of a cluster.
    pub(super) fn not_a_member_yet(why: &str) -> Problem {
        Problem::new("NOTREADY", why)
    }

    pub(super) fn not_signing() -> Problem {
        Problem::new("NOTSIGNING", NOT_SIGNING)
    }

    pub(super) fn not_ready(why: impl Into<String>) -> Problem {
        Problem::new("NOTREADY", why)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        Problem::new(refusal_code(&refusal), refusal.to_string())
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        match refused {
            Refused::Denied(why) => Problem::denied(why),
            Refused::Refusal(refusal) => refusal.into(),
            Refused::NotSigning => Problem::not_signing(),
            Refused::OverBound(why) => Problem::new("LIMIT", why),
            Refused::Unauthenticated => Problem::no_auth(),
            Refused::NotLeader => Problem::new("UNAVAILABLE", NOT_LEADER),
            Refused::Closing => Problem::new("UNAVAILABLE", CLOSING),
        }
    }
}

impl From<Unavailable> for Problem {
    fn from(_: Unavailable) -> Problem {
        Problem::new(
            "UNAVAILABLE",
            "the service has ended or does not lead; it is not known whether anything was done",
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.to_json()).into_response();
        response.extensions_mut().insert(Code(self.code));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            let basic = HeaderValue::from_static("Basic realm=\"palisade\", charset=\"UTF-8\"");
            headers.insert(header::WWW_AUTHENTICATE, basic);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
