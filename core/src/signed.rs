//! Signed tokens: the format that the service and the verifiers share. It is a JWS in compact form (RFC 7515), signed with
//! Ed25519 (RFC 8037). The service signs and the fence verifies; this crate has no cryptography.

use serde::{Deserialize, Serialize};

use crate::{LockName, Mode, SessionId, Token};

/// The head of a signed token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHead {
    /// Always [`SignedHead::ALGORITHM`].
    pub alg: String,
    /// Always [`SignedHead::TYPE`], so that no other signed JWS can pass for a token.
    pub typ: String,
    /// The id of the signing key.
    pub kid: String,
    /// Extensions that a verifier must know. There are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crit: Option<Vec<String>>,
}

impl SignedHead {
    /// The only supported algorithm.
    pub const ALGORITHM: &str = "EdDSA";
    /// The type of a signed token.
    pub const TYPE: &str = "palisade+jws";

    /// Returns the head of a token that this key signs.
    ///
    /// ```
    /// assert_eq!(palisade_core::SignedHead::new("k1").alg, "EdDSA");
    /// ```
    pub fn new(kid: &str) -> SignedHead {
        let (alg, typ) = (SignedHead::ALGORITHM.to_owned(), SignedHead::TYPE.to_owned());
        SignedHead { alg, typ, kid: kid.to_owned(), crit: None }
    }
}

/// The claims of a signed token: its lock, its holder, and how the lock is held. There is no expiry time, because a token
/// is overtaken and does not expire.
///
/// ```
/// use palisade_core::{Claims, LockName, Scope, SessionId, Token};
/// let claims = Claims {
///     cluster: "c0ffee".to_owned(),
///     principal: Some("ci".to_owned()),
///     lock: LockName::new("orders/42")?,
///     token: Token::new(34)?,
///     session: SessionId::new(7)?,
///     scope: Scope::Exclusive,
/// };
/// let text = r#"{"iss":"c0ffee","sub":"ci","lock":"orders/42","token":34,"session":7,"scope":"exclusive"}"#;
/// assert_eq!(serde_json::to_string(&claims)?, text);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The cluster that has given the token. Each cluster has its own counter.
    #[serde(rename = "iss")]
    pub cluster: String,
    /// The user of the session that holds the lock; `None` if the service has no users.
    #[serde(rename = "sub", default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The lock that the token is for.
    pub lock: LockName,
    /// The token.
    pub token: Token,
    /// The session that holds the lock.
    pub session: SessionId,
    /// How it is held.
    pub scope: Scope,
}

/// How a lock is held, as a signed token encodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// By one session alone.
    Exclusive,
    /// Together with other shared holders.
    Shared,
    /// By some permits of a semaphore.
    Permits {
        /// How many.
        count: u32,
        /// How many there are in all.
        of: u32,
    },
}

impl From<Mode> for Scope {
    fn from(mode: Mode) -> Scope {
        match mode {
            Mode::Exclusive => Scope::Exclusive,
            Mode::Shared => Scope::Shared,
            Mode::Permits { count, of } => Scope::Permits { count, of },
        }
    }
}
