//! Errors: the failed operation, the lock, the engine, the resulting state and the remedy.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use palisade_core::{BadName, BadNumber, Refusal, SealError};

use crate::Loss;
use crate::engine::{Failure, Level};

/// An operation that failed. That a lock is not available is not an error: it is `Ok(None)`.
///
/// `Debug` prints the message and its causes, since `main` uses it to print the error that it returns.
pub struct Error {
    kind: Box<ErrorKind>,
    engine: &'static str,
    operation: &'static str,
    lock: Option<String>,
}

/// The kind of a failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is invalid: correct the calling code. Nothing has changed.
    Misuse(Misuse),
    /// The engine could not be reached, or failed.
    Outage {
        /// The failure and its remedy.
        what: String,
        /// Whether the operation may have taken effect.
        may_have_taken_effect: bool,
        /// Whether it may succeed later without a change by the operator.
        is_retryable: bool,
        /// The underlying error.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The engine refuses this client's credentials or rights; the operator has to change them. Nothing has changed.
    Denied {
        /// The missing right and the remedy.
        what: String,
    },
    /// The lock, or the session that requested it, was lost.
    Lost(Loss),
    /// A resource could not be sealed, so the lock was not handed out. Nothing was read or written under it.
    NotSealed {
        /// The resource and the cause.
        error: SealError,
        /// Whether the lock was released. If not, the release is retried in the background until it succeeds or the
        /// session ends.
        is_released: bool,
    },
    /// The engine does not offer this feature. Nothing has changed.
    Unsupported {
        /// The missing feature and the alternative.
        what: String,
    },
}

/// The mistake in a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The lock's name is invalid.
    Name(BadName),
    /// A number is out of range.
    Number(BadNumber),
    /// The lock's state or kind does not allow it.
    Refused(Refusal),
    /// No engine has this URL.
    Url(String),
    /// An argument is invalid, for this reason.
    Invalid(String),
    /// Several locks are held, and the call does not name one.
    WhichLock,
    /// The client has no session, because it was connected as an observer.
    Observer,
    /// The lock is to stay held for longer than a keep-alive can promise.
    LongerThanLease {
        /// The time that is needed.
        needed: Duration,
        /// How long the session certainly lives after a keep-alive.
        lease: Duration,
    },
    /// This client is a member already: its session can hold each partition once only.
    AlreadyMember,
    /// Members of the same name share another number of partitions.
    PartitionCount {
        /// The number in this call.
        ours: u32,
        /// The number of a member.
        theirs: u32,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::Name(bad) => bad.fmt(f),
            Misuse::Number(bad) => bad.fmt(f),
            Misuse::Refused(refusal) => refusal.fmt(f),
            Misuse::Url(what) | Misuse::Invalid(what) => f.write_str(what),
            Misuse::WhichLock => f.write_str("several locks are held; say which one with signed_token_for(lock)"),
            Misuse::Observer => f.write_str("an observer has no session to hold it; connect without .observer()"),
            Misuse::LongerThanLease { needed, lease } => {
                write!(f, "{needed:?} are needed, and a keep-alive is good for {lease:?}; connect with a longer TTL")
            }
            Misuse::AlreadyMember => f.write_str("this client is a member already; connect another client"),
            Misuse::PartitionCount { ours, theirs } => write!(
                f,
                "its members share {theirs} partitions, not {ours}; use the same number, or another name, or stop all \
                 members before changing it"
            ),
        }
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, engine: &'static str, operation: &'static str) -> Error {
        Error { kind: Box::new(kind), engine, operation, lock: None }
    }

    pub(crate) fn on(self, lock: impl Into<String>) -> Error {
        Error { lock: Some(lock.into()), ..self }
    }

    /// Returns this error of an operation of which an earlier step may have taken effect.
    #[cfg(any(feature = "embedded", feature = "postgres", feature = "redis", feature = "object-store"))]
    pub(crate) fn after_possible_effect(mut self) -> Error {
        match &mut *self.kind {
            ErrorKind::Outage { may_have_taken_effect, .. } => *may_have_taken_effect = true,
            _ => {
                let (what, source) = (self.to_string(), None);
                *self.kind = ErrorKind::Outage { what, may_have_taken_effect: true, is_retryable: false, source };
            }
        }
        self
    }

    /// Returns the kind of the failure.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let error = palisade.lock("").acquire().await.expect_err("a lock has a name");
    /// assert!(matches!(error.kind(), palisade::ErrorKind::Misuse(_)));
    /// # Ok(()) }
    /// ```
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns the engine's name, which is empty if the URL names no engine.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let error = palisade.lock("").acquire().await.expect_err("a lock has a name");
    /// assert_eq!(error.engine(), "memory");
    /// # Ok(()) }
    /// ```
    pub fn engine(&self) -> &str {
        self.engine
    }

    /// Returns the operation that failed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let error = palisade.lock("").acquire().await.expect_err("a lock has a name");
    /// assert_eq!(error.operation(), "acquire");
    /// # Ok(()) }
    /// ```
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// Returns the lock that the operation was for.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let error = palisade.lock("").acquire().await.expect_err("a lock has a name");
    /// assert_eq!(error.lock(), Some(""));
    /// # Ok(()) }
    /// ```
    pub fn lock(&self) -> Option<&str> {
        self.lock.as_deref()
    }

    /// Returns why the lock was lost, if it was.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let error = palisade.lock("").acquire().await.expect_err("a lock has a name");
    /// assert_eq!(error.loss(), None);
    /// # Ok(()) }
    /// ```
    pub fn loss(&self) -> Option<&Loss> {
        match &*self.kind {
            ErrorKind::Lost(loss) => Some(loss),
            _ => None,
        }
    }

    /// Returns whether the same call may succeed later without a change by the operator.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let error = palisade.lock("").acquire().await.expect_err("a lock has a name");
    /// assert!(!error.is_retryable());
    /// # Ok(()) }
    /// ```
    pub fn is_retryable(&self) -> bool {
        match &*self.kind {
            ErrorKind::Misuse(_) | ErrorKind::Denied { .. } | ErrorKind::Unsupported { .. } => false,
            ErrorKind::Outage { is_retryable, .. } => *is_retryable,
            // The next grant has a newer token.
            ErrorKind::NotSealed { error, .. } => error.is_retryable || error.superseded_by.is_some(),
            ErrorKind::Lost(Loss::SessionClosed | Loss::Released | Loss::Detached | Loss::DataLost { .. }) => false,
            ErrorKind::Lost(_) => true,
        }
    }

    /// Returns whether the call may have taken effect although it failed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let error = palisade.lock("").acquire().await.expect_err("a lock has a name");
    /// assert!(!error.may_have_taken_effect());
    /// # Ok(()) }
    /// ```
    pub fn may_have_taken_effect(&self) -> bool {
        match &*self.kind {
            ErrorKind::Misuse(_) | ErrorKind::Denied { .. } | ErrorKind::Unsupported { .. } => false,
            ErrorKind::Outage { may_have_taken_effect, .. } => *may_have_taken_effect,
            ErrorKind::NotSealed { is_released, .. } => !is_released,
            // The grants of a lost session end with it.
            ErrorKind::Lost(_) => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.operation)?;
        if let Some(lock) = &self.lock {
            write!(f, " '{}'", lock.escape_debug())?;
        }
        if !self.engine.is_empty() {
            write!(f, " on {}", self.engine)?;
        }
        f.write_str(": ")?;
        match &*self.kind {
            ErrorKind::Misuse(misuse) => misuse.fmt(f),
            ErrorKind::Lost(loss @ (Loss::SessionClosed | Loss::Detached)) => write!(f, "{loss}; connect again"),
            ErrorKind::Lost(loss @ Loss::Released) => write!(f, "{loss}; acquire it again first"),
            ErrorKind::Lost(loss @ Loss::DataLost { .. }) => {
                write!(f, "{loss}; stop the work, check your data, then connect again")
            }
            ErrorKind::Lost(loss) => write!(f, "{loss}; stop the work and acquire it again"),
            ErrorKind::Denied { what } => write!(f, "{what} (nothing has changed)"),
            ErrorKind::Unsupported { what } => f.write_str(what),
            ErrorKind::NotSealed { error, is_released: true } => write!(f, "{error}; the lock was released"),
            ErrorKind::NotSealed { error, .. } => {
                write!(f, "{error}; the engine does not answer, and the release is being retried in the background")
            }
            ErrorKind::Outage { what, may_have_taken_effect, .. } => {
                f.write_str(what)?;
                f.write_str(if *may_have_taken_effect {
                    " (it may have taken effect)"
                } else {
                    " (nothing has changed)"
                })
            }
        }
    }
}

/// The message of `Display` and its causes.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        palisade_core::write_with_causes(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.kind {
            ErrorKind::Outage { source: Some(source), .. } => Some(&**source),
            ErrorKind::NotSealed { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<Failure> for ErrorKind {
    fn from(failure: Failure) -> ErrorKind {
        match failure {
            Failure::Refused(refusal) => ErrorKind::Misuse(Misuse::Refused(refusal)),
            Failure::SessionEnded => ErrorKind::Lost(Loss::Expired),
            Failure::Denied(what) => ErrorKind::Denied { what },
            Failure::Unavailable(unavailable) => ErrorKind::Outage {
                what: unavailable.what,
                may_have_taken_effect: unavailable.may_have_taken_effect,
                is_retryable: unavailable.is_retryable,
                source: unavailable.source,
            },
        }
    }
}

/// Returns the refusal of a correctness lock, or of a recipe that needs tokens, on an engine that cannot fence.
pub(crate) fn not_fenced(level: Level, needs_token: bool) -> ErrorKind {
    let (why, accept_failover) = match level {
        Level::Advisory => ("no token can exist, as it has no durable counter that numbers its grants", ""),
        Level::HealthyOnly | Level::Fenced => (
            "it cannot issue tokens that always rise",
            ", or .dangerous_accept_failover() if lower tokens after a failover are acceptable",
        ),
    };
    // The token identifies a leader, the owner of a partition and an attempt of `once`. None of them can do without it.
    let efficiency = match needs_token {
        true => "",
        false => ", or .efficiency() if two holders would only waste work",
    };
    ErrorKind::Unsupported {
        what: format!(
            "this engine is {level}: {why}, so two holders at once could not be told apart; use a fenced \
             engine{efficiency}{accept_failover}"
        ),
    }
}

/// Returns the refusal of a feature that an engine does not offer.
pub(crate) fn not_offered(what: &str) -> ErrorKind {
    ErrorKind::Unsupported { what: format!("this engine has no {what}; use another engine for it") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_the_message_and_its_causes() {
        let source = Some(std::io::Error::other("connection refused").into());
        let what = "the service at 'a:1' cannot be reached".to_owned();
        let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: true, source };
        let error = Error::new(kind, "palisade", "acquire").on("orders");
        let expected = "cannot acquire 'orders' on palisade: the service at 'a:1' cannot be reached (nothing has changed)\n  \
                        caused by: connection refused";
        assert_eq!(format!("{error:?}"), expected);
        let without_cause = Error::new(ErrorKind::Misuse(Misuse::WhichLock), "memory", "sign");
        assert_eq!(format!("{without_cause:?}"), without_cause.to_string());
    }
}
