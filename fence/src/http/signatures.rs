//! Checks the signatures of tokens.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::http::request::Parts;
use palisade_core::{LockName, Token};
use ring::digest::{SHA256, digest};

use crate::signed::Verifier;

/// The request header's name.
pub const FENCING_SIGNATURE: &str = "fencing-signature";

/// How many verified signatures are cached. Only valid ones are, so a forger cannot fill the cache.
const CACHED: usize = 1024;

/// Requires every token to be signed: a request has in `Fencing-Signature` the result of `LOCK SIGN` or
/// `guard.signed_token()`. A signature that is forged, altered, of another lock or of another token is refused. All clones
/// share their state.
///
/// ```no_run
/// use palisade_fence::{http::{FenceLayer, MemoryMarks, Scope, Signatures}, signed::Verifier};
/// # fn example(cluster: &str, keys: &str) -> Result<FenceLayer, Box<dyn std::error::Error>> {
/// let signatures = Signatures::new(Verifier::new(cluster, keys)?);        // the text of /v1/keys
/// let fence = FenceLayer::new(Scope::one("orders")?, MemoryMarks::default()).signed(signatures.clone());
/// // MarksFuture, with new keys: signatures.replace(Verifier::new(cluster, keys)?);
/// # Ok(fence) }
/// ```
#[derive(Clone)]
pub struct Signatures {
    state: Arc<Mutex<State>>,
    presented_by: Option<Arc<Presenter>>,
}

type Presenter = dyn Fn(&Parts) -> Option<String> + Send + Sync;

struct State {
    verifier: Arc<Verifier>,
    /// By the digest of its text.
    verified: HashMap<Vec<u8>, VerifiedToken>,
}

/// The content of a valid signature.
#[derive(Clone, PartialEq, Eq)]
struct VerifiedToken {
    lock: LockName,
    token: Token,
    principal: Option<String>,
}

impl Signatures {
    /// Accepts the signatures that this verifier accepts.
    pub fn new(verifier: Verifier) -> Signatures {
        Signatures {
            state: Arc::new(Mutex::new(State { verifier: Arc::new(verifier), verified: HashMap::new() })),
            presented_by: None,
        }
    }

    /// Sets the function that returns the user of a request, by its name in the lock service. A token that was given to
    /// another user is then refused, and so is a request without a user. Take the name from your authentication, or from a
    /// header that only your proxy can set.
    #[must_use]
    pub fn presented_by(self, presenter: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Signatures {
        Signatures { presented_by: Some(Arc::new(presenter)), ..self }
    }

    /// Replaces the verifier, when the service's keys have changed. Clears the cache.
    pub fn replace(&self, verifier: Verifier) {
        *self.state() = State { verifier: Arc::new(verifier), verified: HashMap::new() };
    }

    /// Checks the signature of a request's token.
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
        let Some(presented_by) = &self.presented_by else { return Ok(()) };
        match (presented_by(parts), &genuine.principal) {
            (Some(presenter), Some(principal)) if presenter == *principal => Ok(()),
            (None, _) => Err("the request has no known user: log in".to_owned()),
            _ => Err("the token is borrowed: it was given to another; have one signed for yourself".to_owned()),
        }
    }

    fn verified(&self, text: &str, lock: &LockName) -> Result<VerifiedToken, String> {
        let key = digest(&SHA256, text.as_bytes());
        let verifier = {
            let state = self.state();
            if let Some(genuine) = state.verified.get(key.as_ref()).filter(|genuine| genuine.lock == *lock) {
                return Ok(genuine.clone());
            }
            state.verifier.clone()
        };
        let claims = verifier.verify(text, lock.as_str()).map_err(|error| error.to_string())?;
        let genuine = VerifiedToken { lock: claims.lock, token: claims.token, principal: claims.principal };
        let mut state = self.state();
        // The verifier may have been replaced since.
        if Arc::ptr_eq(&state.verifier, &verifier) {
            if state.verified.len() >= CACHED {
                state.verified.clear();
            }
            state.verified.insert(key.as_ref().to_vec(), genuine.clone());
        }
        Ok(genuine)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signatures").field("presented_by", &self.presented_by.is_some()).finish_non_exhaustive()
    }
}
