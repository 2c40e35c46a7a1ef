//! Verifies signed tokens. The input is untrusted: every step can only refuse it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use palisade_core::{Claims, Scope, SignedHead};
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::refused::shown;
use super::{BadKeys, NotGenuine};
use crate::{Error, ErrorKind, Resource, Sealed};

/// The longest text that is accepted: a lock's longest name, escaped and encoded, and what comes with it.
const LONGEST: usize = 16 << 10;

/// Verifies signed tokens of one cluster, offline. Cheap to clone.
///
/// Its keys are fixed: when the service's keys change, fetch them again and create a new verifier. Until then what
/// a new key has signed is refused as [`NotGenuine::UnknownKey`], and what a retired one has signed is accepted.
#[derive(Debug, Clone)]
pub struct Verifier {
    cluster: String,
    keys: BTreeMap<String, Vec<u8>>,
    any_scope: bool,
}

/// A JWK Set (RFC 7517), as far as it matters here.
#[derive(Deserialize)]
struct KeySet {
    issuer: Option<String>,
    keys: Vec<KeyOf>,
}

/// Keys of other kinds may be among them.
#[derive(Deserialize)]
struct KeyOf {
    kty: Option<String>,
    crv: Option<String>,
    kid: Option<String>,
    x: Option<String>,
}

impl KeyOf {
    fn read(self) -> Option<(String, Vec<u8>)> {
        if self.kty.as_deref() != Some("OKP") || self.crv.as_deref() != Some("Ed25519") {
            return None;
        }
        let key = BASE64.decode(self.x?).ok().filter(|key| key.len() == 32)?;
        Some((self.kid?, key))
    }
}

impl Verifier {
    /// Returns a verifier that trusts this cluster and these keys, the text at the service's `/v1/keys`. Fetch it in a
    /// trusted way; it is not secret.
    ///
    /// # Errors
    ///
    /// The text is no set of keys, has none that can be used, or says that it is another cluster's.
    pub fn new(cluster: &str, keys: &str) -> Result<Verifier, BadKeys> {
        let set: KeySet = serde_json::from_str(keys).map_err(|error| BadKeys::NotKeys { what: error.to_string() })?;
        if let Some(issuer) = set.issuer.filter(|issuer| issuer != cluster) {
            return Err(BadKeys::OtherCluster { cluster: shown(&issuer) });
        }
        let keys: BTreeMap<_, _> = set.keys.into_iter().filter_map(KeyOf::read).collect();
        if keys.is_empty() {
            return Err(BadKeys::NoKeys);
        }
        Ok(Verifier { cluster: cluster.to_owned(), keys, any_scope: false })
    }

    /// Accepts tokens of the cluster that the keys name, their `issuer`. Use [`new`](Verifier::new) if the cluster is known.
    ///
    /// # Errors
    ///
    /// As [`new`](Verifier::new); the text names no issuer.
    pub fn of_issuer(keys: &str) -> Result<Verifier, BadKeys> {
        let set: KeySet = serde_json::from_str(keys).map_err(|error| BadKeys::NotKeys { what: error.to_string() })?;
        let no_issuer = || BadKeys::NotKeys { what: "they name no issuer".to_owned() };
        Verifier::new(&set.issuer.ok_or_else(no_issuer)?, keys)
    }

    /// Returns the cluster whose tokens it accepts.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Accepts tokens of shared holders and of permits, too. A resource that is sealed with such a token refuses the
    /// other holders. This is for resources that only check that the lock is held.
    #[must_use]
    pub fn any_scope(self) -> Verifier {
        Verifier { any_scope: true, ..self }
    }

    /// Returns the claims of a genuine token for this lock. Another user than the holder may present it: where the resource
    /// knows its users, use [`verify_from`](Verifier::verify_from).
    ///
    /// # Errors
    ///
    /// It is not genuine, or for another lock.
    pub fn verify(&self, text: &str, lock: &str) -> Result<Claims, NotGenuine> {
        let claims = self.genuine(text)?;
        if claims.cluster != self.cluster {
            return Err(NotGenuine::OtherCluster { cluster: shown(&claims.cluster) });
        }
        if claims.lock.as_str() != lock {
            return Err(NotGenuine::OtherLock { lock: shown(claims.lock.as_str()) });
        }
        if !self.any_scope && claims.scope != Scope::Exclusive {
            return Err(NotGenuine::NotExclusive { scope: claims.scope });
        }
        Ok(claims)
    }

    /// Returns the claims of a genuine token for this lock that was given to this user, by its name in the service.
    ///
    /// # Errors
    ///
    /// It is not genuine, for another lock, or another's.
    pub fn verify_from(&self, text: &str, lock: &str, principal: &str) -> Result<Claims, NotGenuine> {
        let claims = self.verify(text, lock)?;
        if claims.principal.as_deref() != Some(principal) {
            return Err(NotGenuine::Borrowed { principal: claims.principal.as_deref().map(shown) });
        }
        Ok(claims)
    }

    /// Verifies a signed token and seals a resource with it, in one step.
    ///
    /// # Cancellation
    ///
    /// The mark may have been raised. Sealing again with the same token is no error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotGenuine`], and nothing has changed; or as [`Sealed::seal`].
    pub async fn seal<R: Resource>(&self, resource: R, text: &str, lock: &str) -> Result<Sealed<R>, Error> {
        match self.verify(text, lock) {
            Ok(claims) => Sealed::seal(resource, claims.token).await,
            Err(why) => Err(Error::new(ErrorKind::NotGenuine(why), resource.name(), "seal")),
        }
    }

    /// Returns the claims, if a trusted key has signed them.
    fn genuine(&self, text: &str) -> Result<Claims, NotGenuine> {
        if text.len() > LONGEST {
            return Err(NotGenuine::Garbage { what: "it is too long" });
        }
        let (signing_input, signature) =
            text.rsplit_once('.').ok_or(NotGenuine::Garbage { what: "it has no signature" })?;
        let (head, claims) = signing_input.split_once('.').ok_or(NotGenuine::Garbage { what: "it has no claims" })?;
        let key = self.key(head)?;
        let signature = BASE64.decode(signature).map_err(|_| NotGenuine::Altered)?;
        // The algorithm is fixed. The head can only cause a refusal.
        UnparsedPublicKey::new(&ED25519, key)
            .verify(signing_input.as_bytes(), &signature)
            .map_err(|_| NotGenuine::Altered)?;
        decoded(claims).ok_or(NotGenuine::Garbage { what: "its claims are not those of a token" })
    }

    /// Returns the key that the head names.
    fn key(&self, head: &str) -> Result<&[u8], NotGenuine> {
        let head: SignedHead = decoded(head).ok_or(NotGenuine::Garbage { what: "its head is invalid" })?;
        if head.alg != SignedHead::ALGORITHM {
            return Err(NotGenuine::OtherAlgorithm { alg: shown(&head.alg) });
        }
        if head.typ != SignedHead::TYPE {
            return Err(NotGenuine::Garbage { what: "it is a signature of something else" });
        }
        if head.crit.is_some() {
            return Err(NotGenuine::Garbage { what: "its head wants something that is not known here" });
        }
        let key = self.keys.get(&head.kid).map(Vec::as_slice);
        key.ok_or_else(|| NotGenuine::UnknownKey { kid: shown(&head.kid) })
    }
}

fn decoded<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_slice(&BASE64.decode(text).ok()?).ok()
}
