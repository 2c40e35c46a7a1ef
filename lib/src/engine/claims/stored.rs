//! The keys and values of claims in a key-value store.

use std::borrow::Cow;
use std::collections::BTreeMap;

use palisade_core::{Force, Label, LockName, LockNames, Mode, RequestNo, SessionId, Token, Value};
use percent_encoding::{AsciiSet, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use super::{ClaimView, Entry, Position, position};
use crate::engine::remote::ConnectError;
use crate::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};

/// How many ended grants of a lock are kept. A grant's record replaces that of an earlier grant whose token has the same
/// remainder.
const RECORDS: u64 = 16;

/// Describes data that this build cannot interpret.
#[derive(Debug)]
pub(crate) struct Unexpected(pub(crate) String);

impl Unexpected {
    /// Logs that a claim was left out of a list. `palisade ls` shows this target.
    pub(crate) fn warn(&self) {
        tracing::warn!(target: "palisade::unreadable", "a claim cannot be read, and is not shown: {}", self.0);
    }
}

/// A key of the store with its value.
pub(crate) trait Pair {
    fn key(&self) -> &[u8];
    fn value(&self) -> &[u8];
    /// The revision that created the key.
    fn created(&self) -> i64;
    /// The revision that wrote the value.
    fn changed(&self) -> i64;
    /// Whether a session holds the key, so that it goes with the session.
    fn is_held(&self) -> bool;
}

/// How the name of a lock is written in keys.
#[derive(Debug)]
pub(crate) struct NameForm {
    /// The characters that are percent-encoded.
    pub(crate) encoded: Option<&'static AsciiSet>,
    /// The character after a name, which no name contains in this form.
    pub(crate) end: char,
}

/// The keys of a prefix.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) all: String,
    form: &'static NameForm,
}

impl Keys {
    pub(crate) fn new(prefix: &str, form: &'static NameForm) -> Keys {
        Keys { all: format!("{prefix}/"), form }
    }

    fn written<'a>(&self, name: &'a str) -> Cow<'a, str> {
        self.form.encoded.map_or(name.into(), |encoded| utf8_percent_encode(name, encoded).into())
    }

    /// The begin of the keys of this kind for a lock.
    fn of_lock(&self, kind: &str, lock: &LockName) -> String {
        format!("{}{kind}/{}{}", self.all, self.written(lock.as_str()), self.form.end)
    }

    /// Returns the key of the offset. It does not exist until tokens are raised.
    pub(crate) fn offset(&self) -> String {
        format!("{}offset", self.all)
    }

    /// A session. Its records of losses begin with this key, too.
    pub(crate) fn session(&self, session: SessionId) -> String {
        format!("{}session/{:014x}", self.all, session.get())
    }

    /// The record that a grant of a session was released by force.
    pub(crate) fn lost(&self, session: SessionId, token: Token) -> String {
        format!("{}/lost/{token}", self.session(session))
    }

    /// The mark that an acquire was cancelled or released, so that a late copy of it creates no claim.
    pub(crate) fn done(&self, session: SessionId, number: RequestNo) -> String {
        format!("{}done/{:014x}-{number}", self.all, session.get())
    }

    /// The begin of the claims of all locks whose names begin with this prefix.
    pub(crate) fn locks(&self, prefix: &str) -> String {
        format!("{}lock/{}", self.all, self.written(prefix))
    }

    /// The begin of a lock's claims.
    pub(crate) fn claims(&self, lock: &LockName) -> String {
        self.of_lock("lock", lock)
    }

    /// A claim of a session. `place` tells its claims for the same lock apart.
    pub(crate) fn claim(&self, lock: &LockName, session: SessionId, place: impl Into<u64>) -> String {
        format!("{}{:014x}-{}", self.claims(lock), session.get(), place.into())
    }

    /// The begin of the records of a lock's grants that were released while the lock was in use.
    pub(crate) fn history(&self, lock: &LockName) -> String {
        self.of_lock("history", lock)
    }

    /// The begin of the records of a lock's grants that were released by force.
    pub(crate) fn forced(&self, lock: &LockName) -> String {
        self.of_lock("forced", lock)
    }

    /// The key of a record of this grant.
    pub(crate) fn record(begin: &str, token: Token) -> String {
        format!("{begin}{:02}", token.get() % RECORDS)
    }

    /// Returns what a key names; `None` for a key of another kind, or in another spelling than this build writes: other code
    /// writes a key again from its parts, to watch or delete it.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Key> {
        self.parse_any(key).filter(|parsed| self.written_key(parsed).as_bytes() == key)
    }

    fn written_key(&self, key: &Key) -> String {
        match key {
            Key::Claim(lock, session, place) => self.claim(lock, *session, *place),
            Key::Session(session) => self.session(*session),
            Key::Lost(session, token) => self.lost(*session, *token),
        }
    }

    fn parse_any(&self, key: &[u8]) -> Option<Key> {
        let rest = str::from_utf8(key).ok()?.strip_prefix(&self.all)?;
        let (kind, rest) = rest.split_once('/')?;
        match kind {
            "lock" => {
                let (lock, claim) = rest.split_once(self.form.end)?;
                let lock = match self.form.encoded {
                    Some(_) => percent_decode_str(lock).decode_utf8().ok()?,
                    None => lock.into(),
                };
                let (session, place) = claim.split_once('-')?;
                Some(Key::Claim(LockName::new(&lock).ok()?, session_id(session)?, place.parse().ok()?))
            }
            "session" => match rest.split_once("/lost/") {
                None => Some(Key::Session(session_id(rest)?)),
                Some((session, token)) => {
                    Some(Key::Lost(session_id(session)?, Token::new(token.parse().ok()?).ok()?))
                }
            },
            _ => None,
        }
    }
}

fn session_id(hex: &str) -> Option<SessionId> {
    SessionId::new(u64::from_str_radix(hex, 16).ok()?).ok()
}

/// What a key names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Claim(LockName, SessionId, u64),
    Session(SessionId),
    Lost(SessionId, Token),
}

/// The value of a session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SessionBody {
    #[serde(default)]
    pub(crate) label: String,
    #[serde(default)]
    pub(crate) ttl_ms: u64,
    /// Whether its client closes it: its keys are deleted next.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) closed: bool,
}

/// The value of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Body {
    /// The number of the acquire, unless it is the place in the claim's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<RequestNo>,
    /// The label of the session.
    pub(crate) label: String,
    /// `exclusive`, `shared`, or permits like `2/5`.
    #[serde(with = "mode")]
    pub(crate) mode: Mode,
    /// The number that the client adds to the claim's revision to get its token.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) offset: u64,
    /// All locks of a claim for several locks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) locks: Vec<LockName>,
    /// Whether a claim for several locks is granted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) granted: bool,
    /// The value that the holder publishes, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// The lock-delay.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) delay_ms: u64,
}

fn is_false(is: &bool) -> bool {
    !is
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The record of a grant that has ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) session: SessionId,
    pub(crate) label: String,
    pub(crate) token: Token,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) forced: Option<Force>,
}

impl Record {
    fn info(self) -> EndedInfo {
        let how = match &self.forced {
            None => "released".to_owned(),
            Some(force) => format!("forced by {}: {}", force.by.as_str(), force.reason.as_str()),
        };
        EndedInfo { token: self.token, session: self.session, label: self.label, how }
    }
}

mod mode {
    use super::Mode;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        match mode {
            Mode::Exclusive => serializer.serialize_str("exclusive"),
            Mode::Shared => serializer.serialize_str("shared"),
            Mode::Permits { count, of } => serializer.serialize_str(&format!("{count}/{of}")),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        let text = String::deserialize(deserializer)?;
        let permits = || {
            let (count, of) = text.split_once('/')?;
            Some(Mode::Permits { count: count.parse().ok()?, of: of.parse().ok()? })
        };
        match text.as_str() {
            "exclusive" => Ok(Mode::Exclusive),
            "shared" => Ok(Mode::Shared),
            _ => permits().ok_or_else(|| D::Error::custom("a mode is exclusive, shared or permits like 2/5")),
        }
    }
}

pub(crate) fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_else(|error| unreachable!("strings and numbers: {error}"))
}

pub(crate) fn hex(value: &Value) -> String {
    value.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(hex: &str) -> Option<Value> {
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    hex.as_bytes().chunks(2).map(byte).collect::<Option<Vec<_>>>().map(|bytes| Value::new(&bytes))
}

/// A claim in the list of one of its locks.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) lock: LockName,
    pub(crate) session: SessionId,
    pub(crate) place: u64,
    pub(crate) number: RequestNo,
    /// The revision that created it. All entries of a claim for several locks have the same.
    pub(crate) revision: i64,
    pub(crate) token: Token,
    /// Whether no session holds it: another program has written it, or its session has left it behind.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "Consul's lock-delays look at the key"))]
    pub(crate) is_abandoned: bool,
    pub(crate) body: Body,
}

impl Claim {
    pub(crate) fn read(keys: &Keys, kv: &impl Pair) -> Result<Claim, Unexpected> {
        let bad = |why: String| Unexpected(format!("the key '{}' {why}", kv.key().escape_ascii()));
        let Some(Key::Claim(lock, session, place)) = keys.parse(kv.key()) else {
            return Err(bad("among the claims".to_owned()));
        };
        let body: Body = serde_json::from_slice(kv.value())
            .map_err(|error| bad(format!("with a value of another form: {error}")))?;
        let number = body.number.or_else(|| RequestNo::new(place).ok());
        let number = number.ok_or_else(|| bad("without a request number".to_owned()))?;
        let revision = kv.created();
        let token = token(revision, body.offset).ok_or_else(|| {
            let offset = keys.offset();
            bad(format!("with an offset of {}, which is too high for a token (see the key '{offset}')", body.offset))
        })?;
        Ok(Claim { lock, session, place, number, revision, token, is_abandoned: !kv.is_held(), body })
    }

    pub(crate) fn is_of(&self, session: SessionId, number: RequestNo) -> bool {
        (self.session, self.number) == (session, number)
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry { mode: self.body.mode, is_settled: self.body.locks.is_empty() || self.body.granted }
    }

    /// All its locks.
    pub(crate) fn locks(&self) -> LockNames {
        match self.body.locks.is_empty() {
            true => [self.lock.clone()].into(),
            false => self.body.locks.iter().cloned().collect(),
        }
    }

    fn value(&self) -> Option<Value> {
        self.body.value.as_deref().and_then(unhex)
    }

    pub(crate) fn view(&self, is_granted: bool) -> ClaimView {
        ClaimView {
            session: self.session,
            number: self.number,
            token: self.token,
            locks: self.locks(),
            is_granted,
            value: self.value(),
        }
    }
}

/// The token of a claim that this revision created.
pub(crate) fn token(revision: i64, offset: u64) -> Option<Token> {
    Token::new(u64::try_from(revision).ok()?.checked_add(offset)?).ok()
}

/// The claims of a lock, in the order of their creation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(pub(crate) Vec<Claim>);

impl Claims {
    pub(crate) fn read(keys: &Keys, kvs: &[impl Pair]) -> Result<Claims, Unexpected> {
        let mut claims = kvs.iter().map(|kv| Claim::read(keys, kv)).collect::<Result<Vec<_>, _>>()?;
        claims.sort_unstable_by_key(|claim| claim.revision);
        Ok(Claims(claims))
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0.iter().map(Claim::entry).collect()
    }

    pub(crate) fn position(&self, session: SessionId, number: RequestNo) -> Option<usize> {
        self.0.iter().position(|claim| claim.is_of(session, number))
    }

    /// Returns how many claims are granted: they are the first ones.
    pub(crate) fn granted(&self) -> usize {
        let entries = self.entries();
        let is_granted = |index: &usize| {
            entries[*index].is_settled && position(&entries[..*index], entries[*index].mode) == Position::Front
        };
        (0..entries.len()).take_while(is_granted).count()
    }

    /// Returns the state of the lock; `None` if it has no claims.
    pub(crate) fn info<P: Pair>(&self, records: &[P]) -> Option<LockInfo> {
        let first = self.0.first()?;
        let (holders, waiters) = self.0.split_at(self.granted());
        let holder = |claim: &Claim| HolderInfo {
            token: claim.token,
            mode: claim.body.mode,
            session: Some(claim.session),
            label: Some(claim.body.label.clone()),
            held_for_ms: None,
            time_left_ms: None,
        };
        let waiter = |claim: &Claim| WaiterInfo {
            session: claim.session,
            label: claim.body.label.clone(),
            mode: claim.body.mode,
        };
        let mut records: Vec<_> = records.iter().collect();
        records.sort_unstable_by_key(|kv| kv.changed());
        let records = records.into_iter().filter_map(|kv| serde_json::from_slice(kv.value()).ok());
        Some(LockInfo {
            name: first.lock.clone(),
            limit: match first.body.mode {
                Mode::Permits { of, .. } => Some(of),
                Mode::Exclusive | Mode::Shared => None,
            },
            value: holders.first().and_then(Claim::value),
            holders: holders.iter().map(holder).collect(),
            waiters: waiters.iter().map(waiter).collect(),
            history: records.map(Record::info).collect(),
        })
    }
}

/// Returns the claims of each lock, in the order of their creation.
pub(crate) fn by_lock(claims: Vec<Claim>) -> BTreeMap<LockName, Claims> {
    let mut locks: BTreeMap<LockName, Claims> = BTreeMap::new();
    for claim in claims {
        locks.entry(claim.lock.clone()).or_default().0.push(claim);
    }
    for claims in locks.values_mut() {
        claims.0.sort_unstable_by_key(|claim| claim.revision);
    }
    locks
}

/// Returns the claims of these lists in the order of their tokens. A claim for several locks is contained once.
pub(crate) fn views<'a>(lists: impl Iterator<Item = &'a Claims>) -> Vec<ClaimView> {
    let mut views = BTreeMap::new();
    for claims in lists {
        let granted = claims.granted();
        for (index, claim) in claims.0.iter().enumerate() {
            let is_granted = match claim.body.locks.is_empty() {
                true => index < granted,
                false => claim.body.granted,
            };
            views.insert(claim.token, claim.view(is_granted));
        }
    }
    views.into_values().collect()
}

/// Returns the reason of a loss that was recorded for its session.
pub(crate) fn read_force(value: &[u8], token: Token) -> Force {
    serde_json::from_slice(value).unwrap_or_else(|_| Force {
        by: Label::new("unknown"),
        reason: Label::new("unknown: the record has another form"),
        moved_to: token,
    })
}

/// The number that a client adds to a revision to get a token, as the store has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Offset {
    /// The revision that has changed the key, 0 if it does not exist.
    pub(crate) changed: i64,
    pub(crate) offset: u64,
}

impl Offset {
    /// Reads the offset from the value of its key and the revision that has changed it.
    pub(crate) fn read(keys: &Keys, stored: Option<(&[u8], i64)>) -> Result<Offset, ConnectError> {
        let Some((value, changed)) = stored else { return Ok(Offset::default()) };
        // Without the key tokens would fall, so deleting it is not enough.
        let bad = |why: &str| {
            ConnectError::permanent(format!(
                "the key '{}' {why}. Put the number back that `palisade tokens raise` wrote. If it is not known, delete the key and \
                 run `palisade tokens raise --above HIGHEST` before any lock is used, where HIGHEST is the highest token in use",
                keys.offset().escape_debug()
            ))
        };
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let offset = number.ok_or_else(|| bad("is no number"))?;
        match token(changed, offset) {
            Some(_) => Ok(Offset { changed, offset }),
            None => Err(bad("is a number that is too high: no token is left above it")),
        }
    }

    /// Returns a description of the loss if this offset is lower than the one that the client knew.
    pub(crate) fn loss_since(&self, known: Offset, keys: &Keys) -> Option<String> {
        let (found, known) = (self.offset, known.offset);
        let key = keys.offset();
        (found < known).then(|| format!("the key '{}' went back from {known} to {found}", key.escape_debug()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_to_what_they_were_made_of() {
        const TAB: &NameForm = &NameForm { encoded: None, end: '\t' };
        const SLASH: &NameForm = &NameForm { encoded: Some(percent_encoding::NON_ALPHANUMERIC), end: '/' };
        for (form, written) in [(TAB, "x/y z\t"), (SLASH, "x%2Fy%20z/")] {
            keys_are_parsed(&Keys::new("a/b", form), written);
        }
    }

    fn keys_are_parsed(keys: &Keys, written: &str) {
        let (lock, session) = (LockName::new("x/y z").expect("a name"), SessionId::new(0x1f).expect("an id"));
        let token = Token::new(9).expect("a token");
        let claim = keys.claim(&lock, session, 7_u64);
        assert_eq!(claim, format!("a/b/lock/{written}0000000000001f-7"));
        assert!(claim.starts_with(&keys.claims(&lock)) && claim.starts_with(&keys.locks("x/")));
        assert_eq!(keys.parse(claim.as_bytes()), Some(Key::Claim(lock, session, 7)));
        assert_eq!(keys.parse(keys.session(session).as_bytes()), Some(Key::Session(session)));
        assert_eq!(keys.parse(keys.lost(session, token).as_bytes()), Some(Key::Lost(session, token)));
        assert_eq!(keys.parse(b"a/b/offset"), None);
        assert_eq!(keys.parse(b"a/c/session/1"), None);
    }

    /// A waiter would watch the usual spelling of a claim that has another one.
    #[test]
    fn keys_in_another_spelling_are_not_parsed() {
        const SLASH: &NameForm = &NameForm { encoded: Some(percent_encoding::NON_ALPHANUMERIC), end: '/' };
        let keys = Keys::new("p", SLASH);
        assert!(keys.parse(b"p/lock/a/0000000000001f-7").is_some());
        for key in [
            "p/lock/a/1f-7",
            "p/lock/a/0000000000001F-7",
            "p/lock/a/000000000000001f-7",
            "p/lock/a/0000000000001f-07",
            "p/lock/a/0000000000001f-+7",
            "p/lock/%61/0000000000001f-7",
            "p/lock/%2f/0000000000001f-7",
            "p/session/1f",
            "p/session/0000000000001f/lost/09",
        ] {
            assert_eq!(keys.parse(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn a_claim_has_a_short_form_that_reads_back() {
        let body = Body {
            number: None,
            label: "me".to_owned(),
            mode: Mode::Permits { count: 2, of: 5 },
            offset: 0,
            locks: Vec::new(),
            granted: false,
            value: Some(hex(&Value::new(&[0xff, 0]))),
            delay_ms: 0,
        };
        let json = to_json(&body);
        assert_eq!(str::from_utf8(&json), Ok(r#"{"label":"me","mode":"2/5","value":"ff00"}"#));
        assert_eq!(serde_json::from_slice::<Body>(&json).expect("a claim"), body);
    }
}
