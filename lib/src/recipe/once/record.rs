//! The rules of a record, pure. Every store applies them in one atomic step; Redis has them in Lua.

use palisade_core::Token;

/// The record of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The token of the last attempt; `None` if the attempt was one transaction, without a lock.
    pub token: Option<Token>,
    /// The request that the key was first used for, if the caller passed one.
    pub request: Option<Vec<u8>>,
    /// The outcome; `None` while an attempt runs, and after one that did not finish.
    pub outcome: Option<Vec<u8>>,
    /// Whether its time has passed.
    pub is_expired: bool,
}

/// The answer to an attempt that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The record is now that of this attempt.
    Run {
        /// The token of an earlier attempt that did not finish. Its late result is refused from now on.
        previous: Option<Token>,
    },
    /// An earlier attempt has finished, with this outcome.
    Done(Vec<u8>),
    /// A newer attempt has begun.
    Superseded {
        /// Its token.
        by: Token,
    },
    /// The key was used for another request.
    OtherRequest,
}

/// The answer to an attempt that finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// Its outcome is kept.
    Kept,
    /// A newer attempt has begun, or the record is gone. The outcome is refused.
    Refused {
        /// The token of the newer attempt; `None` if the record is gone.
        by: Option<Token>,
    },
}

#[cfg(any(test, feature = "embedded", feature = "mysql", feature = "postgres"))]
impl Record {
    /// Decides about an attempt with this token and request.
    pub(super) fn begin(record: Option<&Record>, token: Token, request: Option<&[u8]>) -> Begun {
        let Some(record) = record else { return Begun::Run { previous: None } };
        if !record.is_expired {
            if record.is_of_other(request) {
                return Begun::OtherRequest;
            }
            if let Some(outcome) = &record.outcome {
                return Begun::Done(outcome.clone());
            }
        }
        match record.token {
            Some(by) if by > token => Begun::Superseded { by },
            // A repeat of this very call, whose reply was lost, has the same token.
            Some(previous) if previous < token && !record.is_expired => Begun::Run { previous: Some(previous) },
            _ => Begun::Run { previous: None },
        }
    }

    /// Returns the request to store for an attempt that runs. The first request of a key stays, also if a later attempt has none.
    pub(super) fn request<'a>(record: Option<&'a Record>, request: Option<&'a [u8]>) -> Option<&'a [u8]> {
        record.filter(|record| !record.is_expired).and_then(|record| record.request.as_deref()).or(request)
    }

    /// Decides whether an attempt may keep its outcome.
    pub(super) fn finish(record: Option<&Record>, token: Token) -> Finished {
        match record {
            Some(record) if record.token == Some(token) => Finished::Kept,
            Some(record) => Finished::Refused { by: record.token },
            None => Finished::Refused { by: None },
        }
    }
}

impl Record {
    /// Whether the key was used for another request.
    pub(super) fn is_of_other(&self, request: Option<&[u8]>) -> bool {
        matches!((&self.request, request), (Some(first), Some(this)) if first != this)
    }
}

/// Returns the token of a stored number; 0 stands for none.
#[cfg(any(feature = "embedded", feature = "mysql", feature = "postgres"))]
pub(super) fn stored_token(number: i64) -> Option<Token> {
    u64::try_from(number).ok().and_then(|number| Token::new(number).ok())
}

/// Returns the number to store for a token.
#[cfg(any(feature = "embedded", feature = "mysql", feature = "postgres"))]
pub(super) fn number(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).expect("a token")
    }

    fn record(number: u64, outcome: Option<&[u8]>) -> Record {
        Record { token: Some(token(number)), request: None, outcome: outcome.map(Into::into), is_expired: false }
    }

    #[test]
    fn the_first_attempt_runs_and_a_repeat_gets_its_outcome() {
        assert_eq!(Record::begin(None, token(1), None), Begun::Run { previous: None });
        let done = record(1, Some(b"paid"));
        assert_eq!(Record::begin(Some(&done), token(2), None), Begun::Done(b"paid".into()));
        assert_eq!(Record::begin(Some(&done), token(1), None), Begun::Done(b"paid".into()));
    }

    #[test]
    fn a_takeover_refuses_the_late_result() {
        let died = record(1, None);
        assert_eq!(Record::begin(Some(&died), token(2), None), Begun::Run { previous: Some(token(1)) });
        let taken_over = record(2, None);
        assert_eq!(Record::finish(Some(&taken_over), token(1)), Finished::Refused { by: Some(token(2)) });
        assert_eq!(Record::finish(Some(&taken_over), token(2)), Finished::Kept);
        assert_eq!(Record::begin(Some(&taken_over), token(1), None), Begun::Superseded { by: token(2) });
        assert_eq!(Record::finish(None, token(1)), Finished::Refused { by: None });
    }

    #[test]
    fn a_repeated_begin_is_no_takeover() {
        assert_eq!(Record::begin(Some(&record(3, None)), token(3), None), Begun::Run { previous: None });
    }

    #[test]
    fn another_request_under_the_key_is_refused_until_the_record_expires() {
        let mut first = Record { request: Some(b"5 EUR".into()), ..record(1, Some(b"paid")) };
        assert_eq!(Record::begin(Some(&first), token(2), Some(b"7 EUR")), Begun::OtherRequest);
        assert_eq!(Record::begin(Some(&first), token(2), Some(b"5 EUR")), Begun::Done(b"paid".into()));
        assert_eq!(Record::begin(Some(&first), token(2), None), Begun::Done(b"paid".into()));
        first.is_expired = true;
        assert_eq!(Record::begin(Some(&first), token(2), Some(b"7 EUR")), Begun::Run { previous: None });
    }

    #[test]
    fn an_expired_record_still_refuses_older_tokens() {
        let expired = Record { is_expired: true, ..record(5, Some(b"paid")) };
        assert_eq!(Record::begin(Some(&expired), token(4), None), Begun::Superseded { by: token(5) });
        assert_eq!(Record::begin(Some(&expired), token(6), None), Begun::Run { previous: None });
    }
}
