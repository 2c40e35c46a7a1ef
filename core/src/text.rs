//! Names, labels, values and secrets.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// Why a text cannot be a lock's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadName {
    /// A name has at least one character.
    #[error("a lock's name must not be empty")]
    Empty,
    /// NUL, line breaks, escapes, bidirectional marks: they would make the name look like another one.
    #[error("a lock's name must not contain control characters (one is at byte {at})")]
    Control {
        /// The byte offset of the first one.
        at: usize,
    },
    /// Names that begin with `$` are kept for Palisade's own use.
    #[error("names that begin with '$' are reserved")]
    Reserved,
    /// No machine accepts a name of this length, whatever its limits are.
    #[error("a lock's name must not be longer than {max} bytes; this one has {length}")]
    TooLong {
        /// The name's length in bytes.
        length: usize,
        /// The longest possible name.
        max: usize,
    },
}

/// A lock's name: not empty, no control characters, no reserved prefix, at most [`LockName::MAX_BYTES`] long.
///
/// ```
/// use palisade_core::LockName;
/// assert_eq!(LockName::new("orders/42")?.as_str(), "orders/42");
/// assert!(LockName::new("two\nlines").is_err());
/// assert!(LockName::new("turned \u{202e} around").is_err());
/// # Ok::<(), palisade_core::BadName>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name that the limits of any machine can allow.
    pub const MAX_BYTES: usize = 1024;

    /// Checks a name.
    ///
    /// ```
    /// use palisade_core::{BadName, LockName};
    /// assert!(LockName::new("orders/42").is_ok());
    /// assert_eq!(LockName::new(""), Err(BadName::Empty));
    /// assert_eq!(LockName::new("$mine"), Err(BadName::Reserved));
    /// assert_eq!(LockName::new("a\nb"), Err(BadName::Control { at: 1 }));
    /// ```
    pub fn new(text: &str) -> Result<LockName, BadName> {
        if text.is_empty() {
            return Err(BadName::Empty);
        }
        if text.len() > LockName::MAX_BYTES {
            return Err(BadName::TooLong { length: text.len(), max: LockName::MAX_BYTES });
        }
        if let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control() || is_misleading(*c)) {
            return Err(BadName::Control { at });
        }
        if text.starts_with('$') {
            return Err(BadName::Reserved);
        }
        Ok(LockName(text.into()))
    }

    /// Returns the name.
    ///
    /// ```
    /// assert_eq!(palisade_core::LockName::new("orders/42")?.as_str(), "orders/42");
    /// # Ok::<(), palisade_core::BadName>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether this is a Unicode line break or bidirectional mark.
fn is_misleading(character: char) -> bool {
    matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LockName, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = LockName;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a lock's name")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<LockName, E> {
                LockName::new(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The display name of a session or an operator, or a reason. Any text within the machine's limit. It is **not** escaped:
/// escape it before printing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct Label(Arc<str>);

impl Label {
    /// Returns a label. The machine's limits bound its length.
    ///
    /// ```
    /// use palisade_core::Label;
    /// assert_eq!(Label::new(""), Label::default());
    /// ```
    pub fn new(text: &str) -> Label {
        Label(text.into())
    }

    /// Returns the text, unescaped.
    ///
    /// ```
    /// assert_eq!(palisade_core::Label::new("worker-1").as_str(), "worker-1");
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The value that a leader publishes: any bytes within the machine's limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// Returns a value. The machine's limits bound its length.
    ///
    /// ```
    /// use palisade_core::Value;
    /// assert_eq!(Value::new(b""), Value::default());
    /// ```
    pub fn new(bytes: &[u8]) -> Value {
        Value(bytes.into())
    }

    /// Returns the bytes.
    ///
    /// ```
    /// assert_eq!(palisade_core::Value::new(b"10.0.0.1").as_bytes(), b"10.0.0.1");
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The secret of a grant, which its holder has chosen: any bytes within the machine's limit for values. A client that knows
/// it can do what the holder can. It is never printed.
///
/// ```
/// use palisade_core::Secret;
/// assert!(!format!("{:?}", Secret::new(b"7f3a")).contains("7f3a"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Returns a secret. The machine's limits bound its length.
    ///
    /// ```
    /// use palisade_core::Secret;
    /// assert_ne!(Secret::new(b"mine"), Secret::new(b"yours"));
    /// ```
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.into())
    }

    /// Returns the bytes. Show them only to a client that may use the lock.
    ///
    /// ```
    /// assert_eq!(palisade_core::Secret::new(b"7f3a").as_bytes(), b"7f3a");
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
