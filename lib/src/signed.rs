//! Signed tokens.

use std::fmt;

/// A token signed by the service that granted it, as a JWS in compact form (RFC 7515). A resource verifies the signature and
/// the lock with the service's public keys, without a request to the service (`palisade_fence::signed`).
///
/// It does not expire. A fence refuses it once a newer token has sealed the resource. Every process that has it can present
/// it, so `Debug` does not print it. A resource that authenticates its clients refuses the token of another client.
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
    /// Wraps the text that an engine signed.
    pub fn new(text: impl Into<String>) -> SignedToken {
        SignedToken(text.into())
    }

    /// The text to present to the resource.
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
