//! The bodies of requests and responses, as JSON.

use palisade_core::{Delay, LockName, Mode, RequestNo, SessionId, Token, Ttl};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;
use crate::net::words::EventReport;
use crate::node::{LeaderReport, LockReport};
use crate::page::lock::{Lock, text};
use crate::request::Holder as RequestHolder;

/// A session to be opened.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenSession {
    /// How long it lives without a keep-alive.
    #[schema(value_type = u64, example = 10_000)]
    pub(super) ttl_ms: Ttl,
    /// Its display name; by default the client's address.
    pub(super) label: Option<String>,
}

/// An open session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Session {
    /// Its number.
    #[schema(value_type = u64)]
    pub(super) session: SessionId,
    /// How long it lives without a keep-alive.
    #[schema(value_type = u64)]
    pub(super) ttl_ms: Ttl,
}

/// Sessions to be kept alive.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeepAlive {
    /// Their numbers.
    #[schema(value_type = Vec<u64>)]
    pub(super) sessions: Vec<SessionId>,
}

/// Sessions, in the order in which they were named.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeptAlive {
    /// One for each that was named.
    pub(super) sessions: Vec<Kept>,
}

/// The result of a keep-alive.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Kept {
    /// Its number.
    #[schema(value_type = u64)]
    pub(super) session: SessionId,
    /// How long it lives from now on; null if it has ended.
    #[schema(value_type = Option<u64>)]
    pub(super) ttl_ms: Option<Ttl>,
}

/// The mode in which locks are requested.
#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
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
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Permits {
    /// How many are taken at once.
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    /// Their names.
    #[schema(value_type = Vec<String>, example = json!(["orders/42"]))]
    pub(super) locks: Vec<LockName>,
    /// The session that is to hold them; or else `ttl_ms`.
    #[schema(value_type = Option<u64>)]
    pub(super) session: Option<SessionId>,
    /// The TTL of a session that is opened for this request.
    #[schema(value_type = Option<u64>)]
    pub(super) ttl_ms: Option<Ttl>,
    /// The mode; exclusive by default.
    #[serde(default)]
    #[schema(inline = false)]
    pub(super) mode: HowHeld,
    /// How long to wait for them; without it, not at all.
    pub(super) wait_ms: Option<u64>,
    /// The lock-delay: how long they stay withheld after an expiry of the session.
    #[schema(value_type = Option<u64>)]
    pub(super) delay_ms: Option<Delay>,
    /// The number by which a repeat of this request is recognised; only with `session`.
    #[schema(value_type = Option<u64>)]
    pub(super) request: Option<RequestNo>,
}

/// Locks that are held.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Granted {
    /// The fencing token: present it to the resource. Below 2^53.
    #[schema(value_type = u64, example = 33)]
    pub(super) token: Token,
    /// The session that holds them.
    #[schema(value_type = u64)]
    pub(super) session: SessionId,
    /// How long they are held without the session being kept alive.
    pub(super) ttl_ms: u64,
    /// Their names.
    #[schema(value_type = Vec<String>)]
    pub(super) locks: Vec<LockName>,
}

/// A grant to be released.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    /// A lock of the grant.
    #[schema(value_type = String)]
    pub(super) lock: LockName,
    /// The grant's token.
    #[schema(value_type = u64)]
    pub(super) token: Token,
    /// The session that must hold it.
    #[schema(value_type = Option<u64>)]
    pub(super) session: Option<SessionId>,
    /// The number by which a repeat of this request is recognised; only with `session`.
    #[schema(value_type = Option<u64>)]
    pub(super) request: Option<RequestNo>,
}

/// A token to be signed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sign {
    /// The lock that it holds.
    #[schema(value_type = String)]
    pub(super) lock: LockName,
    /// The token.
    #[schema(value_type = u64)]
    pub(super) token: Token,
    /// The session that must hold it.
    #[schema(value_type = Option<u64>)]
    pub(super) session: Option<SessionId>,
}

/// A token that was signed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Signed {
    /// A JWS in compact form (RFC 7515). It works for every bearer: send it only to the resource.
    pub(super) signed_token: String,
}

/// A wait to be ended.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    /// The session that waits.
    #[schema(value_type = u64)]
    pub(super) session: SessionId,
    /// The number of the request that waits.
    #[schema(value_type = u64)]
    pub(super) request: RequestNo,
}

/// The result of a cancel.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Cancelled {
    /// The token, if it was granted before: then it is held, and is to be released. Else null.
    #[schema(value_type = Option<u64>)]
    pub(super) granted: Option<Token>,
}

/// A lock to be force-released.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Break {
    /// Which one.
    #[schema(value_type = String)]
    pub(super) lock: LockName,
    /// Only this grant; without it, all grants of the lock.
    #[schema(value_type = Option<u64>)]
    pub(super) token: Option<Token>,
    /// Why. It is recorded.
    pub(super) reason: String,
    /// The operator; by default, the client's address. It is recorded.
    pub(super) by: Option<String>,
}

/// Tokens to be raised.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RaiseTokens {
    /// Every later token is above this one. At most 4503599627370496.
    #[schema(value_type = u64)]
    pub(super) above: Token,
}

/// Whether tokens were raised.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokensRaised {
    /// False if they were above it already.
    pub(super) raised: bool,
}

/// A lock that was force-released.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Broken {
    /// How many grants ended.
    pub(super) grants: u32,
    /// Seal the resource with this token: it then refuses the former holders.
    #[schema(value_type = u64)]
    pub(super) moved_to: Token,
}

/// A semaphore that is to have another number of permits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resize {
    /// Which one.
    #[schema(value_type = String)]
    pub(super) lock: LockName,
    /// Its permits from now on.
    pub(super) permits: u32,
}

/// A candidacy in an election.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Campaign {
    /// Which one.
    #[schema(value_type = String, example = "scheduler")]
    pub(super) name: LockName,
    /// The session of the candidate; or else `ttl_ms`.
    #[schema(value_type = Option<u64>)]
    pub(super) session: Option<SessionId>,
    /// The TTL of a session that is opened for this request.
    #[schema(value_type = Option<u64>)]
    pub(super) ttl_ms: Option<Ttl>,
    /// What it publishes as the leader.
    pub(super) value: String,
    /// How long to wait for the leadership; without it, not at all.
    pub(super) wait_ms: Option<u64>,
    /// The number by which a repeat of this request is recognised; only with `session`.
    #[schema(value_type = Option<u64>)]
    pub(super) request: Option<RequestNo>,
}

/// Another value that a leader publishes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Publish {
    /// Which election.
    #[schema(value_type = String)]
    pub(super) name: LockName,
    /// The leader's session.
    #[schema(value_type = u64)]
    pub(super) session: SessionId,
    /// The leader's token.
    #[schema(value_type = u64)]
    pub(super) token: Token,
    /// What it publishes from now on.
    pub(super) value: String,
}

/// Which lock or election.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Named {
    /// Its name.
    #[param(value_type = String)]
    pub(super) name: LockName,
}

/// Which lock, and which of its holders and waiters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Shown {
    /// Its name.
    #[param(value_type = String)]
    pub(super) name: LockName,
    /// The cursor of the previous page.
    #[serde(default)]
    pub(super) cursor: u32,
    /// How many holders and waiters at most, up to 1000, which is the default.
    pub(super) count: Option<u32>,
}

/// Which locks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Only those whose names begin like this.
    #[serde(default)]
    pub(super) prefix: String,
    /// The cursor of the previous page.
    #[serde(default)]
    pub(super) cursor: u32,
    /// The most locks, up to 1000; by default 100.
    pub(super) count: Option<u32>,
}

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Prefix {
    /// Only of locks whose names begin like this.
    #[serde(default)]
    pub(super) prefix: String,
}

/// Some of the locks in use.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Locks {
    /// Where the next page begins; 0 after the last.
    cursor: u32,
    /// May be empty although more follow.
    locks: Vec<Lock>,
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
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Election {
    /// Null without a leader.
    pub(super) leader: Option<Leader>,
}

/// A leader.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Leader {
    /// The value that it publishes. Bytes that are not UTF-8 are shown as U+FFFD.
    value: String,
    token: u64,
    session: u64,
    label: String,
}

/// Something that happened to locks; or `missed`, for a watcher that reads too slowly.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct Event {
    /// `queued`, `left-queue`, `granted`, `ended`, `withheld`, `delay-ended`, `published`, `resized` or `missed`.
    event: String,
    /// Which locks.
    locks: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// Why a request left the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// How a grant ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// How many events were missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
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
#[derive(Debug, Serialize, ToSchema)]
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
