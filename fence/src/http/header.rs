//! The request header `Fencing-Token`.

use std::fmt::{self, Write};

use palisade_core::{LockName, Token};

use crate::{Author, Seq};

/// The request header's name.
pub const FENCING_TOKEN: &str = "fencing-token";

/// Longer than any valid header.
const MAX_BYTES: usize = 4096;

/// The header `Fencing-Token` of a request: the token and the operation.
///
/// | | |
/// |---|---|
/// | `34` | a read under token 34 |
/// | `34; seq=2` | the second write under it; `author=N` tells several writers under one token apart |
/// | `34; seal` | refuse tokens older than 34, before anything is read |
/// | `34; seq=2; settle` | use up number 2 without a write, or return the outcome of write 2 |
///
/// Without a token, `mark` reads the resource's mark, and changes nothing.
///
/// `lock="orders/42"` can be added to each. A name that is not ASCII is written `%"b%c3%bccher"`. The header is an Item
/// of RFC 9651, except that its numbers go up to 2^53 - 1. Each parameter comes at most once, and an unknown one is
/// refused.
///
/// ```
/// use palisade_fence::http::FencingToken;
/// let header: FencingToken = r#"34; lock="orders/42"; seq=2"#.parse()?;
/// assert_eq!(header.token.get(), 34);
/// assert_eq!(header.to_string(), r#"34; lock="orders/42"; seq=2"#);
/// assert!("34; sequence=2".parse::<FencingToken>().is_err());
/// # Ok::<(), palisade_fence::http::BadHeader>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencingToken {
    /// The token of the grant.
    pub token: Token,
    /// The lock that it was granted for.
    pub lock: Option<LockName>,
    /// The operation.
    pub step: Step,
}

/// The parsed header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Presented {
    /// A token and its operation.
    Token(FencingToken),
    /// `mark`: reads the mark.
    Mark(Option<LockName>),
}

impl Presented {
    pub(super) fn lock(&self) -> Option<&LockName> {
        match self {
            Presented::Token(header) => header.lock.as_ref(),
            Presented::Mark(lock) => lock.as_ref(),
        }
    }
}

/// Returns the header `Fencing-Token` of a GET or HEAD that reads a resource's mark. The reply is
/// [`FencingVerdict::Marked`](super::FencingVerdict).
///
/// ```
/// assert_eq!(palisade_fence::http::mark_header(None), "mark");
/// ```
pub fn mark_header(lock: Option<&LockName>) -> String {
    Presented::Mark(lock.cloned()).to_string()
}

impl fmt::Display for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Presented::Token(header) => write!(f, "{header}"),
            Presented::Mark(lock) => {
                f.write_str("mark")?;
                lock.as_ref().map_or(Ok(()), |lock| write_lock(f, lock))
            }
        }
    }
}

impl std::str::FromStr for Presented {
    type Err = BadHeader;

    fn from_str(text: &str) -> Result<Presented, BadHeader> {
        let Some(rest) = text.strip_prefix("mark").filter(|_| text.len() <= MAX_BYTES) else {
            return text.parse().map(Presented::Token);
        };
        let (mut rest, mut found) = (Cursor { text: rest }, Found::default());
        while !rest.text.is_empty() {
            rest.parameter(&mut found)?;
        }
        match found {
            Found { lock, seq: None, author: None, seal: None, settle: None } => Ok(Presented::Mark(lock)),
            _ => Err(BadHeader(
                "`mark` only reads: it can have a lock and nothing else, as in `mark; lock=\"orders\"`".to_owned(),
            )),
        }
    }
}

/// The operation under a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Seal: refuse older tokens from now on.
    Seal,
    /// Read.
    Read,
    /// Write under this number.
    Write(Seq, Author),
    /// Use up this number without a write, or return the outcome of the write under it.
    Settle(Seq, Author),
}

/// Why a header is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadHeader(String);

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadHeader {}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.token)?;
        if let Some(lock) = &self.lock {
            write_lock(f, lock)?;
        }
        match self.step {
            Step::Read => Ok(()),
            Step::Seal => f.write_str("; seal"),
            Step::Write(seq, author) => write_number(f, seq, author),
            Step::Settle(seq, author) => write_number(f, seq, author).and_then(|()| f.write_str("; settle")),
        }
    }
}

fn write_lock(f: &mut fmt::Formatter<'_>, lock: &LockName) -> fmt::Result {
    f.write_str("; lock=")?;
    write_text(f, lock.as_str())
}

fn write_number(f: &mut fmt::Formatter<'_>, seq: Seq, author: Author) -> fmt::Result {
    write!(f, "; seq={seq}")?;
    if author != Author::default() { write!(f, "; author={author}") } else { Ok(()) }
}

fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let is_ascii = text.is_ascii();
    f.write_str(if is_ascii { "\"" } else { "%\"" })?;
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' if is_ascii => write!(f, "\\{}", char::from(byte))?,
            b'"' | b'%' if !is_ascii => write!(f, "%{byte:02x}")?,
            0x20..0x7f => f.write_char(char::from(byte))?,
            _ => write!(f, "%{byte:02x}")?,
        }
    }
    f.write_char('"')
}

impl std::str::FromStr for FencingToken {
    type Err = BadHeader;

    fn from_str(text: &str) -> Result<FencingToken, BadHeader> {
        if text.len() > MAX_BYTES {
            return Err(BadHeader(format!("it is longer than {MAX_BYTES} bytes")));
        }
        let mut rest = Cursor { text };
        let token = Token::new(rest.number("the token")?).map_err(|error| BadHeader(error.to_string()))?;
        let mut found = Found::default();
        while !rest.text.is_empty() {
            rest.parameter(&mut found)?;
        }
        Ok(FencingToken { token, step: found.step()?, lock: found.lock })
    }
}

/// The parameters so far.
#[derive(Default)]
struct Found {
    lock: Option<LockName>,
    seq: Option<Seq>,
    author: Option<Author>,
    seal: Option<()>,
    settle: Option<()>,
}

impl Found {
    fn step(&self) -> Result<Step, BadHeader> {
        let author = self.author.unwrap_or_default();
        match (self.seq, self.seal, self.settle) {
            (None, Some(()), None) if self.author.is_none() => Ok(Step::Seal),
            (None, None, None) if self.author.is_none() => Ok(Step::Read),
            (Some(Seq::NONE), ..) => Err(BadHeader("writes are numbered from 1".to_owned())),
            (Some(seq), None, None) => Ok(Step::Write(seq, author)),
            (Some(seq), None, Some(())) => Ok(Step::Settle(seq, author)),
            (_, Some(()), _) => Err(BadHeader("a seal has neither number nor author".to_owned())),
            (None, ..) => Err(BadHeader("`author` and `settle` need the number of a write: seq=N".to_owned())),
        }
    }
}

/// The rest of the header.
struct Cursor<'a> {
    text: &'a str,
}

impl Cursor<'_> {
    fn parameter(&mut self, found: &mut Found) -> Result<(), BadHeader> {
        if !self.take(';') {
            return Err(BadHeader(format!("a `;` is missing before '{}'", self.text.escape_debug())));
        }
        self.text = self.text.trim_start_matches(' ');
        let end = self.text.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(self.text.len());
        let (name, rest) = self.text.split_at(end);
        let name = name.to_owned();
        self.text = rest;
        match name.as_str() {
            "seal" => once(&mut found.seal, (), &name),
            "settle" => once(&mut found.settle, (), &name),
            "seq" => once(&mut found.seq, numbered(self.value("seq")?, Seq::new)?, &name),
            "author" => once(&mut found.author, numbered(self.value("author")?, Author::new)?, &name),
            "lock" => {
                let lock = LockName::new(&self.text()?).map_err(|error| BadHeader(error.to_string()))?;
                once(&mut found.lock, lock, &name)
            }
            _ => Err(BadHeader(format!("there is no parameter '{name}'; there are lock, seq, author, seal, settle"))),
        }
    }

    fn value(&mut self, what: &str) -> Result<u64, BadHeader> {
        if self.take('=') { self.number(what) } else { Err(BadHeader(format!("{what} needs a number: {what}=N"))) }
    }

    fn number(&mut self, what: &str) -> Result<u64, BadHeader> {
        let end = self.text.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.text.len());
        let (digits, rest) = self.text.split_at(end);
        let is_plain = digits == "0" || !digits.starts_with('0');
        match digits.parse() {
            Ok(number) if is_plain && digits.len() <= 16 => {
                self.text = rest;
                Ok(number)
            }
            _ => Err(BadHeader(format!("{what} is not a whole number of at most 16 digits, as in `34; seq=2`"))),
        }
    }

    /// Parses a quoted text, or a percent-encoded one if it is not ASCII.
    fn text(&mut self) -> Result<String, BadHeader> {
        let bad = || BadHeader("the lock's name is not in quotes, or badly encoded: lock=\"orders/42\"".to_owned());
        let is_quoted = self.take('=');
        let is_encoded = self.take('%');
        if !is_quoted || !self.take('"') {
            return Err(bad());
        }
        let mut bytes = Vec::new();
        let mut left = self.text.bytes().enumerate();
        while let Some((at, byte)) = left.next() {
            let next = match (byte, is_encoded) {
                (b'"', _) => {
                    self.text = &self.text[at + 1..];
                    return String::from_utf8(bytes).map_err(|_| bad());
                }
                (b'\\', false) => left.next().map(|(_, byte)| byte).filter(|byte| b"\"\\".contains(byte)),
                (b'%', true) => {
                    let digit = |next: Option<(usize, u8)>| char::from(next?.1).to_digit(16).map(|it| it as u8);
                    digit(left.next()).zip(digit(left.next())).map(|(high, low)| high * 16 + low)
                }
                (0x20..0x7f, _) => Some(byte),
                _ => None,
            };
            bytes.push(next.ok_or_else(bad)?);
        }
        Err(bad())
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.text.strip_prefix(wanted);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }
}

fn numbered<N>(number: u64, of: impl Fn(u64) -> Result<N, crate::BadNumber>) -> Result<N, BadHeader> {
    of(number).map_err(|error| BadHeader(error.to_string()))
}

fn once<T>(slot: &mut Option<T>, value: T, name: &str) -> Result<(), BadHeader> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(BadHeader(format!("'{name}' comes twice"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<FencingToken, BadHeader> {
        text.parse()
    }

    #[test]
    fn every_step_is_parsed() {
        let seq = Seq::new(2).expect("a number");
        let step = |text| parse(text).expect("it is well-formed").step;
        assert_eq!(step("34"), Step::Read);
        assert_eq!(step("34;seal"), Step::Seal);
        assert_eq!(step("34; seq=2"), Step::Write(seq, Author::default()));
        assert_eq!(step("34;  settle; seq=2; author=7"), Step::Settle(seq, Author::new(7).expect("an author")));
    }

    #[test]
    fn a_header_can_ask_for_the_mark() {
        let presented = |text: &str| text.parse::<Presented>();
        let orders = LockName::new("orders").expect("a name");
        assert_eq!(presented("mark"), Ok(Presented::Mark(None)));
        assert_eq!(presented("mark; lock=\"orders\""), Ok(Presented::Mark(Some(orders.clone()))));
        assert_eq!(Presented::Mark(Some(orders)).to_string(), "mark; lock=\"orders\"");
        assert_eq!(presented("34"), parse("34").map(Presented::Token));
        for text in ["mark; seal", "mark; seq=1", "mark; author=1", "marks", "mark 34", "34; mark", "Mark", "mark;"] {
            assert!(presented(text).is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn an_invalid_header_is_refused() {
        let long = format!("34; lock=\"{}\"", "x".repeat(5000));
        let bad = [
            "",
            " ",
            "0",
            "-1",
            "+1",
            "034",
            "34 ",
            "34,35",
            "34;",
            "34; ",
            "34 ;seal",
            "34;seal=?1",
            "34; seq",
            "34; seq=",
            "34; seq=x",
            "34; seq=0",
            "34; seq=-1",
            "34; seq=02",
            "34; seq=1; seq=1",
            "34; seq=1; seal",
            "34; author=1",
            "34; settle",
            "34; seal; author=3",
            "34; Seq=1",
            "34; sequence=1",
            "34; lock=orders",
            "34; lock=\"orders",
            "34; lock=\"\"",
            "34; lock=\"$x\"",
            "34; lock=\"a\\nb\"",
            "34; lock=\"a\tb\"",
            "34; lock=%\"%0a\"",
            "34; lock=%\"%ff\"",
            "34; lock=%\"%4\"",
            "34; lock=\"bücher\"",
            "34; lock=\"a\" b",
            "9007199254740992",
            "99999999999999999999999",
            "34; seq=9007199254740992",
            "34; author=9007199254740992",
            "34; seal; seal",
            &long,
        ];
        for text in bad {
            assert!(parse(text).is_err(), "{text:?} must be refused");
        }
    }

    prop_compose! {
        fn headers()(token in 1..=Token::MAX.get(), lock in proptest::option::of("[^\\pC$]{1,40}"), step in 0..4,
                     seq in 1..=Token::MAX.get(), author in 0..=Token::MAX.get()) -> FencingToken {
            let (seq, author) = (Seq::new(seq).expect("a number"), Author::new(author).expect("an author"));
            let step = [Step::Read, Step::Seal, Step::Write(seq, author), Step::Settle(seq, author)][step as usize];
            let lock = lock.and_then(|name| LockName::new(&name).ok());
            FencingToken { token: Token::new(token).expect("a token"), lock, step }
        }
    }

    proptest! {
        #[test]
        fn a_written_header_is_read_back(header in headers()) {
            let text = header.to_string();
            prop_assert!(text.is_ascii(), "{text}");
            prop_assert_eq!(parse(&text), Ok(header));
        }

        #[test]
        fn no_text_breaks_the_parser(text in "\\PC*") {
            let _ = parse(&text);
        }

        /// Texts that are nearly headers. An accepted one has one meaning.
        #[test]
        fn an_accepted_header_is_unambiguous(text in "[0-9]{1,17}(; ?(lock=%?\"[a-z%\\\\\"0-9é]{0,6}\"|seq=[0-9]{1,3}|author=[0-9]|seal|settle)){0,4}") {
            if let Ok(header) = parse(&text) {
                prop_assert_eq!(parse(&header.to_string()), Ok(header));
            }
        }
    }
}
