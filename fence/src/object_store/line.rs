//! The first line of a fenced object.

use bytes::Bytes;
use palisade_core::Token;
use serde::{Deserialize, Serialize};

use crate::{Author, Mark, Seq};

/// No such line is longer.
pub(super) const LONGEST: u64 = 160;

/// The mark, and what is known of the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) mark: Mark,
    pub(super) author: Author,
    /// Nothing was written under this number.
    pub(super) is_nothing: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    palisade: Version,
    token: Token,
    seq: Seq,
    author: Author,
    nothing: bool,
}

/// The format: 1.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct Version;

impl TryFrom<u8> for Version {
    type Error = &'static str;
    fn try_from(number: u8) -> Result<Version, &'static str> {
        if number == 1 { Ok(Version) } else { Err("it is of a newer format") }
    }
}

impl From<Version> for u8 {
    fn from(_: Version) -> u8 {
        1
    }
}

impl Clone for Version {
    fn clone(&self) -> Version {
        Version
    }
}

impl Line {
    /// The line, if an object begins with one, and what follows it.
    pub(super) fn split(bytes: Bytes) -> (Option<Line>, Bytes) {
        let end = bytes.iter().take(LONGEST as usize).position(|byte| *byte == b'\n');
        let text = end.and_then(|end| serde_json::from_slice::<Text>(&bytes[..end]).ok());
        match (end, text) {
            (Some(end), Some(Text { token, seq, author, nothing, .. })) => {
                let line = Line { mark: Mark { token, seq }, author, is_nothing: nothing };
                (Some(line), bytes.slice(end + 1..))
            }
            _ => (None, bytes),
        }
    }

    /// The whole object.
    pub(super) fn before(self, content: &[u8]) -> Bytes {
        let Line { mark: Mark { token, seq }, author, is_nothing } = self;
        let text = Text { palisade: Version, token, seq, author, nothing: is_nothing };
        // Numbers can always be written.
        let mut bytes = serde_json::to_vec(&text).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend_from_slice(content);
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: u64, is_nothing: bool) -> Line {
        let mark = Mark { token: Token::new(number).expect("a token"), seq: Seq::new(number).expect("a number") };
        Line { mark, author: Author::new(number).expect("an author"), is_nothing }
    }

    #[test]
    fn a_line_is_found_again_and_the_content_is_as_it_was() {
        for (line, content) in [(line(1, true), ""), (line(Token::MAX.get(), false), "a\nb\n"), (line(7, true), "\n")]
        {
            let whole = line.before(content.as_bytes());
            assert!(whole.len() - content.len() <= LONGEST as usize);
            assert_eq!(Line::split(whole), (Some(line), Bytes::from(content)));
        }
    }

    #[test]
    fn what_is_no_line_is_content() {
        let newer = r#"{"palisade":2,"token":1,"seq":0,"author":0,"nothing":true}"#;
        for text in ["", "\n", "plain", "{}\nmore", "{\"palisade\":1}\n", &format!("{newer}\n"), newer] {
            assert_eq!(Line::split(Bytes::from(text.to_owned())), (None, Bytes::from(text.to_owned())), "{text:?}");
        }
    }
}
