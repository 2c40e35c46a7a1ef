//! What a fence says in its answers: one response header, and a problem where it refuses.

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

/// What a fence says about a request, in the header `Fencing-Verdict` of its answer. A client that does not find it
/// there was not answered by a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Said {
    /// The service has answered.
    Admitted,
    /// The service answered this before, to the same number. `has_body`: the body was short enough to be kept.
    Repeated {
        /// Whether the answer is whole.
        has_body: bool,
    },
    /// Nothing was written under this number, and nothing will be.
    Nothing,
    /// It is sealed, and this is the mark.
    Sealed(Mark),
    /// This is the mark, for whoever asked only for that; `None` if nothing has ever sealed it.
    Marked(Option<Mark>),
    /// It was not sealed: a newer token has sealed it.
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
    /// Nobody knows whether the last write under this token was carried out.
    Unknown,
    /// It is shut for a while, because of such a write.
    Shut {
        /// For how long.
        seconds: u64,
    },
    /// There is no header.
    Missing,
    /// The header, or the request, makes no sense.
    Malformed,
    /// The token is not signed as it must be here, or it was forged, altered, or given to another.
    NotGenuine,
    /// The request is too large to be numbered.
    TooLarge,
    /// The request's body did not arrive.
    Incomplete,
    /// The marks cannot be had; nothing was done.
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

impl Said {
    pub(super) fn refused<O>(verdict: &Verdict<O>) -> Option<Said> {
        match verdict {
            Verdict::Admitted | Verdict::Duplicate(_) => None,
            Verdict::Stale { seen } => Some(Said::Stale { seen: *seen }),
            Verdict::NotSealed => Some(Said::NotSealed),
            Verdict::Gap { expected } => Some(Said::Gap { expected: *expected }),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Said::Admitted => "admitted",
            Said::Repeated { .. } => "repeated",
            Said::Nothing => "nothing",
            Said::Sealed(_) => "sealed",
            Said::Marked(_) => "marked",
            Said::Superseded { .. } => "superseded",
            Said::Stale { .. } => "stale",
            Said::NotSealed => "not-sealed",
            Said::Gap { .. } => "gap",
            Said::Unknown => "unknown",
            Said::Shut { .. } => "shut",
            Said::Missing => "missing",
            Said::Malformed => "malformed",
            Said::NotGenuine => "not-genuine",
            Said::TooLarge => "too-large",
            Said::Incomplete => "incomplete",
            Said::Unavailable => "unavailable",
            Said::Failed => "failed",
            Said::NotSent => "not-sent",
        }
    }

    /// Its status, what it is for people, and what to do.
    fn kind(&self) -> (u16, &'static str, &'static str) {
        match self {
            Said::Admitted | Said::Repeated { .. } | Said::Sealed(_) | Said::Marked(_) => (200, "Done", ""),
            Said::Nothing => (204, "Nothing was written", ""),
            Said::Superseded { .. } | Said::Stale { .. } => (412, "A newer token has sealed it", ""),
            Said::NotSealed => (
                409,
                "This token has not sealed it",
                "Seal it first: POST with `Fencing-Token: N; seal`. If that was done, the marks are lost: were they \
                 restored, emptied, or kept in memory only?",
            ),
            Said::Gap { .. } => (
                409,
                "It is not the next write",
                "Somebody else writes under this token. Seal it again, which tells the number, and read again.",
            ),
            Said::Unknown => (
                500,
                "Nobody knows whether it was carried out",
                "Acquire the lock again: the seal with its new token ends the doubt. Then read what is there.",
            ),
            Said::Shut { .. } => (
                503,
                "It is shut because of a write of which nobody knows whether it was carried out",
                "Try again later; nothing was done.",
            ),
            Said::Missing => (
                428,
                "The fencing token is missing",
                "Send the token of the lock's grant: `Fencing-Token: 34` to read, `Fencing-Token: 34; seq=1` for the \
                 first write, after a POST with `Fencing-Token: 34; seal`.",
            ),
            Said::Malformed => (400, "The request makes no sense here", "Correct the request; nothing was done."),
            Said::NotGenuine => (
                403,
                "The token is not known to be genuine",
                "Have the service sign it (`LOCK SIGN`, signed_token()), and show that in `Fencing-Signature`; nothing was done.",
            ),
            Said::TooLarge => (413, "The body is too large", "Send less at once, or have the limit raised."),
            Said::Incomplete => {
                (408, "The body did not arrive", "Send it again, at once and whole; nothing was done.")
            }
            Said::Unavailable => (503, "The marks cannot be had", "Try again later; nothing was done."),
            Said::Failed => (502, "The service failed", "Try again later."),
            Said::NotSent => (
                502,
                "The service cannot be reached",
                "Try again later, with the same number; nothing was done, and the number is not used up.",
            ),
        }
    }

    /// An answer of the fence's own.
    pub(super) fn response(&self, detail: &str) -> Response<Body> {
        let (status, title, what_to_do) = self.kind();
        let word = self.word();
        let (seen, expected) = match self {
            Said::Superseded { seen } | Said::Stale { seen } => (Some(*seen), None),
            Said::Gap { expected } => (None, Some(*expected)),
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
            Said::Nothing => String::new(),
            Said::Sealed(mark) => serde_json::to_string(mark).unwrap_or_default(),
            Said::Marked(mark) => serde_json::to_string(mark).unwrap_or_default(),
            _ => serde_json::to_string(&problem).unwrap_or_default(),
        };
        let kind = match self {
            Said::Sealed(_) | Said::Marked(_) => "application/json",
            _ => "application/problem+json",
        };
        let mut response = Response::new(Body::full(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if *self != Said::Nothing {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        if let Said::Shut { seconds } = self {
            response.headers_mut().insert(header::RETRY_AFTER, (*seconds).into());
        }
        self.mark(response.headers_mut());
        response
    }

    /// The same, for where an answer of the service was expected.
    pub(super) fn refuse(&self, detail: &str) -> Box<Response<Body>> {
        Box::new(self.response(detail))
    }

    /// Says it in an answer; whatever the service has said there is no verdict.
    pub(super) fn mark(&self, headers: &mut HeaderMap) {
        // Words and numbers only.
        let value = HeaderValue::from_str(&self.to_string()).unwrap_or(HeaderValue::from_static(""));
        headers.insert(FENCING_VERDICT, value);
    }

    /// What an answer says, if a fence has made it.
    pub fn find(headers: &HeaderMap) -> Option<Said> {
        let text = headers.get(FENCING_VERDICT)?.to_str().ok()?;
        let (word, rest) = text.split_once(';').unwrap_or((text, ""));
        let value = |name: &str| {
            let found = rest.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
            found.and_then(|text| text.parse::<u64>().ok())
        };
        let token = |name| Token::new(value(name)?).ok();
        let seq = |name| Seq::new(value(name)?).ok();
        let plain = [
            Said::Admitted,
            Said::Nothing,
            Said::NotSealed,
            Said::Unknown,
            Said::Missing,
            Said::Malformed,
            Said::NotGenuine,
            Said::TooLarge,
            Said::Incomplete,
            Said::Unavailable,
            Said::Failed,
            Said::NotSent,
        ];
        match word {
            "repeated" => Some(Said::Repeated { has_body: !rest.contains("body=?0") }),
            "sealed" => Some(Said::Sealed(Mark { token: token("token")?, seq: seq("seq")? })),
            "marked" => Some(Said::Marked(token("token").zip(seq("seq")).map(|(token, seq)| Mark { token, seq }))),
            "superseded" => Some(Said::Superseded { seen: token("seen")? }),
            "stale" => Some(Said::Stale { seen: token("seen")? }),
            "gap" => Some(Said::Gap { expected: seq("expected")? }),
            "shut" => Some(Said::Shut { seconds: value("seconds")? }),
            _ => plain.into_iter().find(|said| said.word() == word),
        }
    }

    pub(super) fn shut_for(left: Duration) -> Said {
        Said::Shut { seconds: left.as_secs() + 1 }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Said::Repeated { has_body: false } => f.write_str("; body=?0"),
            Said::Sealed(mark) | Said::Marked(Some(mark)) => write!(f, "; token={}; seq={}", mark.token, mark.seq),
            Said::Superseded { seen } | Said::Stale { seen } => write!(f, "; seen={seen}"),
            Said::Gap { expected } => write!(f, "; expected={expected}"),
            Said::Shut { seconds } => write!(f, "; seconds={seconds}"),
            _ => Ok(()),
        }
    }
}
