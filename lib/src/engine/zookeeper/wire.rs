//! The nodes: their paths, names and contents.

use palisade_core::{LockName, Mode, Refusal, RequestNo, SessionId, Token, Value};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

/// Ended grants that a lock remembers.
const HISTORY: usize = 16;
/// The most bytes of a lock's ended grants. A release of 64 locks writes them all with one request, which has at most 1 MiB.
const HISTORY_BYTES: usize = 8 << 10;
/// Force-releases that a session remembers until its client has read them.
const LOST: usize = 64;

/// The characters that a node's name cannot have, and `%`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// The end of the path of a lock's claims.
pub(super) const CLAIMS: &str = "/claims";

/// Returns the node of the lock whose claims have this parent.
pub(super) fn lock_node(parent: &str) -> &str {
    parent.strip_suffix(CLAIMS).unwrap_or(parent)
}

/// The paths of the nodes of one namespace.
pub(super) struct Paths {
    pub(super) root: String,
}

impl Paths {
    /// Contains the number that is added to every new token.
    pub(super) fn offset(&self) -> String {
        format!("{}/offset", self.root)
    }

    pub(super) fn locks(&self) -> String {
        format!("{}/locks", self.root)
    }

    /// The node of a lock, which contains its history.
    pub(super) fn lock(&self, lock: &LockName) -> String {
        format!("{}/locks/{}", self.root, utf8_percent_encode(lock.as_str(), ENCODED))
    }

    /// The parent of a lock's claims.
    pub(super) fn claims(&self, lock: &LockName) -> String {
        self.lock(lock) + CLAIMS
    }

    pub(super) fn sessions(&self) -> String {
        format!("{}/sessions", self.root)
    }

    pub(super) fn session(&self, session: SessionId) -> String {
        format!("{}/sessions/{:x}", self.root, session.get())
    }

    /// The parent of the records of force-releases.
    pub(super) fn forced(&self) -> String {
        format!("{}/forced", self.root)
    }

    /// The name of the lock that a path is at or below.
    pub(super) fn lock_at(&self, path: &str) -> Option<LockName> {
        let rest = path.strip_prefix(&self.root)?.strip_prefix("/locks/")?;
        lock_name(rest.split('/').next()?)
    }
}

pub(super) fn lock_name(node: &str) -> Option<LockName> {
    LockName::new(&percent_decode_str(node).decode_utf8().ok()?).ok()
}

/// The name of a claim's node: `SESSION-NUMBER-MODE-SEQUENCE`. The server adds the sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimName {
    pub(super) session: SessionId,
    pub(super) number: RequestNo,
    pub(super) mode: Mode,
    /// Whether the claim is for several locks.
    pub(super) is_set: bool,
    /// Rises with every new node of the parent, and wraps.
    sequence: i32,
}

impl ClaimName {
    /// The part before the mode, which no other request has.
    pub(super) fn prefix(session: SessionId, number: RequestNo) -> String {
        format!("{:x}-{}-", session.get(), number.get())
    }

    /// The name without the sequence.
    pub(super) fn unnumbered(session: SessionId, number: RequestNo, mode: Mode, is_set: bool) -> String {
        let mode = match mode {
            Mode::Exclusive => "x".to_owned(),
            Mode::Shared => "s".to_owned(),
            Mode::Permits { count, of } => format!("p{count}of{of}"),
        };
        format!("{}{}{mode}-", ClaimName::prefix(session, number), if is_set { "m" } else { "" })
    }

    pub(super) fn parse(node: &str) -> Option<ClaimName> {
        let mut parts = node.splitn(4, '-');
        let session = SessionId::new(u64::from_str_radix(parts.next()?, 16).ok()?).ok()?;
        let number = RequestNo::new(parts.next()?.parse().ok()?).ok()?;
        let mode = parts.next()?;
        let sequence = parts.next()?.parse().ok()?;
        let (is_set, mode) = mode.strip_prefix('m').map_or((false, mode), |mode| (true, mode));
        let mode = match mode {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            permits => {
                let (count, of) = permits.strip_prefix('p')?.split_once("of")?;
                Mode::Permits { count: count.parse().ok()?, of: of.parse().ok()? }
            }
        };
        Some(ClaimName { session, number, mode, is_set, sequence })
    }

    /// Whether this claim was created before the other one of the same lock. The sequence counts the changes of the parent's
    /// children in 32 bits and wraps, so only the difference says which is older.
    fn is_older_than(&self, other: &ClaimName) -> bool {
        self.sequence.wrapping_sub(other.sequence) < 0
    }
}

/// Sorts the claims of a lock by their creation. Skips nodes that are no claims.
pub(super) fn sorted(nodes: Vec<String>) -> Vec<(ClaimName, String)> {
    let mut claims: Vec<_> =
        nodes.into_iter().filter_map(|node| ClaimName::parse(&node).map(|name| (name, node))).collect();
    claims.sort_by(|(a, _), (b, _)| match (a.is_older_than(b), b.is_older_than(a)) {
        (true, _) => std::cmp::Ordering::Less,
        (_, true) => std::cmp::Ordering::Greater,
        _ => std::cmp::Ordering::Equal,
    });
    claims
}

/// The contents of a claim's node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimData {
    pub(super) label: String,
    /// The number that the client adds to the node's czxid to get the token.
    #[serde(default)]
    pub(super) offset: u64,
    /// The names of all locks of a claim for several locks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<String>,
    /// Whether a claim for several locks is granted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) granted: bool,
    /// The published value, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<String>,
}

impl ClaimData {
    pub(super) fn published(&self) -> Option<Value> {
        let digits = self.value.as_ref()?;
        let bytes = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok());
        bytes.collect::<Option<Vec<_>>>().map(|bytes| Value::new(&bytes))
    }

    pub(super) fn publish(&mut self, value: &Value) {
        self.value = Some(value.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect());
    }

    /// The token of a claim whose node was created by this transaction.
    pub(super) fn token(&self, czxid: i64) -> Result<Token, Refusal> {
        let number = u64::try_from(czxid).ok().and_then(|czxid| czxid.checked_add(self.offset));
        number.and_then(|number| Token::new(number).ok()).ok_or(Refusal::TokensExhausted { max: Token::MAX })
    }
}

/// The contents of a session's node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionData {
    pub(super) label: String,
    /// Its grants that were released by force, for its client to read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) lost: Vec<LostData>,
}

impl SessionData {
    pub(super) fn add(&mut self, lost: LostData) {
        self.lost.push(lost);
        let excess = self.lost.len().saturating_sub(LOST);
        self.lost.drain(..excess);
    }
}

/// A grant that was released by force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LostData {
    pub(super) token: u64,
    pub(super) moved_to: u64,
    pub(super) by: String,
    pub(super) reason: String,
}

/// The record of a force-release, which stays until an operator deletes it.
#[derive(Debug, Serialize)]
pub(super) struct ForcedData<'a> {
    pub(super) lock: &'a str,
    pub(super) tokens: &'a [u64],
    pub(super) by: &'a str,
    pub(super) reason: &'a str,
}

/// The contents of a lock's node: a line for each of the last grants that ended, oldest first. A holder adds its
/// line without parsing the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LockData(pub(super) Vec<u8>);

impl LockData {
    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
    }

    pub(super) fn history(&self) -> impl Iterator<Item = EndedData> {
        self.lines().filter_map(|line| serde_json::from_slice(line).ok())
    }

    pub(super) fn with(&self, ended: &EndedData) -> LockData {
        let skipped = (self.lines().count() + 1).saturating_sub(HISTORY);
        let last = write(ended);
        let mut lines: Vec<_> = self.lines().skip(skipped).collect();
        lines.push(&last);
        let (mut bytes, mut excess) = (lines.iter().map(|line| line.len() + 1).sum::<usize>(), 0);
        while bytes > HISTORY_BYTES && excess + 1 < lines.len() {
            bytes -= lines[excess].len() + 1;
            excess += 1;
        }
        LockData(lines[excess..].join(&b'\n'))
    }
}

/// A grant that ended by a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedData {
    pub(super) token: u64,
    pub(super) session: u64,
    pub(super) label: String,
    /// The user and the reason of a force-release, and the token that it moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forced: Option<(String, String, u64)>,
}

/// Returns a node's contents; the default if they cannot be read, as in a node that another program created.
pub(super) fn read<T: Default + for<'a> Deserialize<'a>>(data: &[u8]) -> T {
    serde_json::from_slice(data).unwrap_or_default()
}

pub(super) fn write<T: Serialize>(data: &T) -> Vec<u8> {
    let Ok(text) = serde_json::to_vec(data) else { unreachable!("its maps have string keys") };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(mode: Mode, sequence: i32) -> String {
        let (session, number) = (SessionId::new(0xabc).expect("one"), RequestNo::new(7).expect("one"));
        format!("{}{sequence:010}", ClaimName::unnumbered(session, number, mode, false))
    }

    #[test]
    fn the_name_of_a_claim_is_read_back() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 2, of: 30 }] {
            for is_set in [false, true] {
                let (session, number) = (SessionId::new(0xabc).expect("one"), RequestNo::new(7).expect("one"));
                for sequence in [0, 12, i32::MAX, i32::MIN, -1] {
                    let node = format!("{}{sequence:010}", ClaimName::unnumbered(session, number, mode, is_set));
                    assert!(node.starts_with(&ClaimName::prefix(session, number)));
                    let parsed = ClaimName::parse(&node);
                    assert_eq!(parsed, Some(ClaimName { session, number, mode, is_set, sequence }), "{node}");
                }
            }
        }
        for node in
            ["", "lock-0000000001", "abc-7-x", "abc-7-q-0000000001", "0-7-x-0000000001", "abc-7-p2-0000000001"]
        {
            assert_eq!(ClaimName::parse(node), None, "{node}");
        }
    }

    #[test]
    fn claims_keep_their_order_when_the_sequence_wraps() {
        let sequences = [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1, i32::MIN + 2];
        let mut nodes: Vec<_> = sequences.iter().map(|sequence| name(Mode::Exclusive, *sequence)).collect();
        let expected = nodes.clone();
        nodes.reverse();
        nodes.swap(0, 2);
        nodes.push("another program's node".to_owned());
        let found: Vec<_> = sorted(nodes).into_iter().map(|(_, node)| node).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_lock_remembers_the_last_grants_that_ended() {
        let ended = |token, forced: bool| {
            let forced = forced.then(|| ("bob".to_owned(), "it\nhangs".to_owned(), token + 1));
            EndedData { token, session: 7, label: "a\n\"label\"".to_owned(), forced }
        };
        let data = (1..=20).fold(LockData::default(), |data, token| data.with(&ended(token, token % 10 == 0)));
        let expected: Vec<_> = (5..=20).map(|token| ended(token, token % 10 == 0)).collect();
        assert_eq!(data.history().collect::<Vec<_>>(), expected);
        assert_eq!(LockData(b"{{{\n\n1".to_vec()).history().count(), 0);
    }

    /// A release of the largest set writes the histories of all its locks with one request.
    #[test]
    fn a_history_of_long_labels_is_bounded_in_bytes() {
        let ended = |token| EndedData { token, session: 7, label: "\u{1}".repeat(256), forced: None };
        let data = (1..=20).fold(LockData::default(), |data, token| data.with(&ended(token)));
        assert!(data.0.len() <= HISTORY_BYTES, "{} bytes", data.0.len());
        assert_eq!(data.history().last(), Some(ended(20)));
        assert!(data.history().count() > 1);
    }

    #[test]
    fn every_lock_name_is_a_node_name() {
        let paths = Paths { root: "/palisade".to_owned() };
        for text in ["orders/42", ".", "..", "a b%2F", "straße 🦀", "a-b_c"] {
            let lock = LockName::new(text).expect("a name");
            let path = paths.lock(&lock);
            let node = path.strip_prefix("/palisade/locks/").expect("a lock's path");
            assert!(node.chars().all(|c| c.is_ascii_alphanumeric() || "-_%".contains(c)), "{node}");
            assert_eq!(paths.lock_at(&format!("{path}/claim")), Some(lock));
        }
    }

    #[test]
    fn a_token_is_the_czxid_and_the_offset() {
        let data = ClaimData { offset: 5, ..ClaimData::default() };
        assert_eq!(data.token(37).map(Token::get), Ok(42));
        assert!(data.token((1 << 53) - 6).is_ok() && data.token((1 << 53) - 5).is_err() && data.token(-1).is_err());
    }
}
