//! The ratchet: a weaker check that only compares a token with the highest one seen, for resources that cannot be
//! sealed.

use palisade_core::Token;
use serde::{Deserialize, Serialize};

/// The highest token seen; lower ones are refused. **It loses updates.**
///
/// Two holders are paused and lose their lock one after the other. The older one's write arrives before the newer one
/// has written anything: it is accepted, because nothing newer was seen yet. Then the newer one overwrites it with what
/// it computed from what it had read before. Tokens only went up, both writes were acknowledged, and one of the two
/// updates is lost. A write that is delivered twice is applied twice.
///
/// [`FenceState`](crate::FenceState) loses nothing: it is *sealed* with a token before anything is read under it, and
/// writes are numbered. Use the ratchet only for a resource that cannot be sealed before the first read, and only for
/// writes that do not depend on a read and can be repeated.
///
/// ```
/// use palisade_fence::{Ratchet, Token};
/// let mut ratchet = Ratchet::default();
/// assert!(ratchet.admit(Token::new(34)?).is_ok());
/// assert_eq!(ratchet.admit(Token::new(33)?), Err(Token::new(34)?));
/// # Ok::<(), palisade_fence::BadNumber>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Ratchet {
    seen: Option<Token>,
}

impl Ratchet {
    /// Accepts a token that is not lower than any before, and remembers it.
    ///
    /// # Errors
    ///
    /// The higher token that was seen.
    pub fn admit(&mut self, token: Token) -> Result<(), Token> {
        match self.seen {
            Some(seen) if seen > token => Err(seen),
            _ => {
                self.seen = Some(token);
                Ok(())
            }
        }
    }

    /// Returns the highest token seen.
    pub fn seen(&self) -> Option<Token> {
        self.seen
    }
}
