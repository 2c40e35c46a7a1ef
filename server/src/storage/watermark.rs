//! The token watermark: a file that limits which tokens may have been given out.
//!
//! A log that lost its end reads like a log that was never longer, and its tokens would be given a second time. So
//! tokens are reserved in blocks: the watermark is durable before the first token of a block is answered. A node that
//! starts gives only tokens above the watermark, whatever its log contains.

use serde::{Deserialize, Serialize};

use super::small_file::SmallFile;

pub(super) const FILE: SmallFile =
    SmallFile { name: "watermark", unfinished: "watermark.new", magic: *b"PLSDTOK\n", what: "a watermark" };

/// The position that the log is known to have reached, and the tokens that may have been given out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// An entry that was durable when the watermark was written. A log that ends before it was cut.
    pub index: u64,
    /// The highest token that may have been given out.
    pub tokens: u64,
}
