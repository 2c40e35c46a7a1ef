//! What the service answers, read into the words of the engine.

use palisade_core::{BadNumber, SessionId, Token};
use redis_protocol::resp3::types::BytesFrame;

use super::error::Denied;

/// An answer that is not what the question calls for.
#[derive(Debug)]
pub(super) struct Unexpected(pub(super) String);

impl Unexpected {
    pub(super) fn instead_of(what: &str, frame: &BytesFrame) -> Unexpected {
        let shown: String = format!("{frame:?}").chars().take(200).collect();
        Unexpected(format!("instead of {what}: {shown}"))
    }
}

impl From<BadNumber> for Unexpected {
    fn from(bad: BadNumber) -> Unexpected {
        Unexpected(bad.to_string())
    }
}

/// The answer, if it is none of failure.
pub(super) fn accepted(frame: BytesFrame) -> Result<BytesFrame, Denied> {
    match frame {
        BytesFrame::SimpleError { data, .. } => Err(Denied::parse(&data)),
        frame => Ok(frame),
    }
}

pub(super) fn is_nil(frame: &BytesFrame) -> bool {
    matches!(frame, BytesFrame::Null)
}

pub(super) fn is_text(frame: &BytesFrame, text: &str) -> bool {
    match frame {
        BytesFrame::BlobString { data, .. } | BytesFrame::SimpleString { data, .. } => data == text.as_bytes(),
        _ => false,
    }
}

pub(super) fn bytes(frame: &BytesFrame) -> Result<&[u8], Unexpected> {
    match frame {
        BytesFrame::BlobString { data, .. } | BytesFrame::SimpleString { data, .. } => Ok(data),
        other => Err(Unexpected::instead_of("a text", other)),
    }
}

pub(super) fn text(frame: &BytesFrame) -> Result<&str, Unexpected> {
    std::str::from_utf8(bytes(frame)?).map_err(|_| Unexpected::instead_of("a text", frame))
}

pub(super) fn number(frame: &BytesFrame) -> Result<u64, Unexpected> {
    match frame {
        BytesFrame::Number { data, .. } => {
            u64::try_from(*data).map_err(|_| Unexpected::instead_of("a number", frame))
        }
        other => Err(Unexpected::instead_of("a number", other)),
    }
}

pub(super) fn small(frame: &BytesFrame) -> Result<u32, Unexpected> {
    u32::try_from(number(frame)?).map_err(|_| Unexpected::instead_of("a small number", frame))
}

pub(super) fn token(frame: &BytesFrame) -> Result<Token, Unexpected> {
    Ok(Token::new(number(frame)?)?)
}

pub(super) fn session(frame: &BytesFrame) -> Result<SessionId, Unexpected> {
    Ok(SessionId::new(number(frame)?)?)
}

pub(super) fn items(frame: &BytesFrame) -> Result<&[BytesFrame], Unexpected> {
    match frame {
        BytesFrame::Array { data, .. } => Ok(data),
        other => Err(Unexpected::instead_of("an array", other)),
    }
}

/// A field of a map.
pub(super) fn field<'a>(frame: &'a BytesFrame, name: &str) -> Result<&'a BytesFrame, Unexpected> {
    let BytesFrame::Map { data, .. } = frame else { return Err(Unexpected::instead_of("a map", frame)) };
    let found = data.iter().find(|(key, _)| is_text(key, name));
    found.map(|(_, value)| value).ok_or_else(|| Unexpected(format!("a map has no field '{name}'")))
}

/// What is there, unless nothing is.
pub(super) fn optional<'a, T>(
    frame: &'a BytesFrame,
    read: impl FnOnce(&'a BytesFrame) -> Result<T, Unexpected>,
) -> Result<Option<T>, Unexpected> {
    if is_nil(frame) { Ok(None) } else { read(frame).map(Some) }
}
