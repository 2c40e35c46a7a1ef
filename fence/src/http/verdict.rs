//! The fence's replies: one response header, and a problem where it refuses.

use std::fmt;
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use palisade_core::Token;
use serde::Serialize;

use super::answer::Body;
use crate::error::overtaken;
use crate::{Mark, Seq, Verdict};

/// The response header's name.
pub const FENCING_VERDICT: &str = "fencing-verdict";

/// The fence's verdict on a request, in the header `Fencing-Verdict` of the answer. An answer without it does not come from a
/// fence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FencingVerdict {
    /// The service has answered.
    Admitted,
    /// A repeat: the stored answer to the same number.
    Repeated {
        /// Whether the body was short enough to be stored.
        has_body: bool,
    },
    /// Nothing was written under this number, and nothing will be.
    Nothing,
    /// The resource is sealed, and has this mark.
    Sealed(Mark),
    /// The mark, in reply to a request for it; `None` if the resource was never sealed.
    Marked(Option<Mark>),
    /// The seal was refused: a newer token has sealed the resource.
    Superseded {
        /// That token.
        seen: Token,
    },
    /// A newer token has sealed it.
    Stale {
        /// That token.
        seen: Token,
    },
    /// This token has not sealed it.
    NotSealed,
    /// It is not the next write.
    Gap {
        /// The number of the next one.
        expected: Seq,
    },
    /// It is unknown whether the last write under this token was carried out.
    Unknown,
    /// It is quarantined after such a write. In the header: `shut`.
    Quarantined {
        /// The rest of the quarantine.
        seconds: u64,
    },
    /// There is no header.
    Missing,
    /// The header or the request is invalid.
    Malformed,
    /// The token is not signed as this fence requires, or was forged, altered, or given to another user.
    NotGenuine,
    /// The request is too large to be numbered.
    TooLarge,
    /// The request's body did not arrive.
    Incomplete,
    /// The marks are not available; nothing was done.
    Unavailable,
    /// The service failed to answer a read, or a request that needs no token.
    Failed,
    /// The service cannot be reached: nothing was sent to it. A write has not used up its number.
    NotSent,
}

/// Why a request was refused (RFC 9457).
#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    code: String,
    detail: &'a str,
    what_to_do: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<Seq>,
}

impl FencingVerdict {
    pub(super) fn refused<O>(verdict: &Verdict<O>) -> Option<FencingVerdict> {
        match verdict {
            Verdict::Admitted | Verdict::Duplicate(_) => None,
            Verdict::Stale { seen } => Some(FencingVerdict::Stale { seen: *seen }),
            Verdict::NotSealed => Some(FencingVerdict::NotSealed),
            Verdict::Gap { expected } => Some(FencingVerdict::Gap { expected: *expected }),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            FencingVerdict::Admitted => "admitted",
            FencingVerdict::Repeated { .. } => "repeated",
            FencingVerdict::Nothing => "nothing",
            FencingVerdict::Sealed(_) => "sealed",
            FencingVerdict::Marked(_) => "marked",
            FencingVerdict::Superseded { .. } => "superseded",
            FencingVerdict::Stale { .. } => "stale",
            FencingVerdict::NotSealed => "not-sealed",
            FencingVerdict::Gap { .. } => "gap",
            FencingVerdict::Unknown => "unknown",
            FencingVerdict::Quarantined { .. } => "shut",
            FencingVerdict::Missing => "missing",
            FencingVerdict::Malformed => "malformed",
            FencingVerdict::NotGenuine => "not-genuine",
            FencingVerdict::TooLarge => "too-large",
            FencingVerdict::Incomplete => "incomplete",
            FencingVerdict::Unavailable => "unavailable",
            FencingVerdict::Failed => "failed",
            FencingVerdict::NotSent => "not-sent",
        }
    }

    /// Returns its status, its title, and what to do.
    fn kind(&self) -> (u16, &'static str, &'static str) {
        match self {
            FencingVerdict::Admitted
            | FencingVerdict::Repeated { .. }
            | FencingVerdict::Sealed(_)
            | FencingVerdict::Marked(_) => (200, "Done", ""),
            FencingVerdict::Nothing => (204, "Nothing was written", ""),
            FencingVerdict::Superseded { .. } | FencingVerdict::Stale { .. } => {
                (412, "A newer token has sealed it", "")
            }
            FencingVerdict::NotSealed => (
                409,
                "This token has not sealed it",
                "Seal it first: POST with `Fencing-Token: N; seal`. If that was done, the marks are lost: were they \
                 restored, emptied, or kept in memory only?",
            ),
            FencingVerdict::Gap { .. } => (
                409,
                "It is not the next write",
                "Another client writes under this token. Seal it again, which returns the number, and read again.",
            ),
            FencingVerdict::Unknown => (
                500,
                "It is unknown whether the write was carried out",
                "Acquire the lock again: once its new token has sealed the resource, writes are accepted again. Then read the data.",
            ),
            FencingVerdict::Quarantined { .. } => {
                (503, "It is quarantined after a write with an unknown outcome", "Try again later; nothing was done.")
            }
            FencingVerdict::Missing => (
                428,
                "The fencing token is missing",
                "Send the token of the lock's grant: `Fencing-Token: 34` to read, `Fencing-Token: 34; seq=1` for the \
                 first write, after a POST with `Fencing-Token: 34; seal`.",
            ),
            FencingVerdict::Malformed => (400, "The request is invalid", "Correct the request; nothing was done."),
            FencingVerdict::NotGenuine => (
                403,
                "The token is not known to be genuine",
                "Have the service sign it (`LOCK SIGN`, signed_token()), and show that in `Fencing-Signature`; nothing was done.",
            ),
            FencingVerdict::TooLarge => {
                (413, "The body is too large", "Send less at once, or have the limit raised.")
            }
            FencingVerdict::Incomplete => {
                (408, "The body did not arrive", "Send it again, at once and whole; nothing was done.")
            }
            FencingVerdict::Unavailable => (503, "The marks are not available", "Try again later; nothing was done."),
            FencingVerdict::Failed => (502, "The service failed", "Try again later."),
            FencingVerdict::NotSent => (
                502,
                "The service cannot be reached",
                "Try again later, with the same number; nothing was done, and the number is not used up.",
            ),
        }
    }

    /// Returns an answer of the fence itself.
    pub(super) fn response(&self, detail: &str) -> Response<Body> {
        let (status, title, what_to_do) = self.kind();
        let word = self.word();
        let (seen, expected) = match self {
            FencingVerdict::Superseded { seen } | FencingVerdict::Stale { seen } => (Some(*seen), None),
            FencingVerdict::Gap { expected } => (None, Some(*expected)),
            _ => (None, None),
        };
        let what_to_do = match seen {
            Some(seen) => format!("{}.", overtaken(seen)),
            None => what_to_do.to_owned(),
        };
        let (r#type, code) = (format!("urn:palisade:problem:{word}"), word.to_uppercase());
        let problem = Problem { r#type, title, status, code, detail, what_to_do, seen, expected };
        // Plain texts and numbers can always be written.
        let body = match self {
            FencingVerdict::Nothing => String::new(),
            FencingVerdict::Sealed(mark) => serde_json::to_string(mark).unwrap_or_default(),
            FencingVerdict::Marked(mark) => serde_json::to_string(mark).unwrap_or_default(),
            _ => serde_json::to_string(&problem).unwrap_or_default(),
        };
        let kind = match self {
            FencingVerdict::Sealed(_) | FencingVerdict::Marked(_) => "application/json",
            _ => "application/problem+json",
        };
        let mut response = Response::new(Body::full(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if *self != FencingVerdict::Nothing {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        if let FencingVerdict::Quarantined { seconds } = self {
            response.headers_mut().insert(header::RETRY_AFTER, (*seconds).into());
        }
        self.set_header(response.headers_mut());
        response
    }

    /// Returns the same answer as an error.
    pub(super) fn refuse(&self, detail: &str) -> Box<Response<Body>> {
        Box::new(self.response(detail))
    }

    /// Sets the header of an answer. Replaces one that the service has set.
    pub(super) fn set_header(&self, headers: &mut HeaderMap) {
        // Words and numbers only.
        let value = HeaderValue::from_str(&self.to_string()).unwrap_or(HeaderValue::from_static(""));
        headers.insert(FENCING_VERDICT, value);
    }

    /// Reads the verdict of an answer, if it comes from a fence.
    pub fn find(headers: &HeaderMap) -> Option<FencingVerdict> {
        let text = headers.get(FENCING_VERDICT)?.to_str().ok()?;
        let (word, rest) = text.split_once(';').unwrap_or((text, ""));
        let value = |name: &str| {
            let found = rest.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
            found.and_then(|text| text.parse::<u64>().ok())
        };
        let token = |name| Token::new(value(name)?).ok();
        let seq = |name| Seq::new(value(name)?).ok();
        let plain = [
            FencingVerdict::Admitted,
            FencingVerdict::Nothing,
            FencingVerdict::NotSealed,
            FencingVerdict::Unknown,
            FencingVerdict::Missing,
            FencingVerdict::Malformed,
            FencingVerdict::NotGenuine,
            FencingVerdict::TooLarge,
            FencingVerdict::Incomplete,
            FencingVerdict::Unavailable,
            FencingVerdict::Failed,
            FencingVerdict::NotSent,
        ];
        match word {
            "repeated" => Some(FencingVerdict::Repeated { has_body: !rest.contains("body=?0") }),
            "sealed" => Some(FencingVerdict::Sealed(Mark { token: token("token")?, seq: seq("seq")? })),
            "marked" => {
                Some(FencingVerdict::Marked(token("token").zip(seq("seq")).map(|(token, seq)| Mark { token, seq })))
            }
            "superseded" => Some(FencingVerdict::Superseded { seen: token("seen")? }),
            "stale" => Some(FencingVerdict::Stale { seen: token("seen")? }),
            "gap" => Some(FencingVerdict::Gap { expected: seq("expected")? }),
            "shut" => Some(FencingVerdict::Quarantined { seconds: value("seconds")? }),
            _ => plain.into_iter().find(|verdict| verdict.word() == word),
        }
    }

    pub(super) fn quarantined_for(left: Duration) -> FencingVerdict {
        FencingVerdict::Quarantined { seconds: left.as_secs() + 1 }
    }
}

impl fmt::Display for FencingVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            FencingVerdict::Repeated { has_body: false } => f.write_str("; body=?0"),
            FencingVerdict::Sealed(mark) | FencingVerdict::Marked(Some(mark)) => {
                write!(f, "; token={}; seq={}", mark.token, mark.seq)
            }
            FencingVerdict::Superseded { seen } | FencingVerdict::Stale { seen } => write!(f, "; seen={seen}"),
            FencingVerdict::Gap { expected } => write!(f, "; expected={expected}"),
            FencingVerdict::Quarantined { seconds } => write!(f, "; seconds={seconds}"),
            _ => Ok(()),
        }
    }
}
