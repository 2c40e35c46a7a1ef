//! Tokens that prove themselves.

use std::fmt;

/// A token signed by the service that granted it. A resource verifies with published keys, and without a request, that it is
/// genuine and for which lock (`palisade_fence::signed`). A JWS in compact form (RFC 7515).
///
/// It does not expire: like the number in it, it is overtaken. Every process that has it can present it, so `Debug` does not
/// print it. A resource that authenticates its clients refuses the token of another client.
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
