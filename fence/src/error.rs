//! Errors: the operation, the resource, the state it is in now, and what to do.

use std::error::Error as StdError;
use std::fmt;

use palisade_core::{SealError, Token};

use crate::{Seq, Verdict};

/// An access to a fenced resource that failed. Its `Debug` is readable too, because `main` prints it.
pub struct Error {
    kind: Box<ErrorKind>,
    resource: String,
    operation: &'static str,
    token: Option<Token>,
}

/// The kind of a failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The resource could not be sealed, because a newer token has sealed it. Nothing has changed.
    Superseded {
        /// That token.
        seen: Token,
    },
    /// A newer token has sealed the resource since this one did. Nothing has changed.
    Stale {
        /// That token.
        seen: Token,
    },
    /// This token has not sealed the resource, or the resource has forgotten it. Nothing has changed.
    NotSealed,
    /// The write is not the next one: another handle under the same token has written. Nothing has changed.
    Gap {
        /// The number that would have been the next.
        expected: Seq,
    },
    /// It is not yet known whether an earlier write of this handle was applied. Nothing was sent.
    Unsettled,
    /// The resource accepts the token, but not the change. Nothing has changed, and nothing of it will arrive later.
    Rejected {
        /// The reason.
        what: String,
        /// Its own error.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The resource could not be reached, or could not do it.
    Unavailable {
        /// What failed, and what to do about it.
        what: String,
        /// Whether it may have been carried out all the same.
        may_have_taken_effect: bool,
        /// Whether a retry may succeed without a change from outside.
        is_retryable: bool,
        /// The cause.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The signed token is not accepted. Nothing has changed.
    #[cfg(feature = "signed")]
    NotGenuine(crate::signed::NotGenuine),
    /// The call is invalid, or the resource cannot be fenced: correct the caller. Nothing has changed.
    Misuse {
        /// What is wrong, and what to do instead.
        what: String,
    },
}

impl ErrorKind {
    /// Returns the error of a verdict; `None` for a verdict that is no refusal.
    pub fn refused<O>(verdict: &Verdict<O>) -> Option<ErrorKind> {
        match verdict {
            Verdict::Admitted | Verdict::Duplicate(_) => None,
            Verdict::Stale { seen } => Some(ErrorKind::Stale { seen: *seen }),
            Verdict::NotSealed => Some(ErrorKind::NotSealed),
            Verdict::Gap { expected } => Some(ErrorKind::Gap { expected: *expected }),
        }
    }

    /// Returns a failure with an unknown effect, which may be transient.
    pub fn unknown(what: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> ErrorKind {
        let (what, source) = (what.into(), Some(source.into()));
        ErrorKind::Unavailable { what, may_have_taken_effect: true, is_retryable: true, source }
    }

    /// Returns a failure before anything was sent, which may be transient. Nothing has changed.
    pub fn unreached(what: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> ErrorKind {
        let (what, source) = (what.into(), Some(source.into()));
        ErrorKind::Unavailable { what, may_have_taken_effect: false, is_retryable: true, source }
    }

    /// Returns the error of an invalid call.
    pub fn misuse(what: impl Into<String>) -> ErrorKind {
        ErrorKind::Misuse { what: what.into() }
    }
}

impl Error {
    /// Returns the failure of an operation on a resource. The operation is an infinitive, as in "cannot seal".
    pub fn new(kind: ErrorKind, resource: impl Into<String>, operation: &'static str) -> Error {
        Error { kind: Box::new(kind), resource: resource.into(), operation, token: None }
    }

    /// Adds the token of the operation.
    #[must_use]
    pub fn under(self, token: Token) -> Error {
        Error { token: Some(token), ..self }
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns the resource's name.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// Returns the token of the operation, if it had one.
    pub fn token(&self) -> Option<Token> {
        self.token
    }

    /// Returns the newer token that has sealed the resource, if that is the cause.
    pub fn overtaken_by(&self) -> Option<Token> {
        match &*self.kind {
            ErrorKind::Superseded { seen } | ErrorKind::Stale { seen } => Some(*seen),
            _ => None,
        }
    }

    /// Returns whether a retry may succeed without a change from outside. It cannot for an overtaken token.
    pub fn is_retryable(&self) -> bool {
        matches!(&*self.kind, ErrorKind::Unavailable { is_retryable: true, .. })
    }

    /// Returns whether the call may have been carried out although it failed. After such a write, the handle must be
    /// [settled](crate::Sealed::settle).
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(&*self.kind, ErrorKind::Unavailable { may_have_taken_effect: true, .. })
    }
}

/// Returns the text for a token below the mark: both causes, and what to do.
pub(crate) fn overtaken(seen: Token) -> String {
    format!(
        "Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave this token counts \
         lower than the one that gave token {seen} (a new file, another engine): run `palisade tokens raise --above {seen}` \
         on it"
    )
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} '{}'", self.operation, self.resource.escape_debug())?;
        if let Some(token) = self.token {
            write!(f, " with token {token}")?;
        }
        f.write_str(": ")?;
        match &*self.kind {
            ErrorKind::Superseded { seen } => {
                write!(f, "token {seen} has sealed it before. {}, or use one lock for it", overtaken(*seen))
            }
            ErrorKind::Stale { seen } => write!(f, "token {seen} has sealed it. {}", overtaken(*seen)),
            ErrorKind::NotSealed => f.write_str(
                "this token has not sealed it; seal it first (if it was sealed, the resource has lost its mark: was it \
                 restored, emptied or replaced?)",
            ),
            ErrorKind::Gap { expected } => write!(
                f,
                "another handle under this token has written (number {expected} would be the next); seal it again, and \
                 read again"
            ),
            ErrorKind::Unsettled => f.write_str(
                "it is not known whether an earlier write through this handle was applied; call settle() first, which \
                 finds out",
            ),
            ErrorKind::Rejected { what, .. } => write!(f, "{what} (nothing has changed)"),
            #[cfg(feature = "signed")]
            ErrorKind::NotGenuine(why) => why.fmt(f),
            ErrorKind::Misuse { what } => f.write_str(what),
            ErrorKind::Unavailable { what, may_have_taken_effect, .. } => {
                f.write_str(what)?;
                f.write_str(match may_have_taken_effect {
                    true => " (it may have taken effect)",
                    false => " (nothing has changed)",
                })
            }
        }
    }
}

/// The text of `Display`, and the causes.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        palisade_core::write_with_causes(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.kind {
            ErrorKind::Unavailable { source: Some(source), .. }
            | ErrorKind::Rejected { source: Some(source), .. } => Some(&**source),
            _ => None,
        }
    }
}

impl From<Error> for SealError {
    fn from(error: Error) -> SealError {
        SealError {
            resource: error.resource.clone(),
            superseded_by: error.overtaken_by(),
            is_retryable: error.is_retryable(),
            source: Box::new(error),
        }
    }
}
