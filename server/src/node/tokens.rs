//! The block of tokens that may be given out before the watermark has to rise.

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

    /// The token that must have been passed before the next grant, if `last` has not. Tokens up to there may have been
    /// given out by a process that was killed.
    pub(super) fn raise_after(&self, last: u64) -> Option<u64> {
        (last < self.raise_to).then_some(self.raise_to)
    }

    /// The watermark to be made durable before `last` is answered, if it has to rise for that.
    pub(super) fn needed_for(&mut self, last: u64, index: u64) -> Option<Watermark> {
        (last > self.watermark.tokens).then(|| self.set(index, (last + BLOCK).min(Token::MAX.get())))
    }

    /// The watermark of a node that starts: its log has reached this entry.
    pub(super) fn started(&mut self, index: u64) -> Watermark {
        self.set(index, self.watermark.tokens)
    }

    /// The watermark of a node that stops in order: no token above `last` was given out.
    pub(super) fn stopped(&mut self, last: u64, index: u64) -> Watermark {
        self.set(index, last.max(self.raise_to))
    }

    fn set(&mut self, index: u64, tokens: u64) -> Watermark {
        self.watermark = Watermark { index, tokens };
        self.watermark
    }
}
