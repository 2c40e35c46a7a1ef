//! The audit log: logins, refusals, and force-releases. Texts of clients are escaped, so that no client can forge a
//! line.

use std::sync::Arc;

use palisade_core::{Refusal, Token};

use super::rate_limit::{RateLimiter, RateLimiters};
use super::words::refusal_code;
use crate::node::{AuditEvent, Audited, BreakRecord, Protocol, Refused, RequestContext};
use crate::request::ClusterRequest;

/// The target of all audit records.
const TARGET: &str = "palisade::audit";

/// Writes the audit records of one client.
#[derive(Debug)]
pub(crate) struct Audit {
    peer: Arc<str>,
    user: Option<Arc<str>>,
    limiter: Arc<RateLimiter>,
}

impl Audit {
    /// Returns the audit log of a client at this address, and of this user if it has logged in.
    pub(crate) fn new(peer: Arc<str>, user: Option<&str>, limiter: Arc<RateLimiter>) -> Audit {
        Audit { peer, user: user.map(Into::into), limiter }
    }

    /// Returns the audit log of a request's client.
    pub(super) fn of(context: &RequestContext, limiters: &RateLimiters) -> Audit {
        let user = context.principal.user_name();
        let limiter = match user {
            Some(user) => limiters.of_user(user),
            None => limiters.of_address(context.address),
        };
        Audit::new(context.peer.clone(), user, limiter)
    }

    /// Returns the audit log of the same client after its login as this user.
    pub(crate) fn of_user(&self, user: &str, limiter: Arc<RateLimiter>) -> Audit {
        Audit::new(self.peer.clone(), Some(user), limiter)
    }

    pub(crate) fn peer(&self) -> &Arc<str> {
        &self.peer
    }

    pub(crate) fn logged_in(&self, user: &str, how: &str) {
        tracing::debug!(target: TARGET, peer = &*self.peer, user, how, "logged in");
    }

    /// Records a failed login. The client has chosen the name, so it is escaped.
    pub(super) fn login_failed(&self, name: &[u8]) {
        let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
        self.log(|| tracing::info!(target: TARGET, peer = &*self.peer, ?name, "login failed"));
    }

    pub(crate) fn denied(&self, user: &str, why: &str) {
        self.log(|| tracing::info!(target: TARGET, peer = &*self.peer, user, why, "denied"));
    }

    /// Records a request that the user has no right to.
    pub(crate) fn refused(&self, context: &RequestContext, refused: &Refused) {
        if let Refused::Denied(why) = refused {
            self.denied(context.principal.user_name().unwrap_or_default(), why);
        }
    }

    pub(crate) fn tls_failed(&self, why: &str) {
        self.log(|| tracing::info!(target: TARGET, peer = &*self.peer, why, "the TLS handshake failed"));
    }

    pub(super) fn does_not_read(&self, bytes: usize) {
        let (peer, user) = (&*self.peer, self.user.as_deref());
        self.log(|| tracing::warn!(peer, user, bytes, "a client that does not read its replies is disconnected"));
    }

    /// Records what the node reports.
    pub(super) fn record(&self, event: &AuditEvent) {
        let over = event.context.protocol;
        match &event.what {
            Audited::Denied(why) => self.denied(event.context.principal.user_name().unwrap_or_default(), why),
            Audited::ForeignGrant(refusal) => self.foreign_grant(over, refusal),
            Audited::Break(record) => self.force_release(over, record),
            Audited::RaiseTokens { above, last } => self.tokens_raised(over, *above, *last),
        }
    }

    /// Records that an operator changes the cluster.
    pub(crate) fn administered(&self, request: &ClusterRequest) {
        let (peer, user) = (&*self.peer, self.user.as_deref());
        tracing::warn!(target: TARGET, what = "cluster", user, peer, ?request, "an operator changes or copies the cluster");
    }

    fn foreign_grant(&self, over: Protocol, refusal: &Refusal) {
        let Refusal::OtherSession { lock, token } = refusal else { return };
        let (peer, user, over, lock) = (&*self.peer, self.user.as_deref(), over.as_str(), escaped(lock.as_str()));
        self.log(|| {
            tracing::warn!(
                target: TARGET, what = "use", outcome = refusal_code(refusal), user, peer, over, lock,
                token = token.get(), "a request named the grant of another session"
            );
        });
    }

    /// Records a force-release always, and a refused one as often as the rate limit allows.
    fn force_release(&self, over: Protocol, record: &BreakRecord) {
        let (peer, user, over) = (&*self.peer, self.user.as_deref(), over.as_str());
        let only = record.only.map(Token::get);
        let [lock, by, reason] = [record.lock.as_str(), record.by.as_str(), record.reason.as_str()].map(escaped);
        match &record.outcome {
            Ok((grants, moved_to)) => tracing::warn!(
                target: TARGET, what = "break", outcome = "done", user, peer, over, lock, by, reason, only, grants,
                moved_to = moved_to.get(), "a lock was taken away"
            ),
            Err(refusal) => self.log(|| {
                tracing::warn!(
                    target: TARGET, what = "break", outcome = refusal_code(refusal), user, peer, over, lock, by,
                    reason, only, "a lock was not taken away"
                );
            }),
        }
    }

    fn tokens_raised(&self, over: Protocol, above: Token, last: u64) {
        let (peer, user, over, above) = (&*self.peer, self.user.as_deref(), over.as_str(), above.get());
        let outcome = if last < above { "done" } else { "already above" };
        tracing::warn!(
            target: TARGET, what = "raise tokens", outcome, user, peer, over, above, last, "tokens were raised"
        );
    }

    fn log(&self, log: impl FnOnce()) {
        let (peer, user) = (&*self.peer, self.user.as_deref());
        let suppressed = |count| tracing::info!(target: TARGET, peer, user, suppressed = count, "more of the same");
        self.limiter.log(suppressed, log);
    }
}

fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}
