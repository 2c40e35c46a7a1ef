//! Secrets that are random and long, so that one fast hash of them is enough.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;
use thiserror::Error;

const PREFIX: &str = "sha256:";

/// The secret of a user. It is created once and shown once; the service keeps only its hash.
pub struct Secret(String);

/// The hash of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretHash([u8; 32]);

/// Why a text is not the hash of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("it is 'sha256:' and 64 hexadecimal digits, as `palisade serve --new-user` prints it")]
pub struct BadHash;

impl Secret {
    /// Returns a new secret of 256 random bits.
    ///
    /// # Errors
    ///
    /// The system has no random bytes.
    pub fn random() -> std::io::Result<Secret> {
        let mut bytes = [0; 32];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| std::io::Error::other("the system gives no random bytes"))?;
        Ok(Secret(hex(&bytes)))
    }

    /// Returns the secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns its hash.
    pub fn hash(&self) -> SecretHash {
        SecretHash::of(self.0.as_bytes())
    }
}

impl SecretHash {
    fn of(secret: &[u8]) -> SecretHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, secret).as_ref());
        SecretHash(hash)
    }

    /// Returns a hash that no secret has.
    pub(super) fn of_nothing() -> SecretHash {
        SecretHash([0; 32])
    }

    /// Returns whether this is the secret, in constant time.
    pub fn is_of(&self, secret: &[u8]) -> bool {
        SecretHash::of(secret).0.ct_eq(&self.0).into()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex(&self.0))
    }
}

impl FromStr for SecretHash {
    type Err = BadHash;

    /// ```
    /// use palisade_server::access::{Secret, SecretHash};
    /// let secret = Secret::random()?;
    /// let hash: SecretHash = secret.hash().to_string().parse()?;
    /// assert!(hash.is_of(secret.reveal().as_bytes()));
    /// assert!("sha256:12".parse::<SecretHash>().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn from_str(text: &str) -> Result<SecretHash, BadHash> {
        let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == 64).ok_or(BadHash)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(BadHash);
        }
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| BadHash)?;
        }
        // It stands for users without a secret.
        if hash == [0; 32] { Err(BadHash) } else { Ok(SecretHash(hash)) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
