//! The rules of a fence: the state that a resource keeps, and its verdicts. No I/O, no clock.

use palisade_core::Token;
use serde::{Deserialize, Serialize};

use crate::{Author, Seq};

/// The state of a fence: the newest token that has sealed the resource, and the last write under that token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The newest token that has sealed it. Nothing older is accepted.
    pub token: Token,
    /// The last write under that token.
    pub seq: Seq,
}

/// The token and the number of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The token of the grant that it is made under.
    pub token: Token,
    /// Which write under that token it is.
    pub seq: Seq,
    /// The handle that gave it that number.
    pub author: Author,
}

/// A seal that was refused: a newer token has sealed the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superseded {
    /// That token.
    pub seen: Token,
}

/// The decision about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<O> {
    /// It is the next one: apply it and [record](Gate::record) it, in one step.
    Admitted,
    /// It was applied before, and this is what came of it. `None`: nothing was written under this number, because its
    /// author has [settled](crate::Sealed::settle) that nothing ever will be.
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

/// The state that a resource keeps with its data and changes only together with them: the mark, and the last outcome. It can
/// be stored by serde, in any format that tells `Some(outcome)` from `None` (JSON does not, if the outcome is `()`).
///
/// ```
/// use palisade_fence::{Author, Gate, Seq, Stamp, Token, Verdict};
/// let mut gate = Gate::<&str>::default();
/// let (old, new) = (Token::new(33)?, Token::new(34)?);
/// let first = |token| Stamp { token, seq: Seq::NONE.next(), author: Author::default() };
///
/// gate.seal(old).expect("it was never sealed");
/// assert_eq!(gate.admit(first(old)), Verdict::Admitted);
/// gate.record(first(old), Some("done"));
/// assert_eq!(gate.admit(first(old)), Verdict::Duplicate(Some("done")));
///
/// gate.seal(new).expect("it is newer");
/// assert_eq!(gate.admit(first(old)), Verdict::Stale { seen: new });
/// assert!(gate.seal(old).is_err());
/// # Ok::<(), palisade_fence::BadNumber>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gate<O> {
    mark: Option<Mark>,
    author: Author,
    outcome: Option<O>,
}

impl<O> Default for Gate<O> {
    fn default() -> Gate<O> {
        Gate { mark: None, author: Author::default(), outcome: None }
    }
}

impl<O: Clone> Gate<O> {
    /// Returns a gate with this stored state.
    pub fn of(mark: Mark, author: Author, outcome: Option<O>) -> Gate<O> {
        Gate { mark: Some(mark), author, outcome }
    }

    /// Returns the mark; `None` if the resource was never sealed.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Raises the mark. Sealing again with the same token changes nothing: the numbers go on.
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
                *self = Gate { mark: Some(mark), ..Gate::default() };
                Ok(mark)
            }
        }
    }

    /// Judges a read: only the newest token, and only once it has sealed the resource.
    ///
    /// # Errors
    ///
    /// The verdict, if it is not to be answered.
    pub fn admit_read(&self, token: Token) -> Result<(), Verdict<O>> {
        match self.mark {
            Some(mark) if mark.token == token => Ok(()),
            Some(mark) if mark.token > token => Err(Verdict::Stale { seen: mark.token }),
            _ => Err(Verdict::NotSealed),
        }
    }

    /// Judges a write.
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

    /// Remembers a write that was admitted and applied, or, without an outcome, that nothing was and will be.
    pub fn record(&mut self, stamp: Stamp, outcome: Option<O>) {
        let mark = Mark { token: stamp.token, seq: stamp.seq };
        *self = Gate { mark: Some(mark), author: stamp.author, outcome };
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

    /// A gate that was sealed with 5 and written twice by author 1.
    fn gate() -> Gate<&'static str> {
        let mut gate = Gate::default();
        gate.seal(token(5)).expect("it is fresh");
        gate.record(stamp(5, 1, 1), Some("first"));
        gate.record(stamp(5, 2, 1), Some("second"));
        gate
    }

    #[test]
    fn an_unsealed_gate_admits_nothing() {
        let gate = Gate::<()>::default();
        assert_eq!(gate.admit(stamp(1, 1, 1)), Verdict::NotSealed);
        assert_eq!(gate.admit_read(token(1)), Err(Verdict::NotSealed));
    }

    #[test]
    fn every_write_has_its_verdict() {
        let gate = gate();
        let expected = Seq::new(3).expect("a number");
        assert_eq!(gate.admit(stamp(5, 3, 1)), Verdict::Admitted);
        assert_eq!(gate.admit(stamp(5, 2, 1)), Verdict::Duplicate(Some("second")));
        assert_eq!(gate.admit(stamp(4, 3, 1)), Verdict::Stale { seen: token(5) });
        assert_eq!(gate.admit(stamp(6, 1, 1)), Verdict::NotSealed);
        for seq in [0, 1, 4, 100] {
            assert_eq!(gate.admit(stamp(5, seq, 1)), Verdict::Gap { expected }, "number {seq}");
        }
    }

    #[test]
    fn another_handles_write_is_not_taken_for_a_repeat() {
        let expected = Seq::new(3).expect("a number");
        assert_eq!(gate().admit(stamp(5, 2, 2)), Verdict::Gap { expected });
    }

    #[test]
    fn number_0_is_never_a_repeat() {
        let mut gate = Gate::<()>::default();
        gate.seal(token(5)).expect("it is fresh");
        assert_eq!(gate.admit(stamp(5, 0, 0)), Verdict::Gap { expected: Seq::NONE.next() });
    }

    #[test]
    fn a_repeated_seal_keeps_the_numbers_and_the_outcome() {
        let mut gate = gate();
        assert_eq!(gate.seal(token(5)).map(|mark| mark.seq), Seq::new(2).map_err(|_| unreachable!()));
        assert_eq!(gate.admit(stamp(5, 2, 1)), Verdict::Duplicate(Some("second")));
    }

    #[test]
    fn a_newer_seal_shuts_out_everything_older() {
        let mut gate = gate();
        assert_eq!(gate.seal(token(7)), Ok(Mark { token: token(7), seq: Seq::NONE }));
        assert_eq!(gate.seal(token(6)), Err(Superseded { seen: token(7) }));
        assert_eq!(gate.admit(stamp(5, 3, 1)), Verdict::Stale { seen: token(7) });
        assert_eq!(gate.admit_read(token(5)), Err(Verdict::Stale { seen: token(7) }));
        assert_eq!(gate.admit(stamp(7, 1, 1)), Verdict::Admitted);
    }
}
