//! The block of tokens that the node may give out before it must raise the watermark.

use palisade_core::Token;

use crate::storage::Watermark;

/// How many tokens are reserved at once. A node that was killed skips the rest of its block.
const BLOCK: u64 = 1 << 16;

/// The watermark on disk, and how far tokens have to be raised when this node becomes the leader.
pub(super) struct TokenBlock {
    watermark: Watermark,
    raise_to: u64,
}

impl TokenBlock {
    /// Continues from the watermark that was found, above the token that the operator named.
    pub(super) fn new(found: Watermark, raise_above: Option<u64>) -> TokenBlock {
        TokenBlock { watermark: found, raise_to: found.tokens.max(raise_above.unwrap_or(0)) }
    }

    /// Returns the token above which tokens must be raised before the next grant; `None` if `last` is high enough. A
    /// process that was killed may have given out tokens up to it.
    pub(super) fn raise_after(&self, last: u64) -> Option<u64> {
        (last < self.raise_to).then_some(self.raise_to)
    }

    /// Returns the watermark that must be durable before `last` is answered; `None` if the present one is high enough.
    pub(super) fn needed_for(&mut self, last: u64, index: u64) -> Option<Watermark> {
        (last > self.watermark.tokens).then(|| self.set(index, (last + BLOCK).min(Token::MAX.get())))
    }

    /// Returns the watermark of a node that starts. Its log has reached this entry.
    pub(super) fn started(&mut self, index: u64) -> Watermark {
        self.set(index, self.watermark.tokens)
    }

    /// Returns the entry that the watermark names.
    pub(super) fn noted_index(&self) -> u64 {
        self.watermark.index
    }

    /// Returns the watermark of a node that stops in order. No token above `last` was given out.
    pub(super) fn stopped(&mut self, last: u64, index: u64) -> Watermark {
        self.set(index, last.max(self.raise_to))
    }

    fn set(&mut self, index: u64, tokens: u64) -> Watermark {
        self.watermark = Watermark { index, tokens };
        self.watermark
    }
}
