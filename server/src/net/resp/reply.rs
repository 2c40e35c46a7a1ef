//! Replies, as they are encoded in either version of the protocol.

use std::borrow::Cow;
use std::fmt::Write;

/// The version of the protocol that a client has chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Version {
    /// Without maps and pushes: maps are flat arrays.
    #[default]
    Two,
    /// With both.
    Three,
}

/// A reply or a push.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A short text without line breaks.
    Simple(&'static str),
    /// A text or bytes.
    Bytes(Vec<u8>),
    /// A constant text.
    Text(&'static str),
    /// A number.
    Number(u64),
    /// A number below 0.
    Negative(i64),
    /// Nothing: not available, not there.
    Nil,
    /// Several.
    Array(Vec<Reply>),
    /// Several replies to one command.
    Several(Vec<Reply>),
    /// Names and values.
    Map(Vec<(&'static str, Reply)>),
    /// A push; in version 2 an array.
    Push(Vec<Reply>),
    /// A failure: a stable code, and a message for people.
    Error(&'static str, String),
}

impl Reply {
    /// Returns a text.
    pub fn text(text: impl Into<String>) -> Reply {
        Reply::Bytes(text.into().into_bytes())
    }

    /// Appends its bytes.
    pub fn encode(&self, version: Version, into: &mut Vec<u8>) {
        match self {
            Reply::Simple(text) => line(into, '+', text),
            Reply::Text(text) => bytes(into, text.as_bytes()),
            Reply::Bytes(data) => bytes(into, data),
            Reply::Number(number) => line(into, ':', number),
            Reply::Negative(number) => line(into, ':', number),
            Reply::Nil => into.extend_from_slice(if version == Version::Three { b"_\r\n" } else { b"$-1\r\n" }),
            Reply::Array(items) => {
                line(into, '*', items.len());
                items.iter().for_each(|item| item.encode(version, into));
            }
            Reply::Several(replies) => replies.iter().for_each(|reply| reply.encode(version, into)),
            Reply::Push(items) => {
                line(into, if version == Version::Three { '>' } else { '*' }, items.len());
                items.iter().for_each(|item| item.encode(version, into));
            }
            Reply::Map(fields) => {
                match version {
                    Version::Two => line(into, '*', fields.len() * 2),
                    Version::Three => line(into, '%', fields.len()),
                }
                for (name, value) in fields {
                    bytes(into, name.as_bytes());
                    value.encode(version, into);
                }
            }
            Reply::Error(code, message) => line(into, '-', format_args!("{code} {}", one_line(message))),
        }
    }
}

impl From<i64> for Reply {
    fn from(number: i64) -> Reply {
        u64::try_from(number).map_or(Reply::Negative(number), Reply::Number)
    }
}

fn line(into: &mut Vec<u8>, type_byte: char, what: impl std::fmt::Display) {
    struct Sink<'a>(&'a mut Vec<u8>);
    impl Write for Sink<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
    // Writing to a vector cannot fail.
    let _ = write!(Sink(into), "{type_byte}{what}\r\n");
}

fn bytes(into: &mut Vec<u8>, data: &[u8]) {
    line(into, '$', data.len());
    into.extend_from_slice(data);
    into.extend_from_slice(b"\r\n");
}

/// Replaces line breaks, since an error is one line.
fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(['\r', '\n']) { Cow::Owned(text.replace(['\r', '\n'], " ")) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(reply: &Reply, version: Version) -> String {
        let mut bytes = Vec::new();
        reply.encode(version, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn maps_are_flat_in_version_two() {
        let map = Reply::Map(vec![("token", Reply::Number(7)), ("label", Reply::text("x")), ("value", Reply::Nil)]);
        assert_eq!(
            encoded(&map, Version::Three),
            "%3\r\n$5\r\ntoken\r\n:7\r\n$5\r\nlabel\r\n$1\r\nx\r\n$5\r\nvalue\r\n_\r\n"
        );
        assert_eq!(
            encoded(&map, Version::Two),
            "*6\r\n$5\r\ntoken\r\n:7\r\n$5\r\nlabel\r\n$1\r\nx\r\n$5\r\nvalue\r\n$-1\r\n"
        );
    }

    #[test]
    fn an_error_stays_one_line() {
        let error = Reply::Error("BADARG", "'a\r\n+OK' is no name".to_owned());
        assert_eq!(encoded(&error, Version::Two), "-BADARG 'a  +OK' is no name\r\n");
    }
}
