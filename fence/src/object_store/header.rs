//! The first line of a fenced object: its mark.

use bytes::Bytes;
use palisade_core::Token;
use serde::{Deserialize, Serialize};

use crate::{Author, Mark, Seq};

/// The longest header, in bytes.
pub(super) const LONGEST: u64 = 160;

/// The mark, and the author and outcome of the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
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

/// The first bytes of a header of any format.
const PREFIX: &[u8] = b"{\"palisade\":";
const FORMAT: u8 = 1;

impl Header {
    /// Splits an object into its header, if it has one, and its content. An unreadable header is an error: it may
    /// be of a newer format.
    pub(super) fn split(bytes: Bytes) -> Result<(Option<Header>, Bytes), &'static str> {
        if !bytes.starts_with(PREFIX) {
            return Ok((None, bytes));
        }
        let end = bytes.iter().take(LONGEST as usize).position(|byte| *byte == b'\n');
        let text = end.and_then(|end| Some((end, serde_json::from_slice::<Text>(&bytes[..end]).ok()?)));
        match text {
            Some((end, Text { palisade: FORMAT, token, seq, author, nothing })) => {
                let header = Header { mark: Mark { token, seq }, author, is_nothing: nothing };
                Ok((Some(header), bytes.slice(end + 1..)))
            }
            _ => Err("its first line is a mark that this program cannot read: it is damaged, or of a newer format"),
        }
    }

    /// Returns the whole object: the header, then the content.
    pub(super) fn before(self, content: &[u8]) -> Bytes {
        let Header { mark: Mark { token, seq }, author, is_nothing } = self;
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

    fn header(number: u64, is_nothing: bool) -> Header {
        let mark = Mark { token: Token::new(number).expect("a token"), seq: Seq::new(number).expect("a number") };
        Header { mark, author: Author::new(number).expect("an author"), is_nothing }
    }

    #[test]
    fn a_header_is_read_back_and_the_content_is_unchanged() {
        for (header, content) in
            [(header(1, true), ""), (header(Token::MAX.get(), false), "a\nb\n"), (header(7, true), "\n")]
        {
            let whole = header.before(content.as_bytes());
            assert!(whole.len() - content.len() <= LONGEST as usize);
            assert_eq!(Header::split(whole), Ok((Some(header), Bytes::from(content))));
        }
    }

    #[test]
    fn an_object_without_a_header_is_content() {
        for text in ["", "\n", "plain", "{}\nmore", "{\"palisade"] {
            assert_eq!(Header::split(Bytes::from(text)), Ok((None, Bytes::from(text))), "{text:?}");
        }
    }

    #[test]
    fn an_unreadable_header_is_refused() {
        let newer = r#"{"palisade":2,"token":1,"seq":0,"author":0,"nothing":true}"#;
        for text in ["{\"palisade\":", "{\"palisade\":1}\n", newer, &format!("{newer}\nmore")] {
            assert!(Header::split(Bytes::from(text.to_owned())).is_err(), "{text:?}");
        }
    }
}
