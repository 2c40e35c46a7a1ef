//! The rules of a fence: the state that a resource stores, and the checks of reads and writes against it. No I/O, no
//! clock.

use palisade_core::Token;
use serde::{Deserialize, Serialize};

use crate::{Author, Seq};

/// The mark of a resource: the newest token that has sealed it, and the number of the last write under that token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The newest token that has sealed it. Nothing older is accepted.
    pub token: Token,
    /// The number of the last write under that token.
    pub seq: Seq,
}

/// Identifies a write: its token, its number under that token, and the handle that numbered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The token of the grant.
    pub token: Token,
    /// Its number under that token.
    pub seq: Seq,
    /// The handle that numbered it.
    pub author: Author,
}

/// A seal that was refused: a newer token has sealed the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superseded {
    /// That token.
    pub seen: Token,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<O> {
    /// The next write: apply it and [record](FenceState::record) it, in one atomic step.
    Admitted,
    /// A repeat of the last write, with the stored outcome. `None`: [`settle`](crate::Sealed::settle) has used up the
    /// number without a write.
    Duplicate(Option<O>),
    /// A newer token has sealed the resource. Nothing changes.
    Stale {
        /// That token.
        seen: Token,
    },
    /// This token has not sealed the resource. Nothing changes.
    NotSealed,
    /// It is neither the next write nor a repeat of its author's last one. Nothing changes.
    Gap {
        /// The number of the next write.
        expected: Seq,
    },
}

/// The state of a fence: the mark, and the author and outcome of the last write. A resource stores it with its data and
/// changes both in one atomic step. It can be stored by serde, in any format that tells `Some(outcome)` from `None`
/// (JSON does not, if the outcome is `()`).
///
/// ```
/// use palisade_fence::{Author, FenceState, Seq, Stamp, Token, Verdict};
/// let mut state = FenceState::<&str>::default();
/// let (old, new) = (Token::new(33)?, Token::new(34)?);
/// let first = |token| Stamp { token, seq: Seq::NONE.next(), author: Author::default() };
///
/// state.seal(old).expect("it was never sealed");
/// assert_eq!(state.admit(first(old)), Verdict::Admitted);
/// state.record(first(old), Some("done"));
/// assert_eq!(state.admit(first(old)), Verdict::Duplicate(Some("done")));
///
/// state.seal(new).expect("it is newer");
/// assert_eq!(state.admit(first(old)), Verdict::Stale { seen: new });
/// assert!(state.seal(old).is_err());
/// # Ok::<(), palisade_fence::BadNumber>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FenceState<O> {
    mark: Option<Mark>,
    author: Author,
    outcome: Option<O>,
}

impl<O> Default for FenceState<O> {
    fn default() -> FenceState<O> {
        FenceState { mark: None, author: Author::default(), outcome: None }
    }
}

impl<O: Clone> FenceState<O> {
    /// Returns the state with these stored fields.
    pub fn of(mark: Mark, author: Author, outcome: Option<O>) -> FenceState<O> {
        FenceState { mark: Some(mark), author, outcome }
    }

    /// Returns the mark; `None` if the resource was never sealed.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Raises the mark. Sealing again with the same token changes nothing, and the numbers of writes continue.
    ///
    /// # Errors
    ///
    /// A newer token has sealed it.
    pub fn seal(&mut self, token: Token) -> Result<Mark, Superseded> {
        match self.mark {
            Some(mark) if mark.token > token => Err(Superseded { seen: mark.token }),
            Some(mark) if mark.token == token => Ok(mark),
            _ => {
                let mark = Mark { token, seq: Seq::NONE };
                *self = FenceState { mark: Some(mark), ..FenceState::default() };
                Ok(mark)
            }
        }
    }

    /// Checks a read: its token must be the one that has sealed the resource last.
    ///
    /// # Errors
    ///
    /// The refusal: [`Verdict::Stale`] or [`Verdict::NotSealed`].
    pub fn admit_read(&self, token: Token) -> Result<(), Verdict<O>> {
        match self.mark {
            Some(mark) if mark.token == token => Ok(()),
            Some(mark) if mark.token > token => Err(Verdict::Stale { seen: mark.token }),
            _ => Err(Verdict::NotSealed),
        }
    }

    /// Checks a write. Changes nothing.
    pub fn admit(&self, stamp: Stamp) -> Verdict<O> {
        let mark = match (self.admit_read(stamp.token), self.mark) {
            (Ok(()), Some(mark)) => mark,
            (Err(verdict), _) => return verdict,
            (Ok(()), None) => return Verdict::NotSealed,
        };
        let expected = mark.seq.next();
        if stamp.seq == expected {
            return Verdict::Admitted;
        }
        if stamp.seq == mark.seq && stamp.seq > Seq::NONE && stamp.author == self.author {
            return Verdict::Duplicate(self.outcome.clone());
        }
        Verdict::Gap { expected }
    }

    /// Records an admitted write and its outcome. `None` uses up the number without a write.
    pub fn record(&mut self, stamp: Stamp, outcome: Option<O>) {
        let mark = Mark { token: stamp.token, seq: stamp.seq };
        *self = FenceState { mark: Some(mark), author: stamp.author, outcome };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).expect("a token")
    }

    fn stamp(token_number: u64, seq: u64, author: u64) -> Stamp {
        let (seq, author) = (Seq::new(seq).expect("a number"), Author::new(author).expect("an author"));
        Stamp { token: token(token_number), seq, author }
    }

    /// Sealed with 5 and written twice by author 1.
    fn state() -> FenceState<&'static str> {
        let mut state = FenceState::default();
        state.seal(token(5)).expect("it is fresh");
        state.record(stamp(5, 1, 1), Some("first"));
        state.record(stamp(5, 2, 1), Some("second"));
        state
    }

    #[test]
    fn an_unsealed_resource_admits_nothing() {
        let state = FenceState::<()>::default();
        assert_eq!(state.admit(stamp(1, 1, 1)), Verdict::NotSealed);
        assert_eq!(state.admit_read(token(1)), Err(Verdict::NotSealed));
    }

    #[test]
    fn every_write_has_its_verdict() {
        let state = state();
        let expected = Seq::new(3).expect("a number");
        assert_eq!(state.admit(stamp(5, 3, 1)), Verdict::Admitted);
        assert_eq!(state.admit(stamp(5, 2, 1)), Verdict::Duplicate(Some("second")));
        assert_eq!(state.admit(stamp(4, 3, 1)), Verdict::Stale { seen: token(5) });
        assert_eq!(state.admit(stamp(6, 1, 1)), Verdict::NotSealed);
        for seq in [0, 1, 4, 100] {
            assert_eq!(state.admit(stamp(5, seq, 1)), Verdict::Gap { expected }, "number {seq}");
        }
    }

    #[test]
    fn another_handles_write_is_not_taken_for_a_repeat() {
        let expected = Seq::new(3).expect("a number");
        assert_eq!(state().admit(stamp(5, 2, 2)), Verdict::Gap { expected });
    }

    #[test]
    fn number_0_is_never_a_repeat() {
        let mut state = FenceState::<()>::default();
        state.seal(token(5)).expect("it is fresh");
        assert_eq!(state.admit(stamp(5, 0, 0)), Verdict::Gap { expected: Seq::NONE.next() });
    }

    #[test]
    fn a_repeated_seal_keeps_the_numbers_and_the_outcome() {
        let mut state = state();
        assert_eq!(state.seal(token(5)).map(|mark| mark.seq), Seq::new(2).map_err(|_| unreachable!()));
        assert_eq!(state.admit(stamp(5, 2, 1)), Verdict::Duplicate(Some("second")));
    }

    #[test]
    fn a_newer_seal_makes_older_tokens_stale() {
        let mut state = state();
        assert_eq!(state.seal(token(7)), Ok(Mark { token: token(7), seq: Seq::NONE }));
        assert_eq!(state.seal(token(6)), Err(Superseded { seen: token(7) }));
        assert_eq!(state.admit(stamp(5, 3, 1)), Verdict::Stale { seen: token(7) });
        assert_eq!(state.admit_read(token(5)), Err(Verdict::Stale { seen: token(7) }));
        assert_eq!(state.admit(stamp(7, 1, 1)), Verdict::Admitted);
    }
}
