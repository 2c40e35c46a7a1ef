//! Signed tokens, for resources that do not trust their clients.
//!
//! The keys are files in the data directory. The newest one signs; all that are there are published, so that what was
//! signed before stays genuine until its key is retired.

mod files;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use palisade_core::{Claims, SignedHead};
use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::Serialize;

use files::Files;
pub use files::KeyError;

/// Signs tokens for one cluster. Clones share the keys.
#[derive(Debug, Clone)]
pub struct Signer {
    files: Files,
    keys: Arc<RwLock<Keys>>,
}

/// The keys as they were read.
#[derive(Debug, Default)]
struct Keys {
    cluster: String,
    /// The newest comes last.
    all: Vec<Key>,
}

/// One key.
struct Key {
    pair: Ed25519KeyPair,
    kid: String,
    /// The encoded head of every token that it signs.
    head: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("kid", &self.kid).finish_non_exhaustive()
    }
}

impl Key {
    fn new(pair: Ed25519KeyPair) -> Key {
        let public = PublicKey::of(&pair, String::new());
        // The thumbprint of RFC 7638 identifies a key.
        let named = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, public.x);
        let kid = BASE64.encode(digest(&SHA256, named.as_bytes()));
        let head = serde_json::to_vec(&SignedHead::new(&kid)).unwrap_or_default();
        Key { pair, head: BASE64.encode(head), kid }
    }

    fn sign(&self, claims: &Claims) -> String {
        let claims = serde_json::to_vec(claims).unwrap_or_default();
        let signing_input = format!("{}.{}", self.head, BASE64.encode(claims));
        let signature = BASE64.encode(self.pair.sign(signing_input.as_bytes()));
        format!("{signing_input}.{signature}")
    }
}

/// The keys by which signed tokens are verified: a JWK Set (RFC 7517), with the cluster that they are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PublicKeys {
    /// The cluster: `iss` of everything that it signs.
    pub issuer: String,
    /// All keys whose signatures count. The last one signs.
    pub keys: Vec<PublicKey>,
}

/// A key by which signed tokens are verified: a JWK (RFC 8037).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PublicKey {
    /// Always `OKP`.
    pub kty: &'static str,
    /// Always `Ed25519`.
    pub crv: &'static str,
    /// Always `EdDSA`.
    pub alg: &'static str,
    /// Always `sig`.
    #[serde(rename = "use")]
    pub used_for: &'static str,
    /// Its name: the thumbprint of RFC 7638.
    pub kid: String,
    /// The key itself, in Base64url.
    pub x: String,
}

impl PublicKey {
    fn of(pair: &Ed25519KeyPair, kid: String) -> PublicKey {
        let x = BASE64.encode(pair.public_key());
        PublicKey { kty: "OKP", crv: "Ed25519", alg: SignedHead::ALGORITHM, used_for: "sig", kid, x }
    }
}

impl Signer {
    /// Returns a signer with the keys in this data directory. [`Signer::begin`] reads them.
    pub fn new(data_dir: &Path) -> Signer {
        Signer { files: Files::new(data_dir), keys: Arc::default() }
    }

    /// Reads the keys. Creates the cluster's id and a first key, if they do not exist.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or made, or that others can read.
    pub fn begin(&self) -> Result<(), KeyError> {
        self.files.make_cluster()?;
        if self.files.numbers()?.is_empty() {
            self.files.make_key()?;
        }
        self.read()
    }

    /// Reads the keys again. If that fails, everything stays as it was.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or that others can read; no key at all.
    pub fn read(&self) -> Result<(), KeyError> {
        let keys = self.load()?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    fn load(&self) -> Result<Keys, KeyError> {
        let cluster = self.files.cluster()?;
        let pairs: Result<Vec<_>, KeyError> =
            self.files.numbers()?.into_iter().map(|number| self.files.key(number)).collect();
        let all: Vec<_> = pairs?.into_iter().map(Key::new).collect();
        if all.is_empty() {
            return Err(KeyError::NoKeys { folder: self.files.folder().to_owned() });
        }
        Ok(Keys { cluster, all })
    }

    /// Creates a key that signs from the next [`Signer::read`] on, and returns its id.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn add_key(&self) -> Result<String, KeyError> {
        self.files.make_cluster()?;
        let number = self.files.make_key()?;
        Ok(Key::new(self.files.key(number)?).kid)
    }

    /// Removes a key. A resource that fetches the published keys again refuses the tokens that it has signed.
    ///
    /// # Errors
    ///
    /// There is no such key, it is the one that signs, or it cannot be removed.
    pub fn retire_key(&self, kid: &str) -> Result<(), KeyError> {
        let numbers = self.files.numbers()?;
        let keys = self.load()?;
        let Some(position) = keys.all.iter().position(|key| key.kid == kid) else {
            let known = keys.all.into_iter().map(|key| key.kid).collect();
            return Err(KeyError::NoSuchKey { kid: kid.escape_debug().to_string(), known });
        };
        if position + 1 == keys.all.len() {
            return Err(KeyError::StillSigns { kid: kid.to_owned() });
        }
        self.files.remove_key(numbers[position])
    }

    /// Reads the files, and returns the published keys.
    ///
    /// # Errors
    ///
    /// As [`Signer::read`].
    pub fn published(&self) -> Result<PublicKeys, KeyError> {
        Ok(public(&self.load()?))
    }

    /// Returns the published keys as they were read last.
    pub(crate) fn public(&self) -> PublicKeys {
        public(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the folder of the keys.
    pub fn folder(&self) -> PathBuf {
        self.files.folder().to_owned()
    }

    /// Signs claims in the name of the cluster.
    pub(crate) fn sign(&self, claims: Claims) -> Option<String> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.all.last()?;
        Some(key.sign(&Claims { cluster: keys.cluster.clone(), ..claims }))
    }
}

fn public(keys: &Keys) -> PublicKeys {
    let all = keys.all.iter().map(|key| PublicKey::of(&key.pair, key.kid.clone()));
    PublicKeys { issuer: keys.cluster.clone(), keys: all.collect() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_made_once_and_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let first = Signer::new(dir.path());
        first.begin().expect("keys");
        let again = Signer::new(dir.path());
        again.begin().expect("keys");
        assert_eq!(again.public(), first.public());
        assert_eq!(first.public().keys.len(), 1);
        assert!(!format!("{first:?}").contains("pair"), "{first:?}");
    }

    #[test]
    fn a_new_key_signs_once_it_is_read_and_only_an_old_one_is_retired() {
        let dir = tempfile::tempdir().expect("a folder");
        let signer = Signer::new(dir.path());
        signer.begin().expect("keys");
        let old = signer.public().keys[0].kid.clone();
        let new = signer.add_key().expect("a key");
        assert_eq!(signer.public().keys.len(), 1, "it is not read yet");
        signer.read().expect("keys");
        let kids: Vec<_> = signer.public().keys.into_iter().map(|key| key.kid).collect();
        assert_eq!(kids, [old.clone(), new.clone()]);
        assert!(matches!(signer.retire_key(&new), Err(KeyError::StillSigns { .. })));
        assert!(matches!(signer.retire_key("x\u{1b}"), Err(KeyError::NoSuchKey { .. })));
        signer.retire_key(&old).expect("it signs no more");
        signer.read().expect("keys");
        assert_eq!(signer.public().keys.len(), 1);
        assert!(matches!(signer.retire_key(&old), Err(KeyError::NoSuchKey { .. })));
        // The number of the next one is above all that are there.
        signer.add_key().expect("a key");
        assert_eq!(signer.published().expect("keys").keys[0].kid, new);
    }

    #[test]
    fn damaged_missing_or_exposed_keys_are_refused_and_change_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let signer = Signer::new(dir.path());
        assert!(matches!(signer.read(), Err(KeyError::Io { .. })));
        signer.begin().expect("keys");
        let before = signer.public();
        let file = signer.folder().join("0001.pk8");
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
        mode(0o640);
        assert!(matches!(signer.read(), Err(KeyError::Exposed { .. })));
        mode(0o600);
        signer.read().expect("keys");
        let key = fs::read(&file).expect("a key");
        fs::write(&file, &key[..40]).expect("it is ours");
        assert!(matches!(signer.read(), Err(KeyError::Damaged { .. })));
        fs::remove_file(&file).expect("it is ours");
        assert!(matches!(signer.read(), Err(KeyError::NoKeys { .. })));
        assert_eq!(signer.public(), before);
        fs::write(signer.folder().join("cluster"), "not an id\n").expect("it is ours");
        assert!(matches!(signer.read(), Err(KeyError::Damaged { .. })));
    }
}
