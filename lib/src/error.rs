//! What went wrong, on which lock and engine, what is now known, and what to do.

use std::error::Error as StdError;
use std::fmt;

use palisade_core::{BadName, BadNumber, Refusal, SealError};

use crate::Loss;
use crate::engine::{Failure, Level};

/// An operation that failed. That a lock is not available is not an error: it is `Ok(None)`.
///
/// Its `Debug` is for people too: what failed, and what led to it, as `main` prints an error that it returns.
pub struct Error {
    kind: Box<ErrorKind>,
    engine: &'static str,
    operation: &'static str,
    lock: Option<String>,
}

/// What kind of failure it is.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call makes no sense, or the rules forbid it: mend the caller. Nothing has changed.
    Misuse(Misuse),
    /// The engine could not be reached, or could not do it.
    Outage {
        /// What failed, and what to do about it.
        what: String,
        /// Whether it may have been carried out all the same.
        may_have_taken_effect: bool,
        /// Whether it may succeed later without a change by the operator.
        is_retryable: bool,
        /// What the engine was told.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The engine refuses this client's credentials or rights; the operator has to change them. Nothing has changed.
    Denied {
        /// What is not allowed, and what to do about it.
        what: String,
    },
    /// The lock, or the session that asked for it, was lost.
    Lost(Loss),
    /// A resource could not be sealed, so the lock was not handed out. Nothing was read or written under it.
    NotSealed {
        /// Which resource, and why.
        error: SealError,
        /// Whether the lock is free again. If not, that is tried on in the background until it is done or the session
        /// is over.
        is_given_back: bool,
    },
    /// The engine does not offer what was asked for. Nothing has changed.
    Unsupported {
        /// What it does not offer, and what to do instead.
        what: String,
    },
}

/// What is wrong with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The lock's name is none.
    Name(BadName),
    /// A number is none.
    Number(BadNumber),
    /// The rules say no.
    Refused(Refusal),
    /// The URL leads to no engine.
    Url(String),
    /// Several locks are held, and it was not said which one is meant.
    WhichLock,
    /// The client has no session, because it was connected as an observer.
    Observer,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::Name(bad) => bad.fmt(f),
            Misuse::Number(bad) => bad.fmt(f),
            Misuse::Refused(refusal) => refusal.fmt(f),
            Misuse::Url(what) => f.write_str(what),
            Misuse::WhichLock => f.write_str("several locks are held; say which one with signed_token_for(lock)"),
            Misuse::Observer => f.write_str("an observer has no session to hold it; connect without .observer()"),
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

    /// What kind of failure it is.
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

    /// The engine's name; empty when it is not known which one was meant.
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

    /// What was attempted.
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

    /// The lock that it was attempted on.
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

    /// How the lock was lost, if that is what happened.
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

    /// Whether the same call may succeed later without a change by the operator.
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
            ErrorKind::Lost(Loss::SessionClosed | Loss::Released | Loss::Left | Loss::DataLost { .. }) => false,
            ErrorKind::Lost(_) => true,
        }
    }

    /// Whether the call may have been carried out although it failed.
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
            ErrorKind::NotSealed { is_given_back, .. } => !is_given_back,
            // What was granted to a session that is lost has ended with it, or will.
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
            ErrorKind::Lost(loss @ (Loss::SessionClosed | Loss::Left)) => write!(f, "{loss}; connect anew"),
            ErrorKind::Lost(loss @ Loss::Released) => write!(f, "{loss}; acquire it again first"),
            ErrorKind::Lost(loss @ Loss::DataLost { .. }) => {
                write!(f, "{loss}; stop the work, see to your data, then connect anew")
            }
            ErrorKind::Lost(loss) => write!(f, "{loss}; stop the work and acquire it again"),
            ErrorKind::Denied { what } => write!(f, "{what} (nothing has changed)"),
            ErrorKind::Unsupported { what } => f.write_str(what),
            ErrorKind::NotSealed { error, is_given_back: true } => write!(f, "{error}; the lock is given back"),
            ErrorKind::NotSealed { error, .. } => {
                write!(f, "{error}; giving the lock back is tried on in the background, the engine does not answer")
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

/// What `Display` says, and what led to it.
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

/// The refusal of a correctness lock, or of an election, on an engine that cannot fence.
pub(crate) fn not_fenced(level: Level, is_election: bool) -> ErrorKind {
    let (why, in_danger) = match level {
        Level::Advisory => {
            ("no token can exist, as nothing in it numbers its grants in one order that nobody forgets", "")
        }
        Level::HealthyOnly | Level::Fenced => (
            "it cannot issue tokens that rise for ever",
            ", or .dangerous_accept_failover() (--dangerous-accept-failover) if you can live with that after a failover",
        ),
    };
    // A leader is known by its token: there is no election for efficiency only.
    let efficiency = match is_election {
        true => "",
        false => ", or say .efficiency() (--efficiency) if two holders would only waste work",
    };
    ErrorKind::Unsupported {
        what: format!(
            "this engine is {level}: {why}, so two holders at once could not be told apart; use a fenced \
             engine{efficiency}{in_danger}"
        ),
    }
}

/// The refusal of something that an engine does not offer.
pub(crate) fn not_offered(what: &str) -> ErrorKind {
    ErrorKind::Unsupported { what: format!("this engine has no {what}; use another engine for it") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `main` prints an error that it returns.
    #[test]
    fn debug_is_for_people() {
        let source = Some(std::io::Error::other("connection refused").into());
        let what = "the service at 'a:1' cannot be reached".to_owned();
        let kind = ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: true, source };
        let error = Error::new(kind, "palisade", "acquire").on("orders");
        let expected = "cannot acquire 'orders' on palisade: the service at 'a:1' cannot be reached (nothing has changed)\n  \
                        caused by: connection refused";
        assert_eq!(format!("{error:?}"), expected);
        let quoted = Error::new(ErrorKind::Misuse(Misuse::WhichLock), "memory", "sign");
        assert_eq!(format!("{quoted:?}"), quoted.to_string());
    }
}
