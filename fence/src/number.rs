//! The numbers of a write: its sequence number and its author.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use palisade_core::{BadNumber, Token};
use serde::{Deserialize, Serialize};

/// The number of a write under its token: 1 for the first, 0 for none yet. Below 2^53, as tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Seq(u64);

/// The author of a write: the id of the handle that numbered it, like Kafka's producer id. Each sealed handle has
/// another id, so that a write of one handle is never taken for a repeat by another handle under the same token. 0 is
/// for clients with a single handle. Below 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Author(u64);

impl Seq {
    /// Nothing was written yet.
    pub const NONE: Seq = Seq(0);

    /// Returns the number of the next write.
    ///
    /// ```
    /// use palisade_fence::Seq;
    /// assert_eq!(Seq::NONE.next(), Seq::new(1)?);
    /// # Ok::<(), palisade_fence::BadNumber>(())
    /// ```
    #[must_use]
    pub fn next(self) -> Seq {
        // A handle that writes a million times a second takes 285 years to get there.
        Seq(self.0 + 1)
    }
}

impl Author {
    /// Returns a random author.
    ///
    /// ```
    /// use palisade_fence::Author;
    /// assert_ne!(Author::unique(), Author::unique());
    /// ```
    pub fn unique() -> Author {
        let random = RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()));
        Author((random % Token::MAX.get()) + 1)
    }
}

macro_rules! numbers {
    ($($name:ident, $what:literal;)*) => {$(
        impl $name {
            /// Checks a number from outside: it is below 2^53.
            ///
            /// # Errors
            ///
            /// A number that is too large.
            pub fn new(number: u64) -> Result<$name, BadNumber> {
                let max = Token::MAX.get();
                if number > max {
                    return Err(BadNumber::TooLarge { what: $what, value: number, max });
                }
                Ok($name(number))
            }

            /// Returns the number.
            pub fn get(self) -> u64 {
                self.0
            }
        }

        impl TryFrom<u64> for $name {
            type Error = BadNumber;
            fn try_from(number: u64) -> Result<$name, BadNumber> {
                $name::new(number)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> u64 {
                number.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}

numbers! {
    Seq, "number of a write";
    Author, "author";
}
