//! Parses commands: arrays of byte strings.
//!
//! The input is untrusted: the parser does not recurse, and allocates nothing before the bytes for it have arrived.

use std::ops::Range;

/// The limits on the size of a command.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Words in it.
    pub words: usize,
    /// Bytes of it, lengths included.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { words: 1024, bytes: 256 << 10 }
    }
}

/// Why bytes are not a command. The bytes after them cannot be parsed either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// They do not begin as a command does.
    #[error("a command is an array of strings, and begins with '*'")]
    NotAnArray,
    /// Something in it is not a string.
    #[error("a command holds strings only, each beginning with '$'")]
    NotAString,
    /// A length is not a number.
    #[error("a length is not a number")]
    BadLength,
    /// A string does not have the given length.
    #[error("a string does not end where its length says")]
    BadEnd,
    /// There are too many words.
    #[error("a command has at most {max} words")]
    TooManyWords {
        /// The bound.
        max: usize,
    },
    /// There are too many bytes.
    #[error("a command has at most {max} bytes")]
    TooLong {
        /// The bound.
        max: usize,
    },
}

/// A command's words, as ranges of the bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    /// The range of each word.
    pub at: Vec<Range<usize>>,
    /// The offset of the next command.
    pub end: usize,
}

/// Parses the first command in these bytes; `None` if it is incomplete.
///
/// # Errors
///
/// The bytes are no command, or exceed the bounds.
///
/// ```
/// use palisade_server::resp::frame::{Bounds, words};
/// let bytes = b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*1\r\n";
/// let words = words(bytes, Bounds::default())?.expect("it is complete");
/// assert_eq!(&bytes[words.at[1].clone()], b"hi");
/// assert_eq!(words.end, 22);
/// # Ok::<(), palisade_server::resp::frame::BadFrame>(())
/// ```
pub fn words(bytes: &[u8], bounds: Bounds) -> Result<Option<Words>, BadFrame> {
    let found = read(bytes, bounds)?;
    let too_long = BadFrame::TooLong { max: bounds.bytes };
    match &found {
        Some(words) if words.end > bounds.bytes => Err(too_long),
        None if bytes.len() > bounds.bytes => Err(too_long),
        _ => Ok(found),
    }
}

fn read(bytes: &[u8], bounds: Bounds) -> Result<Option<Words>, BadFrame> {
    let Some((count, mut at)) = length(bytes, 0, b'*', BadFrame::NotAnArray)? else { return Ok(None) };
    if count > bounds.words {
        return Err(BadFrame::TooManyWords { max: bounds.words });
    }
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let Some((size, from)) = length(bytes, at, b'$', BadFrame::NotAString)? else { return Ok(None) };
        let to = from + size;
        if to + 2 > bounds.bytes {
            return Err(BadFrame::TooLong { max: bounds.bytes });
        }
        match bytes.get(to..to + 2) {
            Some(b"\r\n") => words.push(from..to),
            Some(_) => return Err(BadFrame::BadEnd),
            None => return Ok(None),
        }
        at = to + 2;
    }
    Ok(Some(Words { at: words, end: at }))
}

/// Parses a length after its type byte, and returns it with the offset after it.
fn length(bytes: &[u8], at: usize, type_byte: u8, other: BadFrame) -> Result<Option<(usize, usize)>, BadFrame> {
    /// No length that is within bounds has more digits.
    const DIGITS: usize = 9;
    match bytes.get(at) {
        None => return Ok(None),
        Some(found) if *found != type_byte => return Err(other),
        Some(_) => {}
    }
    let mut length = 0;
    for (digits, byte) in bytes[at + 1..].iter().enumerate() {
        match byte {
            b'0'..=b'9' if digits < DIGITS => length = length * 10 + usize::from(byte - b'0'),
            b'\r' if digits > 0 => {
                return match bytes.get(at + 1 + digits + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((length, at + 1 + digits + 2))),
                    Some(_) => Err(BadFrame::BadLength),
                };
            }
            _ => return Err(BadFrame::BadLength),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<Words>, BadFrame> {
        words(bytes, Bounds { words: 3, bytes: 64 })
    }

    #[test]
    fn an_incomplete_command_is_no_error() {
        let whole = b"*2\r\n$3\r\nSET\r\n$5\r\nhello\r\n";
        for cut in 0..whole.len() {
            assert_eq!(read(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        assert_eq!(read(whole).unwrap().unwrap().end, whole.len());
    }

    #[test]
    fn invalid_frames_are_refused() {
        for (bytes, bad) in [
            (&b"PING\r\n"[..], BadFrame::NotAnArray),
            (b"*x\r\n", BadFrame::BadLength),
            (b"*\r\n", BadFrame::BadLength),
            (b"*-1\r\n", BadFrame::BadLength),
            (b"*1\rx", BadFrame::BadLength),
            (b"*99999999999999999999\r\n", BadFrame::BadLength),
            (b"*4\r\n", BadFrame::TooManyWords { max: 3 }),
            (b"*1\r\n*1\r\n", BadFrame::NotAString),
            (b"*1\r\n:1\r\n", BadFrame::NotAString),
            (b"*1\r\n$2\r\nabc\r\n", BadFrame::BadEnd),
            (b"*1\r\n$99\r\n", BadFrame::TooLong { max: 64 }),
            (
                b"*3\r\n$20\r\n01234567890123456789\r\n$20\r\n01234567890123456789\r\n$9\r\n",
                BadFrame::TooLong { max: 64 },
            ),
        ] {
            assert_eq!(read(bytes), Err(bad), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
