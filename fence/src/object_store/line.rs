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
    palisade: u8,
    token: Token,
    seq: Seq,
    author: Author,
    nothing: bool,
}

/// What a line of any format begins with.
const BEGINNING: &[u8] = b"{\"palisade\":";
const FORMAT: u8 = 1;

impl Line {
    /// The line, if an object begins with one, and what follows it. A line that cannot be read is no content: it may
    /// be of a newer format.
    pub(super) fn split(bytes: Bytes) -> Result<(Option<Line>, Bytes), &'static str> {
        if !bytes.starts_with(BEGINNING) {
            return Ok((None, bytes));
        }
        let end = bytes.iter().take(LONGEST as usize).position(|byte| *byte == b'\n');
        let text = end.and_then(|end| Some((end, serde_json::from_slice::<Text>(&bytes[..end]).ok()?)));
        match text {
            Some((end, Text { palisade: FORMAT, token, seq, author, nothing })) => {
                let line = Line { mark: Mark { token, seq }, author, is_nothing: nothing };
                Ok((Some(line), bytes.slice(end + 1..)))
            }
            _ => Err("its first line is a mark that this program cannot read: it is damaged, or of a newer format"),
        }
    }

    /// The whole object.
    pub(super) fn before(self, content: &[u8]) -> Bytes {
        let Line { mark: Mark { token, seq }, author, is_nothing } = self;
        let text = Text { palisade: FORMAT, token, seq, author, nothing: is_nothing };
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
            assert_eq!(Line::split(whole), Ok((Some(line), Bytes::from(content))));
        }
    }

    #[test]
    fn what_is_no_line_is_content() {
        for text in ["", "\n", "plain", "{}\nmore", "{\"palisade"] {
            assert_eq!(Line::split(Bytes::from(text)), Ok((None, Bytes::from(text))), "{text:?}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_is_refused() {
        let newer = r#"{"palisade":2,"token":1,"seq":0,"author":0,"nothing":true}"#;
        for text in ["{\"palisade\":", "{\"palisade\":1}\n", newer, &format!("{newer}\nmore")] {
            assert!(Line::split(Bytes::from(text.to_owned())).is_err(), "{text:?}");
        }
    }
}
