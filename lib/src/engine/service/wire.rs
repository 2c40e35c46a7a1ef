//! The wire format of commands, replies and pushes.

use std::io::Write;
use std::sync::Arc;

use palisade_core::{
    Acquire, Ending, Force, Label, Limit, LockName, Mode, Patience, Refusal, RequestNo, SessionEnd, SessionId, Token,
    Value,
};
use redis_protocol::resp3::types::BytesFrame;

use super::ServiceBackend;
use super::error::{ReplyError, Unexpected};
use crate::engine::remote::{AcquireReply, Held, Push, forced_unseen};
use crate::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};

/// The longest label or value that is sent. The service closes a connection that sends a larger command.
const LONGEST_TEXT: usize = 64 << 10;
/// The most locks in one acquire, for the same reason.
const MOST_LOCKS: usize = 128;

/// A command, ready to be sent. It has no `Debug` form because it may contain a secret.
pub(super) struct Command {
    /// The words, each with its length.
    words: Vec<u8>,
    count: usize,
}

impl Command {
    pub(super) fn new(words: &[&str]) -> Command {
        words.iter().fold(Command { words: Vec::with_capacity(128), count: 0 }, |command, word| command.text(word))
    }

    fn bytes(mut self, word: &[u8]) -> Command {
        // Writing to a vector cannot fail.
        let _ = write!(self.words, "${}\r\n", word.len());
        self.words.extend_from_slice(word);
        self.words.extend_from_slice(b"\r\n");
        self.count += 1;
        self
    }

    pub(super) fn text(self, word: &str) -> Command {
        self.bytes(word.as_bytes())
    }

    pub(super) fn number(self, number: u64) -> Command {
        let mut digits = [0; 20];
        let mut rest = &mut digits[..];
        let _ = write!(rest, "{number}");
        let unused = rest.len();
        self.bytes(&digits[..20 - unused])
    }

    pub(super) fn session(self, session: SessionId) -> Command {
        self.text("SESSION").number(session.get())
    }

    pub(super) fn label(self, label: &Label) -> Result<Command, Refusal> {
        at_most(Limit::LabelBytes, label.as_str().len(), LONGEST_TEXT)?;
        Ok(self.text(label.as_str()))
    }

    pub(super) fn value(self, value: &Value) -> Result<Command, Refusal> {
        at_most(Limit::ValueBytes, value.as_bytes().len(), LONGEST_TEXT)?;
        Ok(self.text("VALUE").bytes(value.as_bytes()))
    }

    /// Appends a prefix, cut to the length of the longest name. The client compares locks and events with the whole prefix.
    pub(super) fn prefix(self, prefix: &str) -> Command {
        self.text(cut(prefix))
    }

    pub(super) fn on_session(verb: &str, session: SessionId) -> Command {
        Command::new(&["SESSION", verb]).number(session.get())
    }

    pub(super) fn on_grant(verb: &str, held: &Held) -> Command {
        Command::new(&["LOCK", verb, held.lock.as_str()]).number(held.token.get()).session(held.session)
    }

    pub(super) fn watch(prefix: &str) -> Command {
        Command::new(&["LOCK", "WATCH"]).prefix(prefix)
    }

    pub(super) fn acquire(acquire: &Acquire) -> Result<Command, Refusal> {
        let session = acquire.caller.session;
        let mut command = match (&acquire.value, acquire.wants.as_slice()) {
            (_, []) => return Err(Refusal::NoLocks),
            (Some(value), [want]) if want.mode == Mode::Exclusive => {
                Command::new(&["CAMPAIGN", want.lock.as_str()]).session(session).value(value)?
            }
            (Some(_), _) => return Err(Refusal::ValueNotPossible),
            (None, [want]) => {
                let command = Command::new(&["LOCK", "ACQUIRE", want.lock.as_str()]).session(session);
                match want.mode {
                    Mode::Exclusive => command,
                    Mode::Shared => command.text("SHARED"),
                    Mode::Permits { count, of } => {
                        command.text("PERMITS").number(count.into()).text("OF").number(of.into())
                    }
                }
            }
            (None, wants) => {
                at_most(Limit::LocksPerRequest, wants.len(), MOST_LOCKS)?;
                let command = Command::new(&["LOCK", "ALL"]).number(wants.len() as u64);
                let command = wants.iter().fold(command, |command, want| {
                    let command = command.text(want.lock.as_str());
                    match want.mode {
                        Mode::Exclusive => command.text("EXCLUSIVE"),
                        Mode::Shared => command.text("SHARED"),
                        Mode::Permits { count, of } => command.text(&format!("{count}/{of}")),
                    }
                });
                command.session(session)
            }
        };
        if let Some(delay) = acquire.delay {
            command = command.text("DELAY").number(delay.as_ms());
        }
        if let Some(number) = acquire.caller.number {
            command = command.text("REQ").number(number.get());
        }
        Ok(if acquire.patience == Patience::Wait { command.text("ASYNC") } else { command })
    }

    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let _ = write!(into, "*{}\r\n", self.count);
        into.extend_from_slice(&self.words);
    }
}

fn cut(prefix: &str) -> &str {
    let mut end = prefix.len().min(LockName::MAX_BYTES);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    &prefix[..end]
}

fn at_most(limit: Limit, value: usize, max: usize) -> Result<(), Refusal> {
    if value > max { Err(Refusal::OverLimit { limit, max: max as u64, value: value as u64 }) } else { Ok(()) }
}

/// Returns the reply, unless it is an error.
pub(super) fn accepted(reply: BytesFrame) -> Result<BytesFrame, ReplyError> {
    match reply {
        BytesFrame::SimpleError { data, .. } => Err(ReplyError::parse(&data)),
        reply => Ok(reply),
    }
}

pub(super) fn acquire_reply(reply: &BytesFrame) -> Result<AcquireReply, Unexpected> {
    Ok(match reply {
        BytesFrame::Null => AcquireReply::Busy,
        reply if is_text(reply, "QUEUED") => AcquireReply::Queued,
        reply => AcquireReply::Granted(token(field(reply, "token")?)?),
    })
}

pub(super) fn is_text(frame: &BytesFrame, text: &str) -> bool {
    bytes(frame).is_some_and(|bytes| bytes == text.as_bytes())
}

fn bytes(frame: &BytesFrame) -> Option<&[u8]> {
    match frame {
        BytesFrame::BlobString { data, .. } | BytesFrame::SimpleString { data, .. } => Some(data),
        _ => None,
    }
}

fn value(frame: &BytesFrame) -> Result<Value, Unexpected> {
    bytes(frame).map(Value::new).ok_or_else(|| Unexpected::instead_of("a value", frame))
}

/// Reads bytes.
pub(super) fn blob(frame: &BytesFrame) -> Result<Vec<u8>, Unexpected> {
    bytes(frame).map(<[u8]>::to_vec).ok_or_else(|| Unexpected::instead_of("bytes", frame))
}

pub(super) fn text(frame: &BytesFrame) -> Result<&str, Unexpected> {
    let text = bytes(frame).and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.ok_or_else(|| Unexpected::instead_of("a text", frame))
}

fn owned(frame: &BytesFrame) -> Result<String, Unexpected> {
    text(frame).map(str::to_owned)
}

pub(super) fn number(frame: &BytesFrame) -> Result<u64, Unexpected> {
    let number = match frame {
        BytesFrame::Number { data, .. } => u64::try_from(*data).ok(),
        _ => None,
    };
    number.ok_or_else(|| Unexpected::instead_of("a number", frame))
}

pub(super) fn small(frame: &BytesFrame) -> Result<u32, Unexpected> {
    u32::try_from(number(frame)?).map_err(|_| Unexpected::instead_of("a number of 32 bits", frame))
}

pub(super) fn token(frame: &BytesFrame) -> Result<Token, Unexpected> {
    Token::new(number(frame)?).map_err(|_| Unexpected::instead_of("a token", frame))
}

pub(super) fn session(frame: &BytesFrame) -> Result<SessionId, Unexpected> {
    SessionId::new(number(frame)?).map_err(|_| Unexpected::instead_of("a session", frame))
}

fn request_no(frame: &BytesFrame) -> Result<RequestNo, Unexpected> {
    RequestNo::new(number(frame)?).map_err(|_| Unexpected::instead_of("a request number", frame))
}

pub(super) fn items(frame: &BytesFrame) -> Result<&[BytesFrame], Unexpected> {
    match frame {
        BytesFrame::Array { data, .. } => Ok(data),
        other => Err(Unexpected::instead_of("an array", other)),
    }
}

/// Returns a field of a map.
pub(super) fn field<'a>(frame: &'a BytesFrame, name: &str) -> Result<&'a BytesFrame, Unexpected> {
    let BytesFrame::Map { data, .. } = frame else { return Err(Unexpected::instead_of("a map", frame)) };
    let found = data.iter().find(|(key, _)| is_text(key, name));
    found.map(|(_, value)| value).ok_or_else(|| Unexpected(format!("a map without the field '{name}'")))
}

/// Reads a frame that may be null.
pub(super) fn optional<'a, T>(
    frame: &'a BytesFrame,
    read: impl FnOnce(&'a BytesFrame) -> Result<T, Unexpected>,
) -> Result<Option<T>, Unexpected> {
    if matches!(frame, BytesFrame::Null) { Ok(None) } else { read(frame).map(Some) }
}

/// Reads a push; `None` for one of a newer service.
pub(super) fn push(items: &[BytesFrame]) -> Result<Option<Push>, Unexpected> {
    let [kind, rest @ ..] = items else { return Ok(None) };
    Ok(Some(match (text(kind)?, rest) {
        ("granted", [of, number, granted, ..]) if !matches!(number, BytesFrame::Null) => {
            Push::WaitEnded { session: session(of)?, number: request_no(number)?, outcome: Ok(token(granted)?) }
        }
        ("refused", [of, number, why, ..]) if !matches!(number, BytesFrame::Null) => {
            let session = session(of)?;
            let refusal = match text(why)? {
                "session-ended" => Refusal::NoSuchSession { session },
                "cancelled" => Refusal::NotWaiting,
                detail => json(detail)?,
            };
            Push::WaitEnded { session, number: request_no(number)?, outcome: Err(refusal) }
        }
        ("lost", [of, grant, how, why @ ..]) => {
            let token = token(grant)?;
            Push::GrantEnded { session: session(of)?, token, how: ending(token, text(how)?, why)? }
        }
        ("session-ended", [of, how, ..]) => {
            let how = if text(how)? == "closed" { SessionEnd::Closed } else { SessionEnd::Expired };
            Push::SessionEnded { session: session(of)?, how }
        }
        ("event", [_, detail, ..]) => Push::Event(json(text(detail)?)?),
        _ => return Ok(None),
    }))
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Unexpected> {
    serde_json::from_str(text).map_err(|error| Unexpected(format!("unreadable JSON ({error})")))
}

fn ending(token: Token, how: &str, why: &[BytesFrame]) -> Result<Ending, Unexpected> {
    Ok(match (how, why) {
        ("expired", _) => Ending::SessionEnded(SessionEnd::Expired),
        ("closed", _) => Ending::SessionEnded(SessionEnd::Closed),
        ("forced", [by, reason, moved_to, ..]) => Ending::Forced(Arc::new(Force {
            by: Label::new(text(by)?),
            reason: Label::new(text(reason)?),
            moved_to: self::token(moved_to)?,
        })),
        _ => forced_unseen::<ServiceBackend>(token),
    })
}

/// Reads a page of a lock, and the cursor of the next page, which is 0 after the last.
pub(super) fn lock(frame: &BytesFrame) -> Result<(LockInfo, u64), Unexpected> {
    let name = LockName::new(text(field(frame, "name")?)?);
    let limit = optional(field(frame, "limit")?, small)?;
    let list = |name| items(field(frame, name)?);
    let info = LockInfo {
        name: name.map_err(|_| Unexpected::instead_of("a lock with a valid name", frame))?,
        limit,
        holders: list("holders")?.iter().map(|frame| holder(frame, limit)).collect::<Result<_, _>>()?,
        waiters: list("waiters")?.iter().map(|frame| waiter(frame, limit)).collect::<Result<_, _>>()?,
        value: optional(field(frame, "value")?, value)?,
        history: list("history")?.iter().map(ended).collect::<Result<_, _>>()?,
    };
    Ok((info, number(field(frame, "cursor")?)?))
}

fn holder(frame: &BytesFrame, limit: Option<u32>) -> Result<HolderInfo, Unexpected> {
    Ok(HolderInfo {
        token: token(field(frame, "token")?)?,
        mode: mode(frame, limit)?,
        session: optional(field(frame, "session")?, session)?,
        label: optional(field(frame, "label")?, owned)?,
        held_for_ms: optional(field(frame, "held_for_ms")?, number)?,
        time_left_ms: optional(field(frame, "time_left_ms")?, number)?,
    })
}

fn waiter(frame: &BytesFrame, limit: Option<u32>) -> Result<WaiterInfo, Unexpected> {
    let (session, label) = (session(field(frame, "session")?)?, owned(field(frame, "label")?)?);
    Ok(WaiterInfo { session, label, mode: mode(frame, limit)? })
}

fn ended(frame: &BytesFrame) -> Result<EndedInfo, Unexpected> {
    Ok(EndedInfo {
        token: token(field(frame, "token")?)?,
        session: session(field(frame, "session")?)?,
        label: owned(field(frame, "label")?)?,
        how: owned(field(frame, "how")?)?,
    })
}

fn mode(frame: &BytesFrame, limit: Option<u32>) -> Result<Mode, Unexpected> {
    let mode = field(frame, "mode")?;
    match text(mode)? {
        "exclusive" => Ok(Mode::Exclusive),
        "shared" => Ok(Mode::Shared),
        "permits" => {
            let count = small(field(frame, "permits")?)?;
            Ok(Mode::Permits { count, of: limit.unwrap_or(count) })
        }
        _ => Err(Unexpected::instead_of("a mode", mode)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::{Delay, Reentry, Want};

    fn sent_as(command: &Command) -> String {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let text = String::from_utf8(bytes).expect("it is text");
        let words: Vec<_> = text.split("\r\n").skip(1).filter(|word| !word.starts_with('$')).collect();
        let count = words.len() - 1;
        assert!(text.starts_with(&format!("*{count}\r\n")), "{text}");
        words[..count].join(" ")
    }

    fn acquire_of(wants: &[(&str, Mode)]) -> Acquire {
        let session = SessionId::new(7).expect("not zero");
        let want = |(lock, mode): &(&str, Mode)| Want { lock: LockName::new(lock).expect("a name"), mode: *mode };
        let number = RequestNo::new(3).ok();
        Acquire {
            reentry: Reentry::Queue,
            ..Acquire::many(palisade_core::Caller { session, number }, wants.iter().map(want))
        }
    }

    #[test]
    fn an_acquire_is_encoded_with_all_its_fields() {
        let encoded = |acquire: &Acquire| sent_as(&Command::acquire(acquire).expect("a valid acquire"));
        assert_eq!(encoded(&acquire_of(&[("a", Mode::Exclusive)])), "LOCK ACQUIRE a SESSION 7 REQ 3");
        let delayed = Acquire {
            patience: Patience::Wait,
            delay: Delay::from_ms(20).ok(),
            ..acquire_of(&[("a", Mode::Permits { count: 2, of: 5 })])
        };
        assert_eq!(encoded(&delayed), "LOCK ACQUIRE a SESSION 7 PERMITS 2 OF 5 DELAY 20 REQ 3 ASYNC");
        let set = acquire_of(&[("session", Mode::Shared), ("TTL", Mode::Permits { count: 2, of: 5 })]);
        assert_eq!(encoded(&set), "LOCK ALL 2 session SHARED TTL 2/5 SESSION 7 REQ 3");
        let value = Some(Value::new(b"here"));
        let candidate = Acquire { value: value.clone(), ..acquire_of(&[("a", Mode::Exclusive)]) };
        assert_eq!(encoded(&candidate), "CAMPAIGN a SESSION 7 VALUE here REQ 3");
        let shared = Acquire { value, ..acquire_of(&[("a", Mode::Shared)]) };
        assert_eq!(Command::acquire(&shared).map(drop), Err(Refusal::ValueNotPossible));
        assert_eq!(Command::acquire(&acquire_of(&[])).map(drop), Err(Refusal::NoLocks));
    }

    #[test]
    fn a_long_prefix_is_cut_where_a_character_ends() {
        let prefix = "é".repeat(600);
        assert_eq!(cut(&prefix).len(), 1024);
        assert_eq!(cut(&format!("a{prefix}")).len(), 1023);
    }
}
