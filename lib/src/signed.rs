//! Tokens that prove themselves.

use std::fmt;

/// A token with the signature of whoever has given it: a resource verifies with published keys, and without asking
/// anybody, that it is genuine and for which lock (`palisade_fence::signed`). A JWS in compact form (RFC 7515).
///
/// It has no end: like the number in it, it is overtaken. Whoever has it can show it, so `Debug` does not; a resource
/// that knows who asks refuses one that is another's.
///
/// ```
/// use palisade::SignedToken;
/// let signed = SignedToken::new("e30.e30.c2ln");
/// assert_eq!(signed.to_string(), "e30.e30.c2ln");
/// assert!(!format!("{signed:?}").contains("e30"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SignedToken(String);

impl SignedToken {
    /// As an engine has made it.
    pub fn new(text: impl Into<String>) -> SignedToken {
        SignedToken(text.into())
    }

    /// The text to be shown to the resource.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SignedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SignedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignedToken")
    }
}
