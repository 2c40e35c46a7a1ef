//! Answers and refusals: what a command returns to its caller.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Events, Limit, LockName, RequestNo, SessionId, Ticket, Token};

/// The outcome of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// For the caller. A refusal changed nothing.
    pub answer: Result<Answer, Refusal>,
    /// For all other clients, in the order in which they happened. Empty for a repeat.
    pub events: Events,
}

/// A command that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The session is open.
    Opened {
        /// Its number.
        session: SessionId,
    },
    /// The lock is held.
    Granted {
        /// The grant's token.
        token: Token,
    },
    /// The request is in the queue. An [`Event::Granted`](crate::Event::Granted) with this ticket follows when it is
    /// granted.
    Queued {
        /// Identifies the waiting request.
        ticket: Ticket,
    },
    /// The lock is not available now, and the request does not wait.
    Busy,
    /// The grants were ended by a force-release.
    Forced {
        /// How many grants ended.
        grants: u32,
        /// A token above those of the ended grants and below that of any later one: seal resources with it. It is above
        /// the tokens of holders that keep the lock too: a seal with it refuses them.
        moved_to: Token,
    },
    /// The command was carried out, and returns nothing else.
    Done,
    /// Every later token is above the one in the command.
    Raised {
        /// The last token before this command, 0 for none.
        last: u64,
    },
    /// Grants were found by their secret, and released or extended.
    Matched {
        /// How many of the command's locks they hold or held; 0 if nothing was changed.
        locks: u32,
        /// How many of the command's locks are held otherwise.
        others: u32,
    },
}

/// Why a command was refused. It changed nothing, except that a repeat of the same request gets the same refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum Refusal {
    /// The session does not exist: never opened, closed, or expired.
    #[error("session {session} does not exist: it was closed or has expired; open a new one")]
    NoSuchSession {
        /// The session that the command named.
        session: SessionId,
    },
    /// The session was opened for one request.
    #[error(
        "session {session} was opened for one request, and cannot make another or number it; open a session for several"
    )]
    ForOneRequest {
        /// Which session.
        session: SessionId,
    },
    /// There is a session with this id.
    #[error("there is a session {session} already; open one with another id")]
    SessionExists {
        /// The id that was drawn.
        session: SessionId,
    },
    /// The lock has no holder and no waiter.
    #[error("lock '{lock}' is neither held nor wanted by anyone")]
    NoSuchLock {
        /// The lock that the command named.
        lock: LockName,
    },
    /// A forced release must have a reason, since it is recorded.
    #[error("lock '{lock}' is not released by force without a reason")]
    NoReason {
        /// The lock that the command named.
        lock: LockName,
    },
    /// The lock has no holder, so there is nothing to force-release.
    #[error("lock '{lock}' is not held by anyone")]
    NoHolder {
        /// The lock that the command named.
        lock: LockName,
    },
    /// Something is larger, or more, than the limits allow.
    #[error("{limit} is limited to {max}, this would be {value}")]
    OverLimit {
        /// Which limit.
        limit: Limit,
        /// Its value.
        max: u64,
        /// What was asked for.
        value: u64,
    },
    /// Something is smaller than the limits allow.
    #[error("{limit} must be at least {min}, this is {value}")]
    UnderLimit {
        /// Which limit.
        limit: Limit,
        /// Its value.
        min: u64,
        /// What was asked for.
        value: u64,
    },
    /// The session holds the lock already and would wait for itself.
    #[error("lock '{lock}' is already held by this session with token {token}; release it first")]
    AlreadyHeld {
        /// Which lock.
        lock: LockName,
        /// The token it is held with.
        token: Token,
    },
    /// A request named no lock.
    #[error("no lock was named")]
    NoLocks,
    /// A request named a lock twice.
    #[error("lock '{lock}' is named twice in one request")]
    NamedTwice {
        /// Which lock.
        lock: LockName,
    },
    /// The lock is in use as a semaphore, or the semaphore as a lock.
    #[error("'{lock}' is in use as a {is}, it cannot be used as a {asked} at the same time")]
    WrongKind {
        /// Which lock.
        lock: LockName,
        /// What it is.
        is: crate::Kind,
        /// What the request asked for.
        asked: crate::Kind,
    },
    /// A semaphore in use has another number of permits.
    #[error("semaphore '{lock}' is in use with {limit} permits, not {asked}; use {limit}, or wait until it is free")]
    LimitDiffers {
        /// Which semaphore.
        lock: LockName,
        /// Its permits.
        limit: u32,
        /// The permits that the request gave it.
        asked: u32,
    },
    /// The number of permits is not between 1 and the semaphore's limit.
    #[error("{count} permits of {of} cannot be had: take between 1 and all of them")]
    BadPermits {
        /// How many were asked for.
        count: u32,
        /// Of how many.
        of: u32,
    },
    /// A semaphore cannot have this number of permits.
    #[error("a semaphore has at least 1 and at most 4294967294 permits, not {limit}")]
    BadLimit {
        /// How many were asked for.
        limit: u32,
    },
    /// The request is not for a single exclusive lock, and only such a lock can have a value.
    #[error("a value can be published for one exclusive lock only")]
    ValueNotPossible,
    /// The token does not hold the lock, or does not hold it any more.
    #[error(
        "token {token} does not hold lock '{lock}': it was released or taken away, its session ended, or it is \
         another lock's"
    )]
    NotHeld {
        /// Which lock.
        lock: LockName,
        /// The token that was presented.
        token: Token,
    },
    /// The grant is held, so it has no lock-delay to end.
    #[error("token {token} holds lock '{lock}': there is no delay to end")]
    NotWithheld {
        /// Which lock.
        lock: LockName,
        /// The token that was named.
        token: Token,
    },
    /// The lock's grant has no secret.
    #[error("lock '{lock}' was not taken with a secret; release it with its token, or take it away by force")]
    NoSecret {
        /// Which lock.
        lock: LockName,
    },
    /// A grant holds another lock as well, and the command does not name it.
    #[error("lock '{lock}' was taken in the same request; name all locks of that request")]
    PartOfGrant {
        /// The lock that the command does not name.
        lock: LockName,
    },
    /// A secret can be set for exclusive locks only.
    #[error("only exclusive locks can be taken with a secret")]
    SecretNotPossible,
    /// The token was never given.
    #[error("token {token} was never given; the last one given is {last}")]
    NeverGranted {
        /// The token that was presented.
        token: Token,
        /// The last token given, 0 for none.
        last: u64,
    },
    /// The grant belongs to another session.
    #[error("token {token} of lock '{lock}' belongs to another session")]
    OtherSession {
        /// The lock that was named.
        lock: LockName,
        /// The token that was presented.
        token: Token,
    },
    /// The request was granted before it could be cancelled.
    #[error("too late to cancel: the lock was granted with token {token}; release it")]
    AlreadyGranted {
        /// The grant's token.
        token: Token,
    },
    /// There is no such waiting request.
    #[error("there is no such request in a queue")]
    NotWaiting,
    /// The request was cancelled, before or after it arrived.
    #[error("request {number} was cancelled")]
    Withdrawn {
        /// The request's number.
        number: RequestNo,
    },
    /// The request's number was used for another request.
    #[error("request number {number} was used for a different request; number requests upwards")]
    NumberReused {
        /// The number.
        number: RequestNo,
    },
    /// The request is too old to know whether it is a repeat.
    #[error(
        "request {number} is too old to tell whether it was carried out; look at the lock, then use a new number"
    )]
    NumberForgotten {
        /// The number.
        number: RequestNo,
    },
    /// A queued request wants more permits than the semaphore now has.
    #[error("semaphore '{lock}' was resized to {limit} permits, fewer than this request waits for")]
    ResizedBelow {
        /// Which semaphore.
        lock: LockName,
        /// Its permits now.
        limit: u32,
    },
    /// All tokens have been given.
    #[error("no token is left: all {max} have been given")]
    TokensExhausted {
        /// The last possible token.
        max: Token,
    },
    /// Raising tokens above this one would leave too few.
    #[error("tokens can be raised above {max} at most, this is {above}: half of all tokens must be left")]
    RaiseTooHigh {
        /// The token that was named.
        above: Token,
        /// The highest one that is accepted.
        max: Token,
    },
}
