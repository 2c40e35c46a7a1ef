//! Tokens that must be shown with their signature.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::http::request::Parts;
use palisade_core::{LockName, Token};
use ring::digest::{SHA256, digest};

use crate::signed::Verifier;

/// The request header's name.
pub const FENCING_SIGNATURE: &str = "fencing-signature";

/// How many signatures are remembered, so that each is verified once. Strangers cannot fill this: only what is genuine is.
const REMEMBERED: usize = 1024;

/// Wants every token signed: a request then shows in `Fencing-Signature` what the service has answered to `LOCK SIGN` or
/// `guard.signed_token()`. One that is forged, altered, of another lock or of another token is refused. All clones are
/// the same.
///
/// ```no_run
/// use palisade_fence::{http::{FenceLayer, MemoryMarks, Scope, Signatures}, signed::Verifier};
/// # fn example(cluster: &str, keys: &str) -> Result<FenceLayer, Box<dyn std::error::Error>> {
/// let signatures = Signatures::new(Verifier::new(cluster, keys)?);        // the text of /v1/keys
/// let fence = FenceLayer::new(Scope::one("orders")?, MemoryMarks::default()).signed(signatures.clone());
/// // Later, with new keys: signatures.replace(Verifier::new(cluster, keys)?);
/// # Ok(fence) }
/// ```
#[derive(Clone)]
pub struct Signatures {
    known: Arc<Mutex<Known>>,
    shown_by: Option<Arc<WhoShows>>,
}

type WhoShows = dyn Fn(&Parts) -> Option<String> + Send + Sync;

struct Known {
    verifier: Arc<Verifier>,
    /// By the digest of its text.
    genuine: HashMap<Vec<u8>, Genuine>,
}

/// What a signature was for.
#[derive(Clone, PartialEq, Eq)]
struct Genuine {
    lock: LockName,
    token: Token,
    principal: Option<String>,
}

impl Signatures {
    /// Believes what this verifier believes.
    pub fn new(verifier: Verifier) -> Signatures {
        Signatures {
            known: Arc::new(Mutex::new(Known { verifier: Arc::new(verifier), genuine: HashMap::new() })),
            shown_by: None,
        }
    }

    /// Says who shows a token, as the lock service knows him: one that was given to another is then refused, and so is
    /// whoever is not known. Ask your own log-in, or a header that nobody but a proxy of yours can set.
    #[must_use]
    pub fn shown_by(self, who: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Signatures {
        Signatures { shown_by: Some(Arc::new(who)), ..self }
    }

    /// Believes another verifier from now on: when the service's keys have changed. What the old one believed is forgotten.
    pub fn replace(&self, verifier: Verifier) {
        *self.known() = Known { verifier: Arc::new(verifier), genuine: HashMap::new() };
    }

    /// Why a request's token is not accepted.
    pub(super) fn check(&self, parts: &Parts, lock: &LockName, token: Token) -> Result<(), String> {
        let mut shown = parts.headers.get_all(FENCING_SIGNATURE).iter();
        let text = match (shown.next().map(|value| value.to_str()), shown.next()) {
            (Some(Ok(text)), None) => text,
            (None, _) => return Err("there is no signature: the token must be shown signed".to_owned()),
            _ => return Err("there are two signatures, or it is not ASCII".to_owned()),
        };
        let genuine = self.verified(text, lock)?;
        if genuine.token != token {
            return Err(format!("the signature is of token {}, and token {token} is shown", genuine.token));
        }
        let Some(shown_by) = &self.shown_by else { return Ok(()) };
        match (shown_by(parts), &genuine.principal) {
            (Some(who), Some(principal)) if who == *principal => Ok(()),
            (None, _) => Err("nobody knows who shows the token: log in".to_owned()),
            _ => Err("the token is borrowed: it was given to another; have one signed for yourself".to_owned()),
        }
    }

    fn verified(&self, text: &str, lock: &LockName) -> Result<Genuine, String> {
        let key = digest(&SHA256, text.as_bytes());
        let verifier = {
            let known = self.known();
            if let Some(genuine) = known.genuine.get(key.as_ref()).filter(|genuine| genuine.lock == *lock) {
                return Ok(genuine.clone());
            }
            known.verifier.clone()
        };
        let claims = verifier.verify(text, lock.as_str()).map_err(|error| error.to_string())?;
        let genuine = Genuine { lock: claims.lock, token: claims.token, principal: claims.principal };
        let mut known = self.known();
        // Other keys may be believed by now.
        if Arc::ptr_eq(&known.verifier, &verifier) {
            if known.genuine.len() >= REMEMBERED {
                known.genuine.clear();
            }
            known.genuine.insert(key.as_ref().to_vec(), genuine.clone());
        }
        Ok(genuine)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signatures").field("shown_by", &self.shown_by.is_some()).finish_non_exhaustive()
    }
}
