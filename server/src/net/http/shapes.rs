//! The bodies of requests and responses, as JSON. `openapi.json` describes their fields.

use palisade_core::{Delay, LockName, Mode, RequestNo, SessionId, Token, Ttl};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use crate::net::words::EventReport;
use crate::node::{LeaderReport, LockReport};
use crate::page::lock::{Lock, text};
use crate::request::Holder as RequestHolder;

/// A session to be opened.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenSession {
    pub(super) ttl_ms: Ttl,
    pub(super) label: Option<String>,
}

/// An open session.
#[derive(Debug, Serialize)]
pub(super) struct Session {
    pub(super) session: SessionId,
    pub(super) ttl_ms: Ttl,
}

/// Sessions to be kept alive.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeepAlive {
    pub(super) sessions: Vec<SessionId>,
}

/// Sessions, in the order in which they were named.
#[derive(Debug, Serialize)]
pub(super) struct KeptAlive {
    pub(super) sessions: Vec<Kept>,
}

/// The result of a keep-alive.
#[derive(Debug, Serialize)]
pub(super) struct Kept {
    pub(super) session: SessionId,
    /// `None` if it has ended.
    pub(super) ttl_ms: Option<Ttl>,
}

/// The mode in which locks are requested.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum HowHeld {
    /// By one session alone.
    #[default]
    Exclusive,
    /// Together with other shared holders.
    Shared,
    /// By some permits of a semaphore.
    Permits(Permits),
}

/// Some permits of a semaphore.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Permits {
    count: u32,
    /// How many the semaphore has. All requests for it must say the same.
    of: u32,
}

impl From<HowHeld> for Mode {
    fn from(how: HowHeld) -> Mode {
        match how {
            HowHeld::Exclusive => Mode::Exclusive,
            HowHeld::Shared => Mode::Shared,
            HowHeld::Permits(Permits { count, of }) => Mode::Permits { count, of },
        }
    }
}

/// Locks to be acquired: all of them, or none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    pub(super) locks: Vec<LockName>,
    pub(super) session: Option<SessionId>,
    pub(super) ttl_ms: Option<Ttl>,
    #[serde(default)]
    pub(super) mode: HowHeld,
    pub(super) wait_ms: Option<u64>,
    pub(super) delay_ms: Option<Delay>,
    pub(super) request: Option<RequestNo>,
}

/// Locks that are held.
#[derive(Debug, Serialize)]
pub(super) struct Granted {
    /// The fencing token: present it to the resource. Below 2^53.
    pub(super) token: Token,
    pub(super) session: SessionId,
    pub(super) ttl_ms: u64,
    pub(super) locks: Vec<LockName>,
}

/// A grant to be released.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    pub(super) lock: LockName,
    pub(super) token: Token,
    pub(super) session: Option<SessionId>,
    pub(super) request: Option<RequestNo>,
}

/// A token to be signed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sign {
    pub(super) lock: LockName,
    pub(super) token: Token,
    pub(super) session: Option<SessionId>,
}

/// A token that was signed.
#[derive(Debug, Serialize)]
pub(super) struct Signed {
    /// A JWS in compact form (RFC 7515). It works for every bearer: send it only to the resource.
    pub(super) signed_token: String,
}

/// A wait to be ended.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    pub(super) session: SessionId,
    pub(super) request: RequestNo,
}

/// The result of a cancel.
#[derive(Debug, Serialize)]
pub(super) struct Cancelled {
    /// The token, if it was granted before: then it is held, and is to be released. Else null.
    pub(super) granted: Option<Token>,
}

/// A lock to be force-released.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Break {
    pub(super) lock: LockName,
    /// Only this grant; without it, all grants of the lock.
    pub(super) token: Option<Token>,
    pub(super) reason: String,
    /// The operator; by default, the client's address. It is recorded.
    pub(super) by: Option<String>,
}

/// Tokens to be raised.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RaiseTokens {
    pub(super) above: Token,
}

/// Whether tokens were raised.
#[derive(Debug, Serialize)]
pub(super) struct TokensRaised {
    /// False if they were above it already.
    pub(super) raised: bool,
}

/// A lock that was force-released.
#[derive(Debug, Serialize)]
pub(super) struct Broken {
    pub(super) grants: u32,
    /// Seal the resource with this token: it then refuses the former holders.
    pub(super) moved_to: Token,
}

/// A semaphore that is to have another number of permits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resize {
    pub(super) lock: LockName,
    pub(super) permits: u32,
}

/// A candidacy in an election.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Campaign {
    pub(super) name: LockName,
    pub(super) session: Option<SessionId>,
    pub(super) ttl_ms: Option<Ttl>,
    pub(super) value: String,
    pub(super) wait_ms: Option<u64>,
    pub(super) request: Option<RequestNo>,
}

/// Another value that a leader publishes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Publish {
    pub(super) name: LockName,
    pub(super) session: SessionId,
    pub(super) token: Token,
    pub(super) value: String,
}

/// Which lock or election.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    pub(super) name: LockName,
}

/// Which lock, and which of its holders and waiters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shown {
    pub(super) name: LockName,
    #[serde(default)]
    pub(super) cursor: u32,
    pub(super) count: Option<u32>,
}

/// Which locks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) prefix: String,
    #[serde(default)]
    pub(super) cursor: u32,
    pub(super) count: Option<u32>,
}

/// Which events.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prefix {
    #[serde(default)]
    pub(super) prefix: String,
}

/// Some of the locks in use.
#[derive(Debug, Serialize)]
pub(super) struct Locks {
    /// Where the next page begins; 0 after the last.
    pub(super) cursor: u32,
    /// May be empty although more follow.
    pub(super) locks: Vec<Lock>,
}

impl Locks {
    pub(super) fn new(cursor: u32, locks: Vec<LockReport>) -> Locks {
        Locks { cursor, locks: locks.into_iter().map(Into::into).collect() }
    }
}

impl From<LeaderReport> for Leader {
    fn from(report: LeaderReport) -> Leader {
        let (value, label) = (text(&report.value), report.label.as_str().to_owned());
        Leader { value, token: report.token.get(), session: report.session.get(), label }
    }
}

/// An election.
#[derive(Debug, Serialize)]
pub(super) struct Election {
    pub(super) leader: Option<Leader>,
}

/// A leader.
#[derive(Debug, Serialize)]
pub(super) struct Leader {
    /// The value that it publishes. Bytes that are not UTF-8 are shown as U+FFFD.
    pub(super) value: String,
    pub(super) token: u64,
    pub(super) session: u64,
    pub(super) label: String,
}

/// Something that happened to locks; or `missed`, for a watcher that reads too slowly.
#[derive(Debug, Default, Serialize)]
pub(super) struct Event {
    /// `queued`, `left-queue`, `granted`, `ended`, `withheld`, `delay-ended`, `published`, `resized` or `missed`.
    pub(super) event: String,
    pub(super) locks: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) how: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
}

impl Event {
    pub(super) fn of(event: &palisade_core::Event) -> Event {
        let report = EventReport::of(event).unwrap_or_default();
        Event {
            event: report.kind.to_owned(),
            locks: report.locks.iter().map(|lock| lock.as_str().to_owned()).collect(),
            session: report.session.map(SessionId::get),
            token: report.token.map(Token::get),
            why: report.why,
            how: report.how,
            delay_ms: report.delay_ms,
            value: report.value.as_ref().map(text),
            limit: report.limit,
            count: None,
        }
    }

    pub(super) fn missed(count: u64) -> Event {
        Event { event: "missed".to_owned(), count: Some(count), ..Event::default() }
    }
}

/// The service is healthy.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    /// Always true: an unhealthy service answers with a problem, or not at all.
    pub(super) ok: bool,
}

/// Returns the session that will hold the locks: an open one, or one that is opened for the request.
pub(super) fn holder(
    session: Option<SessionId>,
    ttl: Option<Ttl>,
    number: Option<RequestNo>,
) -> Result<RequestHolder, Problem> {
    match (session, ttl) {
        (Some(session), None) => Ok(RequestHolder::Session(session)),
        (None, Some(_)) if number.is_some() => {
            Err(Problem::bad("request: a number needs a session in which a repeat can be known"))
        }
        (None, Some(ttl)) => Ok(RequestHolder::NewSession(ttl)),
        _ => Err(Problem::bad("name the holder: either session or ttl_ms")),
    }
}
